#!/usr/bin/python
"""Everything preflight, status and drift need to know about one node, read in one call. Changes nothing."""

from __future__ import annotations

import contextlib
import grp
import hashlib
import http.client
import importlib.util
import json
import os
import pwd
import re
import shlex
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gb10 import key_file, rank_container

DOCUMENTATION = r"""
---
module: gb10_facts
short_description: Read what decides whether a GB10 node can serve
description:
  - Reads kernel, memory, GPU, RDMA devices with their GID tables, links, mounts, block devices, Docker with images and
    containers, weights files, listeners, sysctls and limits in one call.
  - Changes nothing, and what is missing or unreadable is C(null) or an empty list, never an error.
  - Reads that can hang on a sick node (Docker, network mounts, C(nvidia-smi)) run at the same time, each within
    O(timeout); what did not answer is named in RV(gb10.read.timed_out).
  - The schema is described in docs/facts.md.
options:
  root:
    description:
      - Directory that stands for C(/). Any other value reads a recorded tree, in which C(gb10/) holds what commands
        and the Docker API answered; no command runs and no socket is opened then.
    type: path
    default: /
  weights_path:
    description: Directory of the checkpoint. Empty reads no weights.
    type: str
    default: ""
  images:
    description: Image tags to inspect by tag; all others are inspected by id.
    type: list
    elements: str
    default: []
  ports:
    description: TCP ports to find listeners on.
    type: list
    elements: int
    default: []
  sysctls:
    description: Names of sysctls to read.
    type: list
    elements: str
    default: []
  files:
    description: Absolute paths whose kind, sum and owner to read; no content is returned.
    type: list
    elements: str
    default: []
  units:
    description: systemd units whose state to read.
    type: list
    elements: str
    default: []
  users:
    description: Users whose groups and lingering to read.
    type: list
    elements: str
    default: []
  packages:
    description: Debian packages whose installed version to read.
    type: list
    elements: str
    default: []
  rank_name:
    description: Name of the container that is ours.
    type: str
    default: gb10-rank
  docker_socket:
    description: Socket of the Docker API.
    type: path
    default: /var/run/docker.sock
  timeout:
    description: Seconds after which a read is given up. A healthy node answers everything in less than two.
    type: float
    default: 15
attributes:
  check_mode:
    description: Can run in check mode and changes nothing.
    support: full
author:
  - gb10-cluster (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Facts of the node are known
  gb10_facts:
    weights_path: /data/models/deepseek-v4.1-flash
    images: ["vllm-dsv41:latest"]
    ports: [8000, 29501]
    sysctls: [vm.min_free_kbytes]
  register: node_facts

- name: Facts of a recorded node are known
  gb10_facts:
    root: /tmp/recorded/spark-153
  delegate_to: localhost
"""

RETURN = r"""
gb10:
  description: The node's facts, schema 1; see docs/facts.md.
  returned: always
  type: dict
  sample:
    schema: 1
    hostname: spark-153
    arch: aarch64
    kernel: {release: 6.17.0-1032-nvidia, cmdline: "root=/dev/nvme0n1p2"}
    memory: {total_kib: 127598544, available_kib: 121634816, cma_total_kib: 0, cma_free_kib: 0}
"""

SCHEMA = 1

# Where a recorded tree keeps the answers of commands and of the Docker API.
RECORDED = "gb10"

# No disk behind them: left out of the mounts.
PSEUDO = re.compile(
    "autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|efivarfs|fuse.gvfsd-fuse|fusectl|hugetlbfs|mqueue"
    "|nsfs|proc|pstore|ramfs|rpc_pipefs|securityfs|squashfs|sysfs|tracefs"
)

DOCKER_SOCKET = "/var/run/docker.sock"

# Mounts Docker makes for itself, and the system's own temporary file systems.
INTERNAL = re.compile(r"/var/lib/(docker|containerd)/.|/(run|dev|proc|sys)(/|$)")

# Where the storage role keeps what its probe measured.
PROBE = "/var/lib/gb10/storage-probe.json"
# What the change history keeps on the node.
ANCHOR = "/etc/ansible/facts.d/gb10_history.fact"

# Larger files are none that we write: not summed.
MOST_BYTES = 1 << 20

# Files somebody is still writing: ours (.part), rsync's (.name.XXXXXX), Hugging Face's and aria2's.
PARTIAL = re.compile(r"(\.(part|partial|tmp|temp|incomplete|aria2|lock))$|^\..+\.[A-Za-z0-9]{6}$")

# Where netplan reads, later ones over earlier ones; a file of the same name in /etc or /run hides the one in /lib.
NETPLAN = ("/lib/netplan", "/etc/netplan", "/run/netplan")

# Our nftables table.
TABLE = ("inet", "gb10")

# Names of variables and options whose value is nobody's business. (max_num_batched_tokens and tokenizer are none.)
SECRET = re.compile(r"token(?!s|iz)|secret|passw|passphrase|credential|(api|private|access)_?key", re.IGNORECASE)
HIDDEN = "(set)"

# More weights files than this are somebody's home directory.
MOST_FILES = 5000


# --- what is read from: the live system, or a recorded tree ------------------------------------------------------


class Node:
    """One node's files, commands and Docker API; recorded answers replace the last two where root is not ``/``."""

    def __init__(self, root="/", timeout=15.0, docker_socket=DOCKER_SOCKET):
        self.root = Path(root)
        self.live = str(self.root) == "/"
        self.timeout = timeout
        self.docker_socket = docker_socket

    def path(self, name):
        """The file ``name`` (absolute or not) under the root."""
        return self.root / str(name).lstrip("/")

    def text(self, name):
        """The file's text without surrounding space, None where it cannot be read."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, name):
        """The whole number the file holds, or None."""
        return whole(self.text(name))

    def names(self, directory):
        """Sorted entries of a directory; none where it cannot be read."""
        try:
            return sorted(entry.name for entry in self.path(directory).iterdir())
        except OSError:
            return []

    def recorded(self, name):
        """A recorded answer's text; None on a live system or where nothing was recorded."""
        return None if self.live else self.text(f"{RECORDED}/{name}")

    def command(self, name, argv):
        """What a command printed, or what ``name`` recorded of it. Empty where it is missing, fails or hangs."""
        if not self.live:
            return self.recorded(name) or ""
        tool = shutil.which(argv[0], path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin")
        if not tool:
            return ""
        try:
            done = subprocess.run(
                [tool, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=self.timeout,
                env={**os.environ, "LC_ALL": "C"},
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        return done.stdout.decode(errors="replace")

    def docker(self, path):
        """``(answer, error)`` of a GET to the Docker API."""
        if not self.live:
            answers = parse_json(self.recorded("docker.json"), {})
            return (answers[path], "") if path in answers else (None, "not recorded")
        return docker_get(self.docker_socket, path, self.timeout)

    def target(self, name):
        """What a link points at; empty where it is none."""
        try:
            return str(self.path(name).readlink())
        except OSError:
            return ""

    def space(self, mount):
        """``(total, free)`` bytes of the file system mounted at ``mount``; free is what root's data may still take."""
        if not self.live:
            known = parse_json(self.recorded("statvfs.json"), {}).get(mount, {})
            return known.get("total_bytes"), known.get("free_bytes")
        try:
            stat = os.statvfs(mount)
        except OSError:
            return None, None
        return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.unix_path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.unix_path)


def docker_get(unix_path, path, timeout):
    """``(answer, error)`` of a GET over the socket; the answer is None unless the status is 200."""
    connection = UnixConnection(unix_path, timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            return None, f"HTTP {response.status}"
        return json.loads(body), ""
    except (OSError, http.client.HTTPException, ValueError) as problem:
        return None, str(problem) or type(problem).__name__
    finally:
        connection.close()


# --- parsing -----------------------------------------------------------------------------------------------------


def whole(text):
    """The whole number in ``text``, or None."""
    try:
        return int(text)
    except (TypeError, ValueError):
        return None


def parse_json(text, default):
    """The JSON document, or ``default`` where it is none or of another kind."""
    try:
        value = json.loads(text or "")
    except ValueError:
        return default
    return value if isinstance(value, type(default)) else default


def parse_assignments(text):
    """``KEY=value`` lines (os-release, dgx-release) as a dict, quotes removed."""
    pairs = (line.split("=", 1) for line in (text or "").splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, value in pairs}


def parse_meminfo(text):
    """/proc/meminfo: name -> number (KiB, or a count where the kernel gives no unit)."""
    found = re.findall(r"^(\S+):\s+(\d+)", text or "", re.MULTILINE)
    return {name: int(value) for name, value in found}


def parse_mounts(text):
    """/proc/mounts as a list without pseudo file systems and what Docker mounts for itself, octal escapes resolved."""
    mounts = []
    for line in (text or "").splitlines():
        fields = [re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), f) for f in line.split()]
        if len(fields) < 4 or PSEUDO.fullmatch(fields[2]) or INTERNAL.match(fields[1]):
            continue
        mounts.append({"source": fields[0], "target": fields[1], "fstype": fields[2], "options": fields[3].split(",")})
    return mounts


def parse_limits(text):
    """/proc/<pid>/limits: our names -> {soft, hard}; -1 is unlimited."""
    kinds = {"Max open files": "nofile", "Max locked memory": "memlock", "Max stack size": "stack"}
    limits = {}
    for line in (text or "").splitlines():
        match = re.match(r"(Max [a-z ]+?)\s{2,}(\S+)\s+(\S+)", line)
        if match and match.group(1) in kinds:
            soft, hard = (-1 if v == "unlimited" else whole(v) for v in match.group(2, 3))
            limits[kinds[match.group(1)]] = {"soft": soft, "hard": hard}
    return limits


def parse_devinfo(text):
    """ibv_devinfo: (device, port) -> active MTU in bytes. Sysfs does not tell it."""
    found, device, port = {}, "", None
    for line in (text or "").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "hca_id":
            device, port = value, None
        elif key == "port":
            port = whole(value)
        elif key == "active_mtu" and device and port is not None:
            found[device, port] = whole(value.split(" ")[0])
    return found


def parse_dcb(app, pfc):
    """``dcb -j app show`` and ``dcb -j pfc show``: DSCP -> priority, and the priorities with PFC; None for neither."""
    if not app and "prio_pfc" not in pfc:
        return None
    pairs = [pair for pair in app.get("dscp_prio") or [] if isinstance(pair, list) and len(pair) == 2]
    paused = [number for number, on in enumerate(pfc.get("prio_pfc") or []) if on in (True, 1, "on")]
    return {"dscp_priority": {str(dscp): priority for dscp, priority in pairs}, "pfc": paused}


def parse_netplan(text):
    """``(interface -> {addresses, mtu, dhcp4}, problem)`` of a netplan file; needs PyYAML, as netplan itself does."""
    try:
        import yaml
    except ImportError:
        return {}, "PyYAML is missing"
    try:
        network = (yaml.safe_load(text or "") or {}).get("network") or {}
        interfaces = {}
        for kind in ("ethernets", "wifis", "bonds", "bridges", "vlans"):
            for key, about in (network.get(kind) or {}).items():
                about = about or {}
                name = (about.get("match") or {}).get("name") or about.get("set-name") or key
                # An address may be a mapping of itself to options.
                addresses = [next(iter(a)) if isinstance(a, dict) else str(a) for a in about.get("addresses") or []]
                said = {"addresses": addresses, "mtu": about.get("mtu"), "dhcp4": bool(about.get("dhcp4"))}
                interfaces[str(name)] = said
    except (yaml.YAMLError, AttributeError, TypeError) as problem:
        return {}, str(problem).splitlines()[0]
    return interfaces, None


def parse_csv(text, keys):
    """Rows of ``nvidia-smi --format=csv,noheader,nounits`` as dicts; what the driver does not support is None."""
    rows = []
    for line in (text or "").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(keys):
            known = [None if re.search(r"N/A|Not Supported|Unknown", cell) else cell for cell in cells]
            rows.append(dict(zip(keys, known, strict=True)))
    return rows


def parse_listeners(text, ports):
    """/proc/net/tcp or tcp6: ``[(port, address, inode)]`` of the sockets listening on one of ``ports``."""
    found = []
    for line in (text or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != "0A":
            continue
        address, _, port = fields[1].partition(":")
        if int(port, 16) in ports:
            found.append((int(port, 16), decode_address(address), fields[9]))
    return found


def decode_address(text):
    """An address of /proc/net/tcp{,6}: hexadecimal 32-bit words in the machine's byte order."""
    words = [struct.pack("=I", int(text[i : i + 8], 16)) for i in range(0, len(text), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def parse_fstab(text):
    """/etc/fstab: its entries in order."""
    entries = []
    for line in (text or "").splitlines():
        fields = line.split()
        if len(fields) >= 4 and not line.lstrip().startswith("#"):
            names = ("source", "target", "fstype")
            entries.append({**dict(zip(names, fields, strict=False)), "options": fields[3].split(",")})
    return entries


def parse_containerd_root(text):
    """containerd's data directory by its config.toml (the key stands before the first table), else its default."""
    top = re.split(r"^\s*\[", text or "", maxsplit=1, flags=re.M)[0]
    found = re.search(r"""^root\s*=\s*["']([^"']+)["']""", top, re.M)
    return found.group(1) if found else "/var/lib/containerd"


def parse_units(text, names):
    """``systemctl show`` of several units, a block each in the order asked: name -> what it said."""
    blocks = [parse_assignments(block) for block in re.split(r"\n\s*\n", (text or "").strip())]
    keys = {"load": "LoadState", "enabled": "UnitFileState", "active": "ActiveState"}
    units = {}
    for number, name in enumerate(names):
        told = blocks[number] if number < len(blocks) else {}
        since = whole(told.get("ActiveEnterTimestamp", "").removeprefix("@"))
        stale = told.get("NeedDaemonReload") == "yes"
        units[name] = {**{key: told.get(said) or None for key, said in keys.items()}, "since": since, "stale": stale}
    return units


def parse_packages(text, names):
    """dpkg's status file: name -> installed version, None where it is not installed."""
    found = dict.fromkeys(names)
    for block in re.split(r"\n\n", text or "") if names else ():
        name = re.match(r"Package: (\S+)", block)
        if name and name.group(1) in found and "\nStatus: install ok installed" in block:
            version = re.search(r"^Version: (\S+)", block, re.M)
            found[name.group(1)] = version.group(1) if version else ""
    return found


def parse_groups(passwd, group, user):
    """Names of the groups ``user`` is in, by the texts of /etc/passwd and /etc/group."""
    primary = {f[0]: f[3] for f in (line.split(":") for line in (passwd or "").splitlines()) if len(f) > 3}.get(user)
    names = []
    for line in (group or "").splitlines():
        fields = line.split(":")
        if len(fields) > 3 and (fields[2] == primary or user in fields[3].split(",")):
            names.append(fields[0])
    return sorted(names)


# --- sections: each reads one part of the node, and returns its empty form where nothing is there ------------------


def read_system(node):
    """Hostname, kernel, distribution, architecture."""
    release = parse_assignments(node.text("/etc/os-release"))
    dgx = parse_assignments(node.text("/etc/dgx-release"))
    machine = os.uname().machine if node.live else node.recorded("machine.txt")
    return {
        "hostname": node.text("/proc/sys/kernel/hostname"),
        "arch": machine,
        "kernel": {"release": node.text("/proc/sys/kernel/osrelease"), "cmdline": node.text("/proc/cmdline")},
        "os": {
            "id": release.get("ID"),
            "id_like": release.get("ID_LIKE", "").split(),
            "version_id": release.get("VERSION_ID"),
            "pretty_name": release.get("PRETTY_NAME"),
            "dgx_release": dgx.get("DGX_OTA_VERSION") or dgx.get("DGX_SWBUILD_VERSION"),
        },
        "systemd": node.command("systemctl.txt", ["systemctl", "is-system-running"]).strip() or None,
    }


def read_memory(node):
    """/proc/meminfo in KiB."""
    info = parse_meminfo(node.text("/proc/meminfo"))
    return {
        "total_kib": info.get("MemTotal"),
        "available_kib": info.get("MemAvailable"),
        "free_kib": info.get("MemFree"),
        "swap_total_kib": info.get("SwapTotal"),
        "cma_total_kib": info.get("CmaTotal"),
        "cma_free_kib": info.get("CmaFree"),
        "hugepages_total": info.get("HugePages_Total"),
        "hugepage_kib": info.get("Hugepagesize"),
    }


def read_gpu(node):
    """Driver, devices, and who computes on them."""
    version = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", node.text("/proc/driver/nvidia/version") or "")
    query = ["nvidia-smi", "--format=csv,noheader,nounits"]
    keys = ["name", "uuid", "driver_version", "compute_cap"]
    devices = parse_csv(node.command("nvidia-smi-gpu.csv", [*query, "--query-gpu=" + ",".join(keys)]), keys)
    keys = ["pid", "process_name", "used_memory"]
    apps = node.command("nvidia-smi-apps.csv", [*query, "--query-compute-apps=" + ",".join(keys)]) if devices else ""
    processes = []
    for row in parse_csv(apps, keys):
        pid = whole(row["pid"])
        process = {"pid": pid, "process": row["process_name"], "memory_mib": whole(row["used_memory"])}
        processes.append({**process, "container": container_of(node, pid)})
    driver = version.group(0) if version else (devices[0]["driver_version"] if devices else None)
    return {"driver": driver, "devices": devices, "processes": processes}


def read_rdma(node):
    """RDMA devices with their ports and the used entries of their GID tables."""
    base = "/sys/class/infiniband"
    names = node.names(base)
    mtus = parse_devinfo(node.command("ibv-devinfo.txt", ["ibv_devinfo"])) if names else {}
    devices = []
    for name in names:
        numbers = sorted(int(n) for n in node.names(f"{base}/{name}/ports") if n.isdigit())
        ports = [read_port(node, f"{base}/{name}/ports/{n}", n, mtus.get((name, n))) for n in numbers]
        netdevs = node.names(f"{base}/{name}/device/net")
        soft = node.text(f"{base}/{name}/parent")
        tables = [gid["netdev"] for port in ports for gid in port["gids"] if gid["netdev"]]
        netdev = (netdevs or ([soft] if soft else []) or tables or [None])[0]
        devices.append({"name": name, "netdev": netdev, "ports": ports})
    return {"devices": devices, "char_devices": [f"/dev/infiniband/{n}" for n in node.names("/dev/infiniband")]}


def read_port(node, base, number, active_mtu):
    """One port: state, link layer, rate, active MTU, GIDs that are set."""
    state = (node.text(f"{base}/state") or "").partition(":")[2].strip() or None
    rate = re.match(r"[\d.]+", node.text(f"{base}/rate") or "")
    gids = []
    for index in sorted((n for n in node.names(f"{base}/gids") if n.isdigit()), key=int):
        gid = node.text(f"{base}/gids/{index}")
        if gid and gid.strip("0:"):
            kind, netdev = (node.text(f"{base}/gid_attrs/{part}/{index}") for part in ("types", "ndevs"))
            gids.append({"index": int(index), "gid": gid, "type": kind, "netdev": netdev})
    return {
        "port": number,
        "state": state,
        "link_layer": node.text(f"{base}/link_layer"),
        "rate_gbps": float(rate.group(0)) if rate else None,
        "active_mtu": active_mtu,
        "gids": gids,
    }


def read_links(node):
    """Network interfaces with their addresses, and the default route. Containers' veths are left out."""
    addresses = {}
    for link in parse_json(node.command("ip-addr.json", ["ip", "-json", "address", "show"]), []):
        addresses[link.get("ifname")] = [
            {"family": a.get("family"), "address": a.get("local"), "prefix": a.get("prefixlen")}
            for a in link.get("addr_info", [])
        ]
    base = "/sys/class/net"
    links = []
    for name in node.names(base):
        if name.startswith("veth") or not node.path(f"{base}/{name}/mtu").exists():
            continue
        speed = node.number(f"{base}/{name}/speed")
        links.append(
            {
                "name": name,
                "operstate": node.text(f"{base}/{name}/operstate"),
                "carrier": {0: False, 1: True}.get(node.number(f"{base}/{name}/carrier")),
                "mtu": node.number(f"{base}/{name}/mtu"),
                "speed_mbps": speed if speed and speed > 0 else None,
                "mac": node.text(f"{base}/{name}/address"),
                "physical": node.path(f"{base}/{name}/device").exists(),
                "addresses": addresses.get(name, []),
            }
        )
    routes = parse_json(node.command("ip-route.json", ["ip", "-json", "route", "show", "default"]), [])
    default = {"interface": routes[0].get("dev"), "gateway": routes[0].get("gateway")} if routes else None
    return {"links": links, "default_route": default}


def read_lossless(node):
    """What DCB says of every RDMA device's interface; null for one whose driver has no DCB."""
    base = "/sys/class/infiniband"
    netdevs = sorted({netdev for name in node.names(base) for netdev in node.names(f"{base}/{name}/device/net")})
    interfaces = {}
    for netdev in netdevs:
        app = parse_json(node.command(f"dcb-app-{netdev}.json", ["dcb", "-j", "app", "show", "dev", netdev]), {})
        pfc = parse_json(node.command(f"dcb-pfc-{netdev}.json", ["dcb", "-j", "pfc", "show", "dev", netdev]), {})
        interfaces[netdev] = parse_dcb(app, pfc)
    links = "/etc/systemd/system/sys-subsystem-net-devices-{0}.device.wants/gb10-lossless@{0}.service"
    at_boot = [netdev for netdev in netdevs if os.path.lexists(node.path(links.format(netdev)))]
    return {"installed": installed(node, "dcb"), "interfaces": interfaces, "at_boot": at_boot}


def read_netplan(node):
    """What netplan's files say of interfaces. Their text stays on the node: it may hold passwords."""
    places = {}
    for folder in NETPLAN:
        for name in node.names(folder):
            if name.endswith(".yaml"):
                places[name] = f"{folder}/{name}"
    files = []
    for _name, path in sorted(places.items()):
        interfaces, problem = parse_netplan(node.text(path))
        files.append({"path": path, "error": problem, "interfaces": interfaces})
    return {"installed": installed(node, "netplan"), "files": files}


def read_firewall(node):
    """Our nftables table: its comment (which names what was loaded) and number of rules; null where not loaded."""
    listed = parse_json(node.command("nft.json", ["nft", "-j", "list", "table", *TABLE]), {}).get("nftables") or []
    tables = [item["table"] for item in listed if "table" in item]
    return {
        "installed": installed(node, "nft"),
        "comment": tables[0].get("comment", "") if tables else None,
        "rules": sum("rule" in item for item in listed) if tables else None,
    }


def installed(node, program):
    """Whether the system has ``program``."""
    return any(node.path(f"{folder}/{program}").exists() for folder in ("/usr/sbin", "/sbin", "/usr/bin", "/bin"))


def read_mounts(node):
    """Mounted file systems that hold data."""
    return parse_mounts(node.text("/proc/self/mounts") or node.text("/proc/mounts"))


def mount_of(mounts, path):
    """The mount ``path`` lies on (the longest target above it, the last of equal ones); None where none is known."""
    best = None
    for mount in mounts:
        target = mount["target"].rstrip("/")
        if (path + "/").startswith(target + "/") and (best is None or len(target) >= len(best["target"].rstrip("/"))):
            best = mount
    return best


def read_filesystem(node, mounts, path):
    """The file system ``path`` lies on, or would lie on: source, target, fstype, options and space in bytes."""
    real = os.path.realpath(node.path(path))
    if not node.live:
        real = "/" + os.path.relpath(real, os.path.realpath(node.root))
    mount = mount_of(mounts, real)
    if mount is None:
        return None
    total, free = node.space(mount["target"])
    return {**mount, "total_bytes": total, "free_bytes": free}


def read_blocks(node):
    """Disks with partitions and the signatures lsblk sees; loop, RAM and empty optical devices are left out."""
    argv = ["lsblk", "-J", "-b", "-o", "NAME,TYPE,SIZE,FSTYPE,UUID,LABEL,MOUNTPOINTS,PTTYPE"]
    tree = parse_json(node.command("lsblk.json", argv), {})
    seen = {}
    waiting = list(tree.get("blockdevices", []))
    while waiting:
        item = waiting.pop()
        seen[item.get("name")] = item
        waiting += item.get("children", [])

    def signature(name):
        item = seen.get(name, {})
        known = {key: item.get(key) for key in ("fstype", "uuid", "label")}
        known["holders"] = node.names(f"/sys/class/block/{name}/holders")
        return {**known, "mountpoints": [p for p in item.get("mountpoints") or [] if p]}

    by_id = "/dev/disk/by-id"
    ids = {entry: node.target(f"{by_id}/{entry}").rpartition("/")[2] for entry in node.names(by_id)}

    disks = []
    for name in node.names("/sys/block"):
        base = f"/sys/block/{name}"
        sectors = node.number(f"{base}/size")
        if re.match(r"(loop|ram|zram|sr|nbd)\d", name) or not sectors:
            continue
        parts = [n for n in node.names(base) if n.startswith(name) and node.path(f"{base}/{n}/partition").exists()]
        held = signature(name)
        empty = not (parts or held["fstype"] or held["mountpoints"] or held["holders"])
        disks.append(
            {
                "name": name,
                "ids": sorted(entry for entry, target in ids.items() if target == name),
                "logical_block_bytes": node.number(f"{base}/queue/logical_block_size"),
                "table": seen.get(name, {}).get("pttype"),
                "signatures": read_signatures(node, name) if empty else None,
                "size_bytes": sectors * 512,  # the kernel counts in 512 bytes whatever the disk's sector is
                "model": node.text(f"{base}/device/model"),
                "serial": node.text(f"{base}/device/serial"),
                "rotational": node.number(f"{base}/queue/rotational") == 1,
                "partitions": [
                    {"name": part, "size_bytes": (node.number(f"{base}/{part}/size") or 0) * 512, **signature(part)}
                    for part in parts
                ],
                **held,
            }
        )
    return disks


def read_signatures(node, name):
    """Kinds of everything that marks a disk as used (file systems, tables, RAID ...); None where it cannot be told."""
    answer = parse_json(node.command(f"wipefs-{name}.json", ["wipefs", "--json", "--no-act", f"/dev/{name}"]), {})
    found = answer.get("signatures")
    return [item.get("type") for item in found] if isinstance(found, list) else None


def read_weights(node, path):
    """What lies under the weights path: whole files, and apart from them those still being written."""
    facts = {"path": path or None, "exists": False, "filesystem": None, "files": [], "partial": []}
    if not path:
        return facts
    facts["filesystem"] = read_filesystem(node, read_mounts(node), path)
    base = node.path(path)
    facts["exists"] = base.is_dir()
    count = 0
    for directory, folders, names in os.walk(base):
        folders.sort()
        inside = Path(directory).relative_to(base)
        hidden = any(part.startswith(".") for part in inside.parts)
        for name in sorted(names):
            count += 1
            if count > MOST_FILES:
                return facts
            file = Path(directory) / name
            size = begun = None  # a link that leads nowhere
            with contextlib.suppress(OSError):
                about = file.stat()
                size = begun = about.st_size
                if node.live:
                    begun = min(size, about.st_blocks * 512)  # parts have holes
            entry = {"path": str(inside / name), "size": size}
            if hidden or PARTIAL.search(name):
                facts["partial"].append({**entry, "size": begun})
            else:
                facts["files"].append({**entry, "symlink": file.is_symlink()})
    return facts


def read_docker(node, images, rank_name):
    """The engine, its settings, images and containers."""
    programs = ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd", "/snap/bin/docker")
    settings = read_daemon_json(node)
    facts = {
        "installed": any(node.path(p).exists() for p in programs),
        "reachable": False,
        "error": None,
        "version": None,
        "api_version": None,
        "storage_driver": None,
        "image_store": None,
        "data_root": None,
        "filesystem": None,
        "containerd_root": None,
        "containerd_configured": parse_containerd_root(node.text("/etc/containerd/config.toml")),
        "nvidia_ctk": node.path("/usr/bin/nvidia-ctk").exists(),
        "live_restore": None,
        "cgroup_version": None,
        "default_runtime": None,
        "runtimes": [],
        "daemon_json": settings,
        "default_ulimits": (settings["parsed"] or {}).get("default-ulimits") or {},
        "images": [],
        "containers": [],
    }
    asleep = docker_asleep(node)
    version, problem = (None, asleep) if asleep else node.docker("/version")
    if version is None:
        facts["error"] = problem
        return facts
    info = node.docker("/info")[0] or {}
    status = dict(pair for pair in info.get("DriverStatus") or [] if len(pair) == 2)
    containerd = status.get("driver-type", "").startswith("io.containerd.snapshotter")
    root = info.get("DockerRootDir")
    facts.update(
        installed=True,
        reachable=True,
        version=version.get("Version"),
        api_version=version.get("ApiVersion"),
        storage_driver=info.get("Driver"),
        image_store=("containerd" if containerd else "classic") if info else None,
        data_root=root,
        live_restore=info.get("LiveRestoreEnabled"),
        cgroup_version=whole(info.get("CgroupVersion")),
        default_runtime=info.get("DefaultRuntime"),
        runtimes=sorted(info.get("Runtimes") or {}),
    )
    # With the containerd image store, images live under containerd's root and not under Docker's.
    facts["containerd_root"] = facts["containerd_configured"] if containerd else None
    place = facts["containerd_root"] or root
    facts["filesystem"] = read_filesystem(node, read_mounts(node), place) if place else None
    facts["images"] = [read_image(node, item, images) for item in node.docker("/images/json")[0] or []]
    facts["containers"] = [
        read_container(node, item, rank_name) for item in node.docker("/containers/json?all=true")[0] or []
    ]
    return facts


def docker_asleep(node):
    """Why Docker is not to be asked: a mount it requires is away, which its socket would wait for. Else empty.

    A Docker that was merely stopped is asked: its socket starts it, and what it holds is known.
    """
    if node.live and node.docker_socket != DOCKER_SOCKET:
        return ""
    argv = ["systemctl", "show", "--property=LoadState,ActiveState,Requires", "docker.service"]
    lines = (node.command("docker-unit.txt", argv) or "").splitlines()
    unit = dict(line.split("=", 1) for line in lines if "=" in line)
    # Names with a backslash are quoted: "srv-weights\\x2d1.mount" tells srv-weights\x2d1.mount.
    mounts = [name for name in shlex.split(unit.get("Requires", "")) if name.endswith(".mount")]
    state = unit.get("ActiveState")
    if unit.get("LoadState") != "loaded" or state not in ("inactive", "failed") or not mounts:
        return ""
    argv = ["systemctl", "show", "--property=Id,ActiveState", *mounts]
    held = parse_units(node.command("docker-mounts.txt", argv), mounts)
    away = [name for name in mounts if held[name]["active"] in ("inactive", "failed")]
    return f"docker.service is {state}: it requires {', '.join(away)}" if away else ""


def read_daemon_json(node):
    """daemon.json as parsed, or its text and what is wrong with it."""
    path = "/etc/docker/daemon.json"
    text = node.text(path)
    facts = {"path": path, "exists": text is not None, "parsed": None, "error": None, "text": None}
    if text:
        try:
            facts["parsed"] = json.loads(text)
            if not isinstance(facts["parsed"], dict):
                facts.update(parsed=None, text=text, error="not a JSON object")
        except ValueError as problem:
            facts.update(text=text, error=str(problem))
    return facts


def read_image(node, item, wanted):
    """One image, with what only inspecting it tells. Layers of all images say what of a new one is there already."""
    tags = [tag for tag in item.get("RepoTags") or [] if tag != "<none>:<none>"]
    name = next((t for t in tags if t in wanted), str(item.get("Id")))
    inspect = node.docker(f"/images/{urllib.parse.quote(name, safe=':/')}/json")[0] or {}
    config = inspect.get("Config") or {}
    return {
        "id": item.get("Id"),
        "tags": tags,
        "digests": [d for d in item.get("RepoDigests") or [] if d != "<none>@<none>"],
        "size": item.get("Size"),
        "inspected": bool(inspect),
        "entrypoint": list(config.get("Entrypoint") or []),
        "layers": (inspect.get("RootFS") or {}).get("Layers") or [],
    }


def read_container(node, item, rank_name):
    """One container; when it started, its restart policy and what it was made from only for ours."""
    names = [name.lstrip("/") for name in item.get("Names") or []]
    ours = any(rank_container.is_rank(name, item.get("Labels"), rank_name) for name in names)
    inspect = node.docker(f"/containers/{item.get('Id')}/json")[0] or {} if ours else {}
    state = inspect.get("State") or {}
    host = inspect.get("HostConfig") or {}
    image = node.docker(f"/images/{item.get('ImageID')}/json")[0] if inspect else None
    return {
        "id": item.get("Id"),
        "name": rank_name if rank_name in names else (names or [None])[0],
        "ours": ours,
        "image": item.get("Image"),
        "image_id": item.get("ImageID"),
        "state": item.get("State"),
        "status": item.get("Status"),
        "created": item.get("Created"),
        "started_at": state.get("StartedAt"),
        "exit_code": state.get("ExitCode"),
        "restart_policy": (host.get("RestartPolicy") or {}).get("Name"),
        "labels": rank_container.labels(item.get("Labels")),
        "network_mode": (item.get("HostConfig") or {}).get("NetworkMode"),
        "ports": sorted({p["PublicPort"] for p in item.get("Ports") or [] if p.get("PublicPort")}),
        "key_differs": key_in(inspect) != read_key(node) if inspect.get("Config") else None,
        "made_from": made_from(inspect, image) if inspect.get("Config") else None,
    }


def key_in(inspect):
    """The API key an inspected container was made with, to be compared here and told nobody; empty without one."""
    return key_file.key_in(inspect["Config"].get("Env") or [])


def read_key(node):
    """The API key this node keeps; empty where it keeps none."""
    return key_file.key_in((node.text(key_file.PATH) or "").splitlines())


def made_from(inspect, image):
    """Of an inspected container what a plan decides, in the plan's words; ``image`` is its image, inspected."""
    config, host = inspect["Config"], inspect.get("HostConfig") or {}
    inherited = ((image or {}).get("Config") or {}).get("Env") or []
    requests = [r for r in host.get("DeviceRequests") or [] if ["gpu"] in (r.get("Capabilities") or [])]
    gpus = [r.get("DeviceIDs") or ("all" if r.get("Count") == -1 else str(r.get("Count"))) for r in requests]
    devices = [(d.get("PathOnHost"), d.get("PathInContainer")) for d in host.get("Devices") or []]
    return {
        "argv": hidden_options([*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]),
        "env": environment(pair for pair in config.get("Env") or [] if pair not in inherited and not is_key(pair)),
        "env_of_image": None if image is None else environment(inherited),
        "ulimits": {u["Name"]: f"{u['Soft']}:{u['Hard']}" for u in host.get("Ulimits") or []},
        "cap_add": sorted(name.removeprefix("CAP_") for name in host.get("CapAdd") or []),
        "devices": sorted(path if path == inside else f"{path}:{inside}" for path, inside in devices),
        "gpus": gpus[0] if gpus and isinstance(gpus[0], str) else ",".join(gpus[0] if gpus else []),
        "mounts": sorted(
            (
                {
                    "type": m.get("Type"),
                    "source": m.get("Source"),
                    "target": m.get("Destination"),
                    "read_only": not m.get("RW"),
                }
                for m in inspect.get("Mounts") or []
            ),
            key=lambda mount: mount["target"] or "",
        ),
        "memory_bytes": host.get("Memory") or 0,
        "shm_bytes": host.get("ShmSize") or 0,
    }


def is_key(pair):
    """Whether a ``KEY=value`` string is the API key, which no plan decides."""
    return pair.startswith(f"{key_file.NAME}=")


def environment(pairs):
    """``KEY=value`` strings as a dict, what may be a secret hidden."""
    env = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return {key: hidden(key, value) for key, value in sorted(env.items())}


def hidden(name, value):
    """The value, unless its name says that it is a secret; without the login of an address in it."""
    return HIDDEN if SECRET.search(name.replace("-", "_")) else re.sub(r"://[^/@\s]+@", f"://{HIDDEN}@", value)


def hidden_options(argv):
    """An argument list with the values of secret options hidden."""
    option, words = "", []
    for word in argv:
        if word.startswith("-"):
            option, equals, value = word.partition("=")
            words.append(option + equals + (hidden(option, value) if equals else ""))
        else:
            words.append(hidden(option, word))
    return words


def read_listeners(node, ports):
    """Who listens on ``ports``: process and container where /proc tells (root sees all)."""
    wanted = set(ports)
    tables = ("tcp", "tcp6") if wanted else ()
    found = [one for name in tables for one in parse_listeners(node.text(f"/proc/net/{name}"), wanted)]
    owners = socket_owners(node, {inode for _port, _address, inode in found}) if found else {}
    listeners = []
    for port, address, inode in sorted(found):
        pid = owners.get(inode)
        process = {"pid": pid, "process": node.text(f"/proc/{pid}/comm") if pid else None}
        listeners.append({"port": port, "address": address, **process, "container": container_of(node, pid)})
    return listeners


def socket_owners(node, inodes):
    """Socket inode -> a process that holds it."""
    owners = {}
    for pid in (name for name in node.names("/proc") if name.isdigit()):
        if len(owners) == len(inodes):
            break
        for descriptor in node.names(f"/proc/{pid}/fd"):
            try:
                target = str(node.path(f"/proc/{pid}/fd/{descriptor}").readlink())
            except OSError:
                continue
            match = re.match(r"socket:\[(\d+)\]$", target)
            if match and match.group(1) in inodes:
                owners.setdefault(match.group(1), int(pid))
    return owners


def container_of(node, pid):
    """Id of the container of this node a process runs in, by its cgroup; None outside of containers.

    A node that is a container itself has its own id in every path: that of process 1, which does not count.
    """

    def ids(number):
        return re.findall(r"docker[/-]([0-9a-f]{64})", node.text(f"/proc/{number}/cgroup") or "")

    inner = [found for found in ids(pid) if found not in ids(1)] if pid else []
    return inner[-1] if inner else None


def read_user(node):
    """Who runs this (uid 0 proves that becoming root worked), and the groups of who logged in."""
    if node.live:
        uid = os.geteuid()
        login = os.environ.get("SUDO_USER") or pwd.getpwuid(uid).pw_name
    else:
        known = parse_json(node.recorded("user.json"), {})
        uid, login = known.get("uid"), known.get("login")
    groups = parse_groups(node.text("/etc/passwd"), node.text("/etc/group"), login)
    if node.live and not groups:  # a directory service's user
        groups = sorted(group.gr_name for group in grp.getgrall() if login in group.gr_mem)
    return {"uid": uid, "login": login, "groups": groups}


def read_users(node, names):
    """User name -> uid (None where there is none), groups, and whether its services outlive its sessions."""
    passwd, group = node.text("/etc/passwd"), node.text("/etc/group")
    known = {f[0]: whole(f[2]) for f in (line.split(":") for line in (passwd or "").splitlines()) if len(f) > 3}
    users = {}
    for name in names:
        uid = known.get(name)
        if uid is None and node.live:  # a directory service's user
            with contextlib.suppress(KeyError):
                uid = pwd.getpwnam(name).pw_uid
        users[name] = {
            "uid": uid,
            "groups": parse_groups(passwd, group, name),
            "linger": node.path(f"/var/lib/systemd/linger/{name}").exists(),
        }
    return users


def read_file(node, name):
    """One path: kind, sum of a small regular file, mode and owners. A recorded tree has root's files only."""
    keys = ("kind", "sha256", "mode", "owner", "group", "modified")
    facts = {"exists": False, **dict.fromkeys(keys)}
    path = node.path(name)
    try:
        status = path.lstat()
        mode = status.st_mode
        kinds = {"file": stat.S_ISREG(mode), "directory": stat.S_ISDIR(mode), "link": stat.S_ISLNK(mode)}
        kind = next((kind for kind, so in kinds.items() if so), "other")
        facts.update(exists=True, kind=kind, mode=f"{stat.S_IMODE(mode):04o}", owner="root", group="root")
        facts["modified"] = int(status.st_mtime)
        if node.live:
            facts.update(owner=owner_name(pwd.getpwuid, status.st_uid), group=owner_name(grp.getgrgid, status.st_gid))
        if kind == "file" and status.st_size <= MOST_BYTES:
            facts["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        pass
    return facts


def owner_name(lookup, number):
    """The name of a user or group number, or the number as text."""
    try:
        return lookup(number)[0]
    except KeyError:
        return str(number)


def read_units(node, names):
    """systemd unit -> load (not-found without), enabled, active, since when, stale; None where it does not tell."""
    properties = "--property=Id,LoadState,UnitFileState,ActiveState,ActiveEnterTimestamp,NeedDaemonReload"
    argv = ["systemctl", "show", "--timestamp=unix", properties, *names]
    return parse_units(node.command("systemctl-show.txt", argv), names) if names else {}


def read_probe(node):
    """What the storage role's probe measured last, empty where it never ran."""
    return parse_json(node.text(PROBE), {})


def read_anchor(node):
    """The newest entry of the change history this node knows of, empty where it knows none."""
    held = parse_json(node.text(ANCHOR), {})
    return held if isinstance(held, dict) else {}


def read_python(node):
    """The interpreter Ansible uses here, and whether it has what the Docker modules need."""
    if not node.live:
        return {"executable": None, "version": None, "requests": None, **parse_json(node.recorded("python.json"), {})}
    return {
        "executable": sys.executable,
        "version": ".".join(map(str, sys.version_info[:3])),
        "requests": importlib.util.find_spec("requests") is not None,
    }


def read_sysctls(node, names):
    """sysctl name -> text, None where the kernel has none."""
    return {name: node.text("/proc/sys/" + name.replace(".", "/")) for name in names}


# --- all of it ---------------------------------------------------------------------------------------------------


def sections(node, options):
    """Every section by name: a function of no arguments."""
    return {
        "system": lambda: read_system(node),
        "memory": lambda: read_memory(node),
        "gpu": lambda: read_gpu(node),
        "rdma": lambda: read_rdma(node),
        "network": lambda: read_links(node),
        "lossless": lambda: read_lossless(node),
        "netplan": lambda: read_netplan(node),
        "firewall": lambda: read_firewall(node),
        "mounts": lambda: read_mounts(node),
        "block_devices": lambda: read_blocks(node),
        "weights": lambda: read_weights(node, options["weights_path"]),
        "docker": lambda: read_docker(node, options["images"], options["rank_name"]),
        "listeners": lambda: read_listeners(node, options["ports"]),
        "sysctls": lambda: read_sysctls(node, options["sysctls"]),
        "files": lambda: {name: read_file(node, name) for name in options["files"]},
        "units": lambda: read_units(node, options["units"]),
        "users": lambda: read_users(node, options["users"]),
        "packages": lambda: parse_packages(node.text("/var/lib/dpkg/status"), options["packages"]),
        "fstab": lambda: parse_fstab(node.text("/etc/fstab")),
        "storage_probe": lambda: read_probe(node),
        "anchor": lambda: read_anchor(node),
        "api_key": lambda: bool(read_key(node)),
        "limits": lambda: parse_limits(node.text("/proc/self/limits")),
        "user": lambda: read_user(node),
        "python": lambda: read_python(node),
    }


def run_bounded(tasks, timeout):
    """Run tasks at the same time: ``(results, names that gave none in time, name -> error)``.

    Threads are daemons: one that hangs in the kernel (a dead network mount, a wedged driver) is left behind.
    """
    results, problems = {}, {}

    def run(name, task):
        try:
            results[name] = task()
        except Exception as problem:  # a section that breaks must not hide the others
            problems[name] = f"{type(problem).__name__}: {problem}"

    threads = {name: threading.Thread(target=run, args=(name, task), daemon=True) for name, task in tasks.items()}
    end = time.monotonic() + timeout
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, end - time.monotonic()))
    late = sorted(name for name in tasks if name not in results and name not in problems)
    return dict(results), late, dict(problems)


def gather(root="/", timeout=15.0, docker_socket=DOCKER_SOCKET, **options):
    """The facts of schema 1 as a plain dict. ``options`` as the module's: what is left out is not read."""
    begun = time.monotonic()
    lists = ("images", "ports", "sysctls", "files", "units", "users", "packages")
    options = {"weights_path": "", "rank_name": "gb10-rank", **{name: [] for name in lists}, **options}
    # A command is given up a little before its section is, so that the section's other facts still count.
    node = Node(root, max(timeout - 1.0, timeout / 2), docker_socket)
    results, late, problems = run_bounded(sections(node, options), timeout)
    missing = [*late, *problems]
    if missing:
        nowhere = sections(Node("/nonexistent"), options)
        for name in missing:
            results[name] = nowhere[name]()
    facts = {"schema": SCHEMA, **results.pop("system"), **results.pop("network"), **results}
    facts["read"] = {"seconds": round(time.monotonic() - begun, 3), "timed_out": late, "errors": problems}
    return facts


def main():
    """Entry of the Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "weights_path": {"type": "str", "default": ""},
            "images": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
            "sysctls": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "list", "elements": "str", "default": []},
            "units": {"type": "list", "elements": "str", "default": []},
            "users": {"type": "list", "elements": "str", "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "rank_name": {"type": "str", "default": "gb10-rank"},
            "docker_socket": {"type": "path", "default": DOCKER_SOCKET},
            "timeout": {"type": "float", "default": 15.0},
        },
        supports_check_mode=True,
    )
    if not Path(module.params["root"]).is_dir():
        module.fail_json(msg=f"root {module.params['root']} is no directory; give / or a recorded tree.")
    if module.params["timeout"] <= 0:
        module.fail_json(msg=f"timeout is {module.params['timeout']:g} but must be more than 0 seconds.")
    module.exit_json(changed=False, gb10=gather(**module.params))


if __name__ == "__main__":
    main()
