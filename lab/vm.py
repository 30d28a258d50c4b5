"""Virtual machines as nodes: a real kernel with NVMe disks, RDMA devices and reboots, translated by QEMU."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

from lab import dockerd, inventory, model
from lab.cache import digest
from lab.host import project
from lab.nodes import Keys, Node, add, probe
from lab.run import LabError, each, run, say

MOST = 2
PORT = 2222
MEMORY_MIB = 3072
PROCESSORS = 2
DISKS = ("blank", "foreign")
"""NVMe disks by what is on them; serials are lab-blank and lab-foreign; a boot mostly numbers them in this order."""
DISK_SIZE = 64 << 30
"""Bytes, sparse."""
RAILS = {"enp1s0f1np1": "192.168.0", "enP2p1s0f1np1": "192.168.2"}
"""Interfaces of the twins and their subnets, as the report has them; vm_setup.sh names them by their MAC address."""
MANAGEMENT = "enP7s7"
READY_SECONDS = 600
"""A boot takes 40 s on two idle cores and three minutes on busy ones."""
QEMU_SECONDS = 10
"""QEMU has written its pid file by then."""
TRIES = 3
"""QEMU 7.2 was seen to crash early in a boot, where processors run in threads of their own; another try boots."""
OFF_SECONDS = 90
RANK_IMAGE = "vllm-dsv41:engram-mem"
"""The image of the default profile, as group_vars/profile_tp8_300k.yml names it."""
KERNEL_ARGUMENTS = (
    "console=ttyS0 quiet mitigations=off systemd.default_timeout_start_sec=600 systemd.default_device_timeout_sec=600"
)
"""systemd gives a unit and a device 90 s, in which a busy machine translates half a boot."""


def first(count: int) -> list[Node]:
    """Return the first ``count`` machines, in rank order.

    Raises:
        LabError: there are not that many.
    """
    if not 1 <= count <= MOST:
        raise LabError(f"there are 1 to {MOST} virtual machines, not {count}")
    # Loopback addresses of their own: the port is free there whatever else listens on the machine.
    return [Node(rank, f"vm-{rank}", f"127.77.1.{10 + rank}", PORT) for rank in range(count)]


def named(name: str) -> Node:
    """Return the machine of that name.

    Raises:
        LabError: there is none.
    """
    for node in existing():
        if node.name == name:
            return node
    raise LabError(f"no virtual machine {name}; there are: {', '.join(n.name for n in existing()) or 'none'}")


def rail_addresses(node: Node) -> dict[str, str]:
    """Return the machine's address on each rail, by interface."""
    return {name: f"{subnet}.{10 + node.rank}" for name, subnet in RAILS.items()}


def state() -> Path:
    """Return where the machines' disks, keys and inventory are."""
    return project() / ".lab" / "vm"


def directory(node: Node) -> Path:
    """Return the directory of one machine. QEMU works in it."""
    return state() / node.name


def keys() -> Keys:
    """Return the machines' ssh keys."""
    return Keys(state() / "ssh")


def existing() -> list[Node]:
    """Return the machines that were made, in rank order."""
    return [node for node in first(MOST) if directory(node).exists()]


def ensure(wanted: list[Node], image: Path) -> bool:
    """Make exactly ``wanted`` run and answer; return whether anything had to be done.

    Raises:
        LabError: a machine does not come up within READY_SECONDS; with the last lines of its console.
    """
    keys().ensure(wanted)
    extra = [node for node in existing() if node not in wanted]
    each(remove, extra)
    made = [_ensure_made(node, image) for node in wanted]
    started = [_ensure_started(node, image) for node in wanted]
    each(lambda node: _ensure_ready(node, image), wanted)
    imported = _ensure_rank_images(wanted)
    return any((extra, *made, *started, imported))


def write_inventory(machines: list[Node]) -> bool:
    """Write inventory and sources beside the machines; return whether one changed."""
    weights = _checkpoint(state() / "weights")
    own: dict[str, dict[str, str | int]] = {
        # The profile's tensor_parallel wins over that of a group.
        node.name: {"fabric_address": next(iter(rail_addresses(node).values())), "tensor_parallel": len(machines)}
        for node in machines
    }
    beside = inventory_path().parent / "group_vars" / "vm.yml"
    return inventory.put(
        {
            inventory_path(): inventory.render(machines, keys(), "vm", own),
            beside: inventory.lines_of({"weights_source": str(weights)}),
        }
    )


def inventory_path() -> Path:
    """Return the path of the machines' inventory."""
    return state() / "inventory" / "hosts.yml"


def restart(node: Node, image: Path, *, append: str | None = None, disks: list[str] | None = None) -> None:
    """Power the machine off and on.

    Args:
        image: what it boots from.
        append: kernel arguments from now on, beside those of every machine; None keeps what it has.
        disks: the NVMe disks it has from now on, in that order on the bus; None keeps what it has.
    """
    _stop(node, politely=True)
    if append is not None:
        (directory(node) / "append").write_text(append)
    if disks is not None:
        (directory(node) / "disks").write_text(" ".join(disks))
    _ensure_started(node, image)
    _ensure_ready(node, image)


def states(machines: list[Node]) -> list[dict[str, bool]]:
    """Return what each machine's sshd, Docker and systemd are, as ``nodes.probe``."""
    return each(lambda node: probe(node, keys()), machines)


def remove_all() -> int:
    """End every machine and remove its disks, and the keys and inventory; return how many there were."""
    machines = existing()
    each(remove, machines)
    shutil.rmtree(state(), ignore_errors=True)
    return len(machines)


def remove(node: Node) -> None:
    """End the machine and remove its disks."""
    _stop(node)
    shutil.rmtree(directory(node), ignore_errors=True)


def seed(node: Node) -> bytes:
    """Return a tar of what makes the machine itself: keys, names, its address. Its first boot unpacks it.

    Rails are up and have no IPv4 address, as where nobody has set up a fabric yet.
    """
    ethernets: dict[str, object] = {MANAGEMENT: {"addresses": ["10.0.2.15/24"], "link-local": []}}
    ethernets |= {name: {"link-local": ["ipv6"], "optional": True} for name in RAILS}
    netplan = json.dumps({"network": {"version": 2, "renderer": "networkd", "ethernets": ethernets}}, indent=2)
    files = {
        "etc/hostname": (f"{node.name}\n", 0o644),
        "etc/hosts": (f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n", 0o644),
        "etc/netplan/50-site.yaml": (f"{netplan}\n", 0o600),  # JSON is YAML
    }
    buffer = io.BytesIO(keys().archive(node))
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        for name, (text, mode) in files.items():
            add(tar, name, text.encode(), mode, 0)
    return buffer.getvalue()


def command(node: Node, image: Path, append: str, disks: list[str]) -> list[str]:
    """Return QEMU's argv for ``node``, to be run in its directory.

    Args:
        image: the directory with kernel and initial file system.
        append: kernel arguments beside KERNEL_ARGUMENTS.
        disks: DISKS in their order on the bus. Controllers race for their numbers, so a boot may change them.
    """
    argv = ["qemu-system-x86_64", "-name", node.name, "-pidfile", str(directory(node) / "pid")]
    argv += ["-nodefaults", "-display", "none", "-serial", "file:console.log", "-machine", "q35"]
    argv += ["-accel", os.environ.get("GB10_LAB_ACCEL", "tcg,thread=multi"), "-cpu", "max"]
    argv += ["-smp", str(PROCESSORS), "-m", str(MEMORY_MIB)]
    argv += ["-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd")]
    argv += ["-append", f"{KERNEL_ARGUMENTS} {append}".strip()]
    # Nothing here must outlive a crash of the machine below: no write waits for its disk.
    argv += [
        "-drive",
        "if=none,id=root,file=root.qcow2,cache=unsafe",
        "-device",
        "virtio-blk-pci,drive=root,serial=lab-root",
    ]
    argv += ["-drive", "if=none,id=seed,file=seed.tar,format=raw,readonly=on", "-device", "virtio-blk-pci,drive=seed"]
    for disk in disks:
        argv += ["-drive", f"if=none,id={disk},file={disk}.raw,format=raw,cache=unsafe,discard=unmap"]
        argv += ["-device", f"nvme,drive={disk},serial=lab-{disk}"]
    # No way out: what a node needs is in its root or comes from the controller.
    forward = f"hostfwd=tcp:{node.address}:{node.port}-:22"
    argv += ["-netdev", f"user,id=management,restrict=on,{forward}", "-device", _card("management", node, 0)]
    for number in range(1, len(RAILS) + 1):
        own, peer = f"rail{number}.sock", f"../vm-{1 - node.rank}/rail{number}.sock"
        sockets = f"local.type=unix,local.path={own},remote.type=unix,remote.path={peer}"
        argv += ["-netdev", f"dgram,id=rail{number},{sockets}", "-device", _card(f"rail{number}", node, number)]
    return argv


def _card(netdev: str, node: Node, number: int) -> str:
    return f"virtio-net-pci,netdev={netdev},mac=52:54:00:00:0{node.rank}:0{number}"


def own_pid(node: Node) -> int | None:
    """Return the process id of the machine, or None when it does not run."""
    pidfile = directory(node) / "pid"
    try:
        pid = int(pidfile.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return pid if str(pidfile).encode() in words else None


def _ensure_made(node: Node, image: Path) -> bool:
    """Make the machine's disks if they are missing or made of something else; return whether that was so."""
    place, spec = directory(node), digest(str(image), seed(node), Path(__file__))
    recorded = place / "spec"
    if recorded.exists() and recorded.read_text() == spec:
        return False
    remove(node)
    place.mkdir(parents=True)
    base = ["-b", str(image / "root.ext4"), "-F", "raw"]
    run(["qemu-img", "create", "-q", "-f", "qcow2", *base, str(place / "root.qcow2")], timeout=60)
    (place / "seed.tar").write_bytes(seed(node))
    for disk in DISKS:
        with (place / f"{disk}.raw").open("wb") as raw:
            raw.truncate(DISK_SIZE)
    run(["mke2fs", "-q", "-t", "ext4", "-L", "foreign", str(place / "foreign.raw")], timeout=60)
    (place / "disks").write_text(" ".join(DISKS))
    (place / "append").write_text("")
    recorded.write_text(spec)
    return True


def _ensure_started(node: Node, image: Path) -> bool:
    """Start QEMU where it does not run; return whether that was so."""
    if own_pid(node) is not None:
        return False
    place = directory(node)
    argv = command(node, image, (place / "append").read_text(), (place / "disks").read_text().split())
    with (place / "qemu.log").open("wb") as log:
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=place, start_new_session=True)
    say(f"{node.name} started")
    return True


def _ensure_ready(node: Node, image: Path) -> None:
    """Wait until the machine answers and has started all it starts at boot.

    Raises:
        LabError: it does not within READY_SECONDS, or QEMU ended TRIES times.
    """
    for left in reversed(range(TRIES)):
        if _answers(node):
            return
        if left:
            say(f"{node.name}: QEMU crashed while it booted: starting it again")
            _ensure_started(node, image)
    raise LabError(f"{node.name}: QEMU ended:\n{_tail(node, 'qemu.log')}\n{_tail(node, 'console.log')}")


def _answers(node: Node) -> bool:
    """Wait until the machine has booted; return whether QEMU still runs then."""
    began = time.monotonic()
    while time.monotonic() - began < READY_SECONDS:
        found = probe(node, keys())
        if found["sshd"] and found["systemd"]:  # Docker was started by then, or could not be
            return True
        if time.monotonic() - began > QEMU_SECONDS and own_pid(node) is None:
            return False
        time.sleep(1)
    tail = _tail(node, "console.log")
    raise LabError(f"{node.name} is not ready after {READY_SECONDS} s; its console ends with:\n{tail}")


def _ensure_rank_images(wanted: list[Node]) -> bool:
    """Give every Docker the same image of a shell under the rank image's name; return whether one lacked it."""
    held = each(_rank_image, wanted)
    made = not held[0]
    if made:
        script = f"tar --create --directory /usr/share/lab/rank . | sudo docker import - {RANK_IMAGE}"
        run(keys().command(wanted[0], script), timeout=300)
        held[0] = _rank_image(wanted[0])
    # An import carries its time, so another one is another image.
    others = [node for node, image in zip(wanted, held, strict=True) if image != held[0]]
    if others:
        saved = run(keys().command(wanted[0], f"sudo docker save {RANK_IMAGE} | base64"), timeout=300).stdout.encode()
        each(
            lambda node: run(keys().command(node, "base64 --decode | sudo docker load"), timeout=300, stdin=saved),
            others,
        )
    return made or bool(others)


def _rank_image(node: Node) -> str:
    """Return the id of the rank's image on a machine; empty without one."""
    return run(keys().command(node, "sudo", "docker", "image", "ls", "--quiet", RANK_IMAGE), timeout=120).stdout


def _tail(node: Node, name: str, lines: int = 15) -> str:
    try:
        text = (directory(node) / name).read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join("  " + line for line in text.splitlines()[-lines:])


def _stop(node: Node, politely: bool = False) -> None:
    """End the machine's QEMU; ``politely`` lets it shut down first."""
    pid = own_pid(node)
    if pid is None:
        return
    if politely:
        run(keys().command(node, "sudo", "systemctl", "poweroff"), timeout=30, check=False)
        deadline = time.monotonic() + OFF_SECONDS
        while time.monotonic() < deadline and not dockerd.gone(pid):
            time.sleep(0.5)
        if not dockerd.gone(pid):
            say(f"{node.name} did not power off within {OFF_SECONDS} s: ending it")
    dockerd.end(pid)


def _checkpoint(place: Path) -> Path:
    """Write a checkpoint of one empty shard, so that there is something to plan for and to send; return its directory.

    Nothing ever loads it.
    """
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": 256,
        "head_dim": 32,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "max_position_embeddings": 1 << 20,
        "vocab_size": 512,
    }
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config, indent=2))
    (place / "model-00001-of-00001.safetensors").write_bytes(bytes(4096))
    model.write_manifest(place)
    return place
