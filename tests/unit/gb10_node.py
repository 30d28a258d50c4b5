"""Recorded trees of a GB10 node, built from a compact description: what sysfs, procfs and Docker show there."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gb10

REPOSITORY = Path(__file__).parents[2]

sys.modules.setdefault("ansible.module_utils.gb10", gb10)  # as ansible.cfg has it for modules
_spec = importlib.util.spec_from_file_location("gb10_facts", REPOSITORY / "library" / "gb10_facts.py")
assert _spec is not None
assert _spec.loader is not None
gb10_facts = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gb10_facts)

GIB = 1 << 30
TOTAL_KIB = 127_601_788  # 121.69 GiB, MemTotal of a GB10
WEIGHTS = "/data/models/deepseek-v4.1-flash"
IMAGE = "vllm-dsv41:latest"
IMAGE_ID = "sha256:" + "a1" * 32
RANK_ID = "c0" * 32
KERNEL = "6.17.0-1032-nvidia"

V1, V2 = "IB/RoCE v1", "RoCE v2"


def mapped(address: str) -> str:
    """An IPv4 address as sysfs writes it in a GID table."""
    a, b, c, d = map(int, address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


@dataclass
class Hca:
    """An RDMA device with one port; ``gids``: index -> (type, GID)."""

    name: str
    netdev: str
    state: str = "4: ACTIVE"
    rate: str = "200 Gb/sec (2X NDR)"
    active_mtu: int | None = 4096
    gids: dict[int, tuple[str, str]] = field(default_factory=dict)


@dataclass
class Link:
    """A network interface; ``addresses``: IPv4 with prefix length."""

    name: str
    addresses: list[str] = field(default_factory=list)
    mtu: int = 9000
    operstate: str = "up"
    speed: int = 200000
    carrier: bool | None = None
    """None: reading it fails, as on an interface that is not up."""


@dataclass
class Disk:
    """A whole disk beside the system's. ``signatures`` of None: wipefs gives no answer."""

    name: str = "nvme1n1"
    serial: str = "S7NEW001"
    fstype: str | None = None
    uuid: str | None = None
    label: str | None = None
    table: str | None = None
    mountpoints: list[str] = field(default_factory=list)
    signatures: list[str] | None = field(default_factory=list)
    partitions: dict[str, str | None] = field(default_factory=dict)
    """Name -> file system."""
    holders: list[str] = field(default_factory=list)


@dataclass
class NodeTree:
    """One node. ``write`` makes the tree, ``facts`` what the module reads from it."""

    hostname: str = "spark-153"
    release: str = KERNEL
    cmdline: str = "BOOT_IMAGE=/boot/vmlinuz root=UUID=1b2c ro quiet"
    os_release: dict[str, str] = field(
        default_factory=lambda: {
            "ID": "ubuntu",
            "ID_LIKE": "debian",
            "VERSION_ID": "24.04",
            "PRETTY_NAME": "Ubuntu 24.04.3 LTS",
        }
    )
    machine: str = "aarch64"
    meminfo: dict[str, int] = field(
        default_factory=lambda: {"MemTotal": TOTAL_KIB, "MemAvailable": 117 << 20, "CmaTotal": 0, "CmaFree": 0}
    )
    driver: str = "580.178.04"
    gpus: str = "NVIDIA GB10, GPU-0f1e, 580.178.04, 12.1\n"
    gpu_apps: str = ""
    hcas: list[Hca] = field(default_factory=list)
    char_devices: list[str] = field(default_factory=lambda: ["uverbs0", "uverbs1", "rdma_cm"])
    links: list[Link] = field(default_factory=list)
    dcb: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Interface -> what ``dcb -j app show`` and ``dcb -j pfc show`` print, merged; without an entry: no DCB."""
    netplan: dict[str, str] = field(default_factory=dict)
    """Files of /etc/netplan by name; None of them: the program is there all the same."""
    nft: dict[str, Any] | None = None
    programs: tuple[str, ...] = ("usr/sbin/dcb", "usr/sbin/nft", "usr/sbin/netplan")
    system: dict[str, str] = field(default_factory=dict)
    """Further files by absolute path."""
    route: list[dict[str, str]] = field(default_factory=list)
    mounts: list[str] = field(
        default_factory=lambda: [
            "/dev/nvme0n1p2 / ext4 rw,relatime 0 0",
            "proc /proc proc rw 0 0",
            "/dev/nvme0n1p3 /data ext4 rw,noatime 0 0",
            "overlay /var/lib/docker/overlay2/x/merged overlay rw 0 0",
        ]
    )
    disks: list[Disk] = field(default_factory=list)
    space: dict[str, tuple[int, int]] = field(
        default_factory=lambda: {"/": (900 * GIB, 400 * GIB), "/data": (3600 * GIB, 3000 * GIB)}
    )
    files: dict[str, int | str] = field(default_factory=dict)
    """Under the weights path: sparse files of that size, or links to that target."""
    weights_dir: bool = True
    docker: dict[str, Any] | None = field(default_factory=dict)
    """Docker API answers over those of a healthy engine; None: not installed."""
    daemon_json: str | None = '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'
    tcp: list[tuple[str, int, int]] = field(default_factory=list)
    """Listeners: address in hexadecimal as /proc/net/tcp has it, port, inode."""
    processes: dict[int, tuple[str, str, list[int]]] = field(default_factory=dict)
    """pid -> (comm, cgroup, socket inodes)."""
    uid: int = 0
    requests: bool = True

    def facts(self, root: Path, **options: Any) -> dict[str, Any]:
        """The module's ``gb10`` document of this node, as it arrives on the controller (through JSON)."""
        settings = {"weights_path": WEIGHTS, "images": [IMAGE], "ports": [8000, 29501], **options}
        return json.loads(json.dumps(gb10_facts.gather(root=str(self.write(root / self.hostname)), **settings)))

    def write(self, root: Path) -> Path:
        """The tree under ``root``."""
        self._system(root)
        self._network(root)
        self._disks(root)
        self._docker(root)
        for pid, (comm, cgroup, inodes) in self.processes.items():
            put(root, f"proc/{pid}/comm", comm + "\n")
            put(root, f"proc/{pid}/cgroup", cgroup + "\n")
            for number, inode in enumerate(inodes):
                descriptor = root / f"proc/{pid}/fd/{number}"
                descriptor.parent.mkdir(parents=True, exist_ok=True)
                descriptor.symlink_to(f"socket:[{inode}]")
        return root

    def _system(self, root: Path) -> None:
        put(root, "proc/sys/kernel/hostname", self.hostname + "\n")
        put(root, "proc/sys/kernel/osrelease", self.release + "\n")
        put(root, "proc/sys/vm/min_free_kbytes", "67584\n")
        put(root, "proc/cmdline", self.cmdline + "\n")
        put(root, "proc/meminfo", "".join(f"{name + ':':<16}{value:>10} kB\n" for name, value in self.meminfo.items()))
        put(
            root,
            "proc/self/limits",
            f"{'Limit':<26}{'Soft Limit':<21}{'Hard Limit':<21}Units\n"
            f"{'Max stack size':<26}{'8388608':<21}{'unlimited':<21}bytes\n"
            f"{'Max open files':<26}{'1024':<21}{'1048576':<21}files\n"
            f"{'Max locked memory':<26}{'unlimited':<21}{'unlimited':<21}bytes\n",
        )
        put(root, "etc/os-release", "".join(f'{key}="{value}"\n' for key, value in self.os_release.items()))
        put(root, "etc/dgx-release", 'DGX_NAME="DGX Spark"\nDGX_OTA_VERSION="7.4.0"\n')
        put(root, "etc/passwd", "root:x:0:0:root:/root:/bin/bash\nnvidia:x:1000:1000::/home/nvidia:/bin/bash\n")
        put(root, "etc/group", "root:x:0:\nsudo:x:27:nvidia\nnvidia:x:1000:\ndocker:x:999:other\n")
        if self.driver:
            version = f"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {self.driver}  Release Build\n"
            put(root, "proc/driver/nvidia/version", version)
        put(root, "gb10/machine.txt", self.machine)
        put(root, "gb10/systemctl.txt", "running\n")
        put(root, "gb10/nvidia-smi-gpu.csv", self.gpus)
        put(root, "gb10/nvidia-smi-apps.csv", self.gpu_apps)
        put(root, "gb10/user.json", json.dumps({"uid": self.uid, "login": "nvidia"}))
        python = {"executable": "/usr/bin/python3", "version": "3.12.3", "requests": self.requests}
        put(root, "gb10/python.json", json.dumps(python))

    def _network(self, root: Path) -> None:
        recorded = []
        for link in self.links:
            base = f"sys/class/net/{link.name}"
            for name, value in (
                ("operstate", link.operstate),
                ("mtu", link.mtu),
                ("speed", link.speed),
                ("address", "fc:4c:ea:03:00:f9"),
            ):
                put(root, f"{base}/{name}", f"{value}\n")
            if link.carrier is not None:
                put(root, f"{base}/carrier", f"{int(link.carrier)}\n")
            (root / base / "device").mkdir()
            entries = [a.split("/") for a in link.addresses]
            info = [{"family": "inet", "local": a, "prefixlen": int(p)} for a, p in entries]
            recorded.append(
                {"ifname": link.name, "addr_info": [*info, {"family": "inet6", "local": "fe80::1", "prefixlen": 64}]}
            )
        put(root, "gb10/ip-addr.json", json.dumps(recorded))
        put(root, "gb10/ip-route.json", json.dumps(self.route))
        header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        idle = "00000000:00000000 00:00000000 00000000     0        0"
        rows = [
            f"   {n}: {address}:{port:04X} 00000000:0000 0A {idle} {inode} 1 0000000000000000 100 0 0 10 0\n"
            for n, (address, port, inode) in enumerate(self.tcp)
        ]
        put(root, "proc/net/tcp", header + "".join(rows))
        devinfo = ""
        for hca in self.hcas:
            base = f"sys/class/infiniband/{hca.name}"
            (root / base / "device/net" / hca.netdev).mkdir(parents=True)
            put(root, f"{base}/ports/1/state", hca.state + "\n")
            put(root, f"{base}/ports/1/link_layer", "Ethernet\n")
            put(root, f"{base}/ports/1/rate", hca.rate + "\n")
            for index in range(7 if hca.gids else 1):  # a real port has 256, all present and most of them zero
                kind, gid = hca.gids.get(index, ("", "0000:0000:0000:0000:0000:0000:0000:0000"))
                put(root, f"{base}/ports/1/gids/{index}", gid + "\n")
                if kind:  # reading the attributes of an unset entry fails with EINVAL
                    put(root, f"{base}/ports/1/gid_attrs/types/{index}", kind + "\n")
                    put(root, f"{base}/ports/1/gid_attrs/ndevs/{index}", hca.netdev + "\n")
            if hca.active_mtu:
                devinfo += f"hca_id:\t{hca.name}\n\tphys_port_cnt:\t1\n\t\tport:\t1\n"
                devinfo += f"\t\t\tactive_mtu:\t\t{hca.active_mtu} (5)\n\n"
        put(root, "gb10/ibv-devinfo.txt", devinfo)
        for program in self.programs:
            put(root, program, "")
        for netdev, told in self.dcb.items():
            put(root, f"gb10/dcb-app-{netdev}.json", json.dumps({k: v for k, v in told.items() if k == "dscp_prio"}))
            put(root, f"gb10/dcb-pfc-{netdev}.json", json.dumps({k: v for k, v in told.items() if k != "dscp_prio"}))
        for name, text in self.netplan.items():
            put(root, f"etc/netplan/{name}", text)
        for path, text in self.system.items():
            put(root, path.lstrip("/"), text)
        if self.nft is not None:
            put(root, "gb10/nft.json", json.dumps(self.nft))
        for name in self.char_devices:
            put(root, f"dev/infiniband/{name}", "")

    def _disks(self, root: Path) -> None:
        put(root, "proc/self/mounts", "".join(line + "\n" for line in self.mounts))
        space = {path: {"total_bytes": total, "free_bytes": free} for path, (total, free) in self.space.items()}
        put(root, "gb10/statvfs.json", json.dumps(space))
        base = "sys/block/nvme0n1"
        put(root, f"{base}/size", "7814037168\n")
        put(root, f"{base}/queue/rotational", "0\n")
        put(root, f"{base}/device/model", "SAMSUNG MZALC4T0HBL1-00B07                \n")
        put(root, f"{base}/device/serial", "S7FXNX0Y\n")
        put(root, f"{base}/nvme0n1p3/partition", "3\n")
        put(root, f"{base}/nvme0n1p3/size", "7000000000\n")
        put(root, "sys/block/loop0/size", "8\n")
        put(root, f"{base}/queue/logical_block_size", "512\n")
        put(root, f"{base}/nvme0n1p2/partition", "2\n")
        put(root, f"{base}/nvme0n1p2/size", "800000000\n")
        link = root / "dev/disk/by-id/nvme-SAMSUNG_MZALC4T0HBL1_S7FXNX0Y"
        link.parent.mkdir(parents=True)
        link.symlink_to("../../nvme0n1")
        parts = [
            {"name": "nvme0n1p2", "fstype": "ext4", "uuid": "1b-2c", "label": None, "mountpoints": ["/"]},
            {"name": "nvme0n1p3", "fstype": "ext4", "uuid": "9a-11", "label": None, "mountpoints": ["/data"]},
        ]
        system = {"name": "nvme0n1", "fstype": None, "uuid": None, "mountpoints": [None], "pttype": "gpt"}
        tree = {"blockdevices": [{**system, "children": parts}]}
        for disk in self.disks:
            base = f"sys/block/{disk.name}"
            put(root, f"{base}/size", "7814037168\n")
            put(root, f"{base}/device/serial", f"{disk.serial}      \n")
            for holder in disk.holders:
                (root / f"sys/class/block/{disk.name}/holders/{holder}").mkdir(parents=True)
            for name in disk.partitions:
                put(root, f"{base}/{name}/partition", "1\n")
            keys = {"fstype": disk.fstype, "uuid": disk.uuid, "label": disk.label, "pttype": disk.table}
            children = [{"name": n, "fstype": f, "uuid": f and f"{n}-uuid"} for n, f in disk.partitions.items()]
            tree["blockdevices"].append(
                {"name": disk.name, **keys, "mountpoints": disk.mountpoints, "children": children}
            )
            if disk.signatures is not None:
                told = {"signatures": [{"type": kind} for kind in disk.signatures]}
                put(root, f"gb10/wipefs-{disk.name}.json", json.dumps(told))
        put(root, "gb10/lsblk.json", json.dumps(tree))
        weights = root / WEIGHTS.lstrip("/")
        if self.weights_dir:
            weights.mkdir(parents=True)
        for name, what in self.files.items():
            file = weights / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(what, str):
                file.symlink_to(what)
            else:
                with file.open("wb") as stream:
                    stream.truncate(what)

    def _docker(self, root: Path) -> None:
        if self.daemon_json is not None:
            put(root, "etc/docker/daemon.json", self.daemon_json)
        if self.docker is None:
            return
        put(root, "usr/bin/dockerd", "")
        if "/version" in self.docker and self.docker["/version"] is None:
            return  # installed, does not answer
        put(root, "gb10/docker.json", json.dumps({**engine(), **self.docker}))


def put(root: Path, name: str, text: str) -> None:
    """A file of the tree."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def engine() -> dict[str, Any]:
    """Answers of a Docker with the rank image and nothing running."""
    return {
        "/version": {"Version": "28.5.1", "ApiVersion": "1.51"},
        "/info": {
            "Driver": "overlay2",
            "DriverStatus": [["Backing Filesystem", "extfs"]],
            "DockerRootDir": "/var/lib/docker",
            "LiveRestoreEnabled": False,
            "CgroupVersion": "2",
            "DefaultRuntime": "runc",
            "Runtimes": {"runc": {}, "nvidia": {}},
        },
        "/images/json": [image()],
        f"/images/{IMAGE}/json": inspect(),
        "/containers/json?all=true": [],
    }


def image(image_id: str = IMAGE_ID, tags: tuple[str, ...] = (IMAGE,)) -> dict[str, Any]:
    """An entry of the image list."""
    return {"Id": image_id, "RepoTags": list(tags), "RepoDigests": None, "Size": 33_800_000_000, "Created": 1}


def inspect(entrypoint: list[str] | None = None, layers: tuple[str, ...] = ("sha256:l1",)) -> dict[str, Any]:
    """An inspected image."""
    return {"Config": {"Entrypoint": entrypoint}, "RootFS": {"Layers": list(layers)}}


def container(
    name: str = "gb10-rank", state: str = "running", labels: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    """An entry of the container list; ours unless named otherwise."""
    ours = {"gb10.plan-hash": "ff" * 32, "gb10.rank": "0", "gb10.profile": "tp8-300k"}
    return {
        "Id": RANK_ID,
        "Names": [f"/{name}"],
        "Image": IMAGE,
        "ImageID": IMAGE_ID,
        "State": state,
        "Status": "Up 3 days",
        "Created": 2,
        "Labels": ours if labels is None else labels,
        "HostConfig": {"NetworkMode": "host"},
        "Ports": [],
        **more,
    }


def running(*containers: dict[str, Any], **answers: Any) -> dict[str, Any]:
    """Docker answers with these containers."""
    return {"/containers/json?all=true": list(containers), **answers}


def twins(octet: int, cabled: str = "f1", own_index: int = 3) -> tuple[list[Hca], list[Link]]:
    """Both QSFP ports with their twins, one of them cabled, and the management interface.

    Each live table has a link-local RoCE v2 entry at 1, another subnet's v2 entry before the own one, and the own v2
    entry at ``own_index`` (3 or 5).
    """
    hcas, links = [], [Link("enP7s7", [f"192.168.1.{octet}/24"], mtu=1500, speed=10000)]
    for prefix, subnet in (("", 0), ("P2", 2)):
        for port in ("f0", "f1"):
            hca, netdev = f"roce{prefix}p1s0{port}", f"en{prefix or ''}p1s0{port}np{port[1]}"
            if port != cabled:
                hcas.append(Hca(hca, netdev, "1: DOWN", "40 Gb/sec (4X QDR)", 1024))
                links.append(Link(netdev, [], operstate="down", speed=-1))
                continue
            address, other = f"192.168.{subnet}.{octet}", f"10.9.{subnet}.{octet}"
            gids = {
                0: (V1, "fe80:0000:0000:0000:fe4c:eaff:fef9:4231"),
                1: (V2, "fe80:0000:0000:0000:fe4c:eaff:fef9:4231"),
            }
            if own_index == 3:
                gids |= {2: (V2, mapped(other)), 3: (V2, mapped(address)), 4: (V1, mapped(address))}
            else:
                gids |= {
                    2: (V1, mapped(other)),
                    3: (V2, mapped(other)),
                    4: (V1, mapped(address)),
                    5: (V2, mapped(address)),
                }
            hcas.append(Hca(hca, netdev, gids=gids))
            links.append(Link(netdev, [f"{other}/24", f"{address}/24"]))
    return hcas, links


def spark(octet: int = 153, cabled: str = "f1", own_index: int = 3, **changes: Any) -> NodeTree:
    """A healthy node of the report's cluster, by the last octet of its address."""
    hcas, links = twins(octet, cabled, own_index)
    return replace(NodeTree(hostname=f"spark-{octet}", hcas=hcas, links=links), **changes)


def plan_of(*octets: int, **changes: Any) -> dict[str, Any]:
    """A plan with a rank on each of these nodes, in this order."""
    ranks = [
        {
            "rank": rank,
            "node": f"spark-{octet}",
            "address": f"192.168.0.{octet}",
            "image": IMAGE,
            "image_digest": IMAGE_ID,
            "env": {"NCCL_IB_HCA": "detected", "NCCL_SOCKET_IFNAME": "detected"},
            "devices": ["/dev/infiniband"],
            **changes,
        }
        for rank, octet in enumerate(octets)
    ]
    return {"profile": "tp8-300k", "head": f"spark-{octets[0]}", "ranks": ranks, "memory": {}, "findings": []}
