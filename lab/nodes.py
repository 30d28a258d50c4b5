"""The nodes of the lab: one systemd container each, with an address, ssh keys and disks of its own."""

from __future__ import annotations

import io
import resource
import shutil
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from lab.cache import digest
from lab.dockerd import docker
from lab.host import project
from lab.run import LabError, each, run, say

NETWORK = "gb10-lab"
SUBNET = "10.77.1.0/24"
MTU = 9000
USER = "nvidia"
USER_ID = 1000
LABEL = "gb10-lab.spec"
ENGINE_MOUNT = "/srv/lab/engine"
READY_SECONDS = 90
ALIVE_SECONDS = 8
PROBE_SECONDS = 15

# The last octet of each node's address, in rank order.
OCTETS = (153, 147, 157, 158, 161, 162, 166, 148)

# Linux capabilities by number (linux/capability.h), and the ones Docker gives unasked.
_BY_NUMBER = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
    SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
    MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
_UNASKED = """
    AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE NET_RAW SETFCAP SETGID SETPCAP SETUID
    SYS_CHROOT
"""
CAPABILITIES = _BY_NUMBER.split()
DOCKER_DEFAULT = frozenset(_UNASKED.split())
# Kernel 5.8 and 5.9 split these off SYS_ADMIN; older engines refuse their names and no node needs them.
NOT_NEEDED = frozenset({"PERFMON", "BPF", "CHECKPOINT_RESTORE"})


@dataclass(frozen=True)
class Node:
    """One lab node: its name, rank, and where its sshd listens."""

    rank: int
    name: str
    address: str
    port: int = 22

    @property
    def volumes(self) -> dict[str, str]:
        """The node's Docker volumes and where they are mounted in it."""
        return {f"{NETWORK}-{self.name}-docker": "/var/lib/docker", f"{NETWORK}-{self.name}-data": "/data"}


def first(count: int) -> list[Node]:
    """Return the first ``count`` nodes in rank order.

    Raises:
        LabError: there are not that many.
    """
    if not 1 <= count <= len(OCTETS):
        raise LabError(f"the lab has 1 to {len(OCTETS)} nodes, not {count}")
    return [Node(rank, f"spark-{octet}", f"10.77.1.{octet}") for rank, octet in enumerate(OCTETS[:count])]


def capability_options(bounding: int) -> list[str]:
    """Return the docker options that give a node all ``bounding`` capabilities (a CapBnd mask) and no other."""
    held = {name for number, name in enumerate(CAPABILITIES) if bounding >> number & 1}
    added = [f"--cap-add={name}" for name in CAPABILITIES if name in held - DOCKER_DEFAULT - NOT_NEEDED]
    dropped = [f"--cap-drop={name}" for name in CAPABILITIES if name in DOCKER_DEFAULT - held]
    return added + dropped


def bounding_set(status: str) -> int:
    """Return the CapBnd mask of a /proc/PID/status text."""
    for line in status.splitlines():
        if line.startswith("CapBnd:"):
            return int(line.split()[1], 16)
    raise LabError("/proc/self/status has no CapBnd line")


def limit_options(bounding: int, nofile_hard: int, memlock_hard: int, nr_open: int) -> list[str]:
    """Return docker's ulimit options: the real nodes' where the machine may raise limits, else its own hard limits.

    ``memlock_hard`` is in bytes, -1 for unlimited.
    """
    if bounding >> CAPABILITIES.index("SYS_RESOURCE") & 1:
        nofile, memlock = min(1048576, nr_open), -1
    else:
        nofile, memlock = nofile_hard, memlock_hard
    return [f"--ulimit=nofile={nofile}:{nofile}", f"--ulimit=memlock={memlock}:{memlock}"]


def cgroup_options(version: int) -> list[str]:
    """Return the docker options for systemd in a container under cgroup ``version`` 1 or 2."""
    if version == 2:
        return ["--cgroupns=private"]
    legacy = "systemd.unified_cgroup_hierarchy=0 SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"
    return ["--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw", f"--env=SYSTEMD_PROC_CMDLINE={legacy}"]


def create_options(node: Node, engine: Path) -> list[str]:
    """Return the options of ``docker create`` for ``node``, with the engine tree mounted read-only."""
    bounding = bounding_set(Path("/proc/self/status").read_text())
    version = 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1
    return [
        f"--name={node.name}",
        f"--hostname={node.name}",
        f"--network={NETWORK}",
        f"--ip={node.address}",
        *(f"--volume={volume}:{target}" for volume, target in node.volumes.items()),
        f"--volume={engine}:{ENGINE_MOUNT}:ro",
        "--tmpfs=/run:rw,exec,mode=755",
        "--tmpfs=/run/lock:rw,mode=1777",
        "--tmpfs=/tmp:rw,exec,mode=1777",
        "--shm-size=1g",
        "--pids-limit=-1",
        # A node that reboots itself comes back; one that is stopped or killed from outside stays down.
        "--restart=unless-stopped",
        "--stop-signal=SIGRTMIN+3",
        "--stop-timeout=20",
        "--security-opt=seccomp=unconfined",
        "--security-opt=apparmor=unconfined",
        "--security-opt=systempaths=unconfined",
        *capability_options(bounding),
        *limit_options(
            bounding,
            resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],
            int(Path("/proc/sys/fs/nr_open").read_text()),
        ),
        *cgroup_options(version),
    ]


class Keys:
    """The ssh keys of the lab under ``.lab/ssh``: the controller's, one host key per node, and known_hosts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.login = directory / "id_ed25519"
        self.known_hosts = directory / "known_hosts"

    def host(self, node: Node) -> Path:
        """Return the path of the node's private host key."""
        return self.directory / "hosts" / node.name

    def ensure(self, nodes: list[Node]) -> None:
        """Make the keys that are missing and write known_hosts for ``nodes``."""
        (self.directory / "hosts").mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        for path, comment in [(self.login, "gb10-lab"), *((self.host(node), node.name) for node in nodes)]:
            if not path.exists() or not _public(path).exists():
                path.unlink(missing_ok=True)
                run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)], timeout=30)
        lines = []
        for node in nodes:
            kind, key, *_ = _public(self.host(node)).read_text().split()
            place = node.address if node.port == 22 else f"[{node.address}]:{node.port}"
            lines.append(f"{node.name},{place} {kind} {key}\n")
        self.known_hosts.write_text("".join(lines))

    def archive(self, node: Node) -> bytes:
        """Return a tar of what goes into the node's root: its host key and the login user's authorized key."""
        buffer = io.BytesIO()
        host, login = self.host(node), _public(self.login)
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            add(tar, "etc/ssh/ssh_host_ed25519_key", host.read_bytes(), 0o600, 0)
            add(tar, "etc/ssh/ssh_host_ed25519_key.pub", _public(host).read_bytes(), 0o644, 0)
            add(tar, f"home/{USER}/.ssh", None, 0o700, USER_ID)
            add(tar, f"home/{USER}/.ssh/authorized_keys", login.read_bytes(), 0o600, USER_ID)
        return buffer.getvalue()

    def options(self) -> list[str]:
        """Return ssh options that use only these keys and check the host's."""
        return [
            "-o", f"UserKnownHostsFile={self.known_hosts}",
            "-o", "GlobalKnownHostsFile=/dev/null",
            "-o", "StrictHostKeyChecking=yes",
            "-o", "IdentitiesOnly=yes",
        ]  # fmt: skip

    def command(self, node: Node, *remote: str) -> list[str]:
        """Return the argv that runs ``remote`` on the node as the login user."""
        argv = ["ssh", "-F", "none", "-i", str(self.login), *self.options()]
        argv += ["-o", "ConnectTimeout=5", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]
        return [*argv, "-p", str(node.port), f"{USER}@{node.address}", *remote]


def _public(path: Path) -> Path:
    return path.with_name(f"{path.name}.pub")


def add(tar: tarfile.TarFile, name: str, data: bytes | None, mode: int, owner: int) -> None:
    """Add a file, or a directory where ``data`` is None, with its owner as user and group id."""
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
    entry.mode, entry.uid, entry.gid, entry.size = mode, owner, owner, len(data or b"")
    tar.addfile(entry, io.BytesIO(data or b""))


def keys() -> Keys:
    """Return the keys of this checkout's lab."""
    return Keys(project() / ".lab" / "ssh")


def ensure(nodes: list[Node], image: str, engine: Path) -> bool:
    """Make exactly ``nodes`` run and answer: missing ones are made, dead ones started, changed ones made anew.

    Returns whether anything had to be done.

    Raises:
        LabError: a node does not come up within READY_SECONDS; with what it says about itself.
    """
    keys().ensure(nodes)
    _ensure_network()
    known = existing()
    extra = sorted(set(known) - {node.name for node in nodes})
    if extra:
        say(f"removing {', '.join(extra)}")
        each(_remove, extra)
    started = each(lambda node: _ensure_node(node, image, engine, known.get(node.name)), nodes, workers=4)
    each(_ensure_ready, [node for node, fresh in zip(nodes, started, strict=True) if fresh])
    restarted = each(_ensure_alive, [node for node, fresh in zip(nodes, started, strict=True) if not fresh])
    return bool(extra) or any(started) or any(restarted)


def existing() -> dict[str, tuple[str, str]]:
    """Return each lab container's state (created, running, exited ...) and specification digest, by name."""
    columns = '{{.Names}} {{.State}} {{.Label "' + LABEL + '"}}'
    text = docker("container", "ls", "--all", "--filter", f"label={LABEL}", "--format", columns)
    return {name: (state, spec) for name, state, spec in (line.split() for line in text.splitlines())}


def _ensure_network() -> None:
    if docker("network", "ls", "--quiet", "--filter", f"name=^{NETWORK}$"):
        return
    # Internal: no route leads out of the lab, as in an air-gapped cluster; the machine itself reaches the nodes.
    docker(
        "network", "create", "--internal", f"--subnet={SUBNET}", f"--opt=com.docker.network.driver.mtu={MTU}",
        f"--opt=com.docker.network.bridge.name={NETWORK}", NETWORK,
    )  # fmt: skip


def _ensure_node(node: Node, image: str, engine: Path, known: tuple[str, str] | None) -> bool:
    """Make the node's container run; return whether it had to be started."""
    options = create_options(node, engine)
    archive = keys().archive(node)
    spec = digest(*options, image, archive)
    if known and (known[1] != spec or known[0] not in ("running", "exited")):
        say(f"{node.name} is {'outdated' if known[1] != spec else known[0]}: making it anew")
        known = None
    if known is None:
        _remove(node.name)
        docker("create", f"--label={LABEL}={spec}", *options, image)
        docker("cp", "--archive", "-", f"{node.name}:/", stdin=archive)
    if known and known[0] == "running":
        return False
    docker("start", node.name)
    say(f"{node.name} started")
    return True


def _ensure_ready(node: Node) -> None:
    """Wait until the node that was just started answers."""
    if not _wait(node, READY_SECONDS):
        tail = docker("exec", node.name, "journalctl", "--no-pager", "--lines=15", "--priority=warning", check=False)
        raise LabError(f"{node.name} is not ready after {READY_SECONDS} s; its journal ends with:\n{tail}")


def _ensure_alive(node: Node) -> bool:
    """Restart the node if it has been running but does not answer; return whether that was so."""
    if _wait(node, ALIVE_SECONDS):
        return False
    say(f"{node.name} does not answer: restarting it")
    docker("restart", node.name, timeout=90)
    _ensure_ready(node)
    return True


def _wait(node: Node, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if all(probe(node).values()):
            return True
        time.sleep(0.5)
    return False


def probe(node: Node, own: Keys | None = None) -> dict[str, bool]:
    """Return whether the node's sshd answers with the right key, and whether systemd and Docker are up in it.

    ``own``: its keys, where they are not the lab's.
    """
    argv = (own or keys()).command(node, "systemctl", "is-active", "docker.service", "multi-user.target")
    try:
        result = run(argv, timeout=PROBE_SECONDS, check=False)
    except LabError:
        return {"sshd": False, "dockerd": False, "systemd": False}
    states = result.stdout.split()
    return {
        "sshd": result.returncode != 255 and len(states) == 2,
        "dockerd": states[:1] == ["active"],
        "systemd": states[1:] == ["active"],
    }


def remove_all() -> int:
    """Remove every node, volume and the network; return how many nodes there were."""
    names = list(existing())
    each(_remove, names)
    for volume in docker("volume", "ls", "--quiet", "--filter", f"name=^{NETWORK}-").split():
        docker("volume", "rm", "--force", volume)
    if docker("network", "ls", "--quiet", "--filter", f"name=^{NETWORK}$"):
        docker("network", "rm", NETWORK)
    return len(names)


def _remove(name: str) -> None:
    """Remove the node's container and volumes; what is not there is fine."""
    docker("rm", "--force", "--volumes", name, timeout=120, check=False)
    for volume in docker("volume", "ls", "--quiet", "--filter", f"name=^{NETWORK}-{name}-").split():
        docker("volume", "rm", "--force", volume)


def forget_keys() -> None:
    """Remove the state of the running lab from the checkout, and the change history it left there.

    Virtual machines are in ``.lab`` too and go on running.
    """
    for place in (".lab/ssh", ".lab/inventory", "history/lab"):
        shutil.rmtree(project() / place, ignore_errors=True)
