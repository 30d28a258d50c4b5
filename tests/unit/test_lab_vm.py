"""Virtual machines without starting one: what QEMU is told, what a first boot unpacks, which process is ours."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from support import ROOT

sys.path.insert(0, str(ROOT))  # the lab is run from the checkout and not installed

from lab import inventory, vm
from lab.run import LabError


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vm, "project", lambda: tmp_path)


def devices(argv: list[str]) -> list[dict[str, str]]:
    """The -device options, each as its type and properties."""
    given = [argv[number + 1] for number, word in enumerate(argv) if word == "-device"]
    return [{"type": text.split(",")[0], **dict(p.split("=", 1) for p in text.split(",")[1:])} for text in given]


@pytest.mark.parametrize("count", [0, 3, -1])
def test_other_counts_are_refused(count: int) -> None:
    with pytest.raises(LabError, match="1 to 2 virtual machines"):
        vm.first(count)


def test_an_unknown_machine_is_refused_with_those_there_are() -> None:
    vm.directory(vm.first(1)[0]).mkdir(parents=True)
    with pytest.raises(LabError, match="no virtual machine vm-1; there are: vm-0"):
        vm.named("vm-1")


@pytest.mark.parametrize("order", [["blank", "foreign"], ["foreign", "blank"], ["foreign"], []])
def test_disks_are_in_the_order_given(order: list[str]) -> None:
    argv = vm.command(vm.first(1)[0], Path("/image"), "", order)
    assert [d["serial"] for d in devices(argv) if d["type"] == "nvme"] == [f"lab-{name}" for name in order]


def test_kernel_arguments_are_added_to_those_of_every_machine() -> None:
    argv = vm.command(vm.first(1)[0], Path("/image"), "kho=off x=1", [])
    words = argv[argv.index("-append") + 1].split()
    assert words[-2:] == ["kho=off", "x=1"]
    assert "console=ttyS0" in words


def test_rails_of_two_machines_meet_and_cards_differ() -> None:
    ends = []
    for node in vm.first(2):
        argv = vm.command(node, Path("/image"), "", [])
        nets = [dict(p.split("=", 1) for p in word.split(",")[1:]) for word in argv if word.startswith("dgram,")]
        place = vm.directory(node)
        ends.append(
            [tuple(os.path.normpath(place / net[end]) for end in ("local.path", "remote.path")) for net in nets]
        )
    assert len(ends[0]) == 2
    assert ends[0] == [(remote, local) for local, remote in ends[1]]
    cards = [d["mac"] for node in vm.first(2) for d in devices(vm.command(node, Path("/i"), "", [])) if "mac" in d]
    assert len(set(cards)) == len(cards) == 6


def test_no_way_leads_out() -> None:
    argv = vm.command(vm.first(1)[0], Path("/image"), "", [])
    (network,) = [word for word in argv if word.startswith("user,")]
    assert "restrict=on" in network.split(",")
    assert "hostfwd=tcp:127.77.1.10:2222-:22" in network.split(",")


def test_a_first_boot_gets_keys_names_and_addresses() -> None:
    node = vm.first(2)[1]
    vm.keys().ensure([node])
    with tarfile.open(fileobj=io.BytesIO(vm.seed(node))) as tar:
        held = {entry.name: entry for entry in tar}
        plan = json.load(tar.extractfile("etc/netplan/50-site.yaml"))  # type: ignore[arg-type]
        authorized = tar.extractfile("home/nvidia/.ssh/authorized_keys").read()  # type: ignore[union-attr]
    assert authorized == vm.keys().login.with_name("id_ed25519.pub").read_bytes()
    modes = {name: held[name].mode for name in ("etc/ssh/ssh_host_ed25519_key", "etc/netplan/50-site.yaml")}
    assert set(modes.values()) == {0o600}
    given = {name: about.get("addresses") for name, about in plan["network"]["ethernets"].items()}
    assert given == {"enP7s7": ["10.0.2.15/24"], "enp1s0f1np1": None, "enP2p1s0f1np1": None}
    assert stat.S_IMODE(vm.keys().login.stat().st_mode) & 0o077 == 0


def test_inventory_names_port_fabric_address_and_number_of_ranks() -> None:
    machines = vm.first(2)
    vm.keys().ensure(machines)
    assert [vm.write_inventory(machines), vm.write_inventory(machines)] == [True, False]
    hosts = yaml.safe_load(vm.inventory_path().read_text())["gb10"]["children"]["vm"]["hosts"]
    assert hosts["vm-1"] == {
        "ansible_host": "127.77.1.11",
        "ansible_port": 2222,
        "node_rank": 1,
        "fabric_address": "192.168.0.11",
        "tensor_parallel": 2,
    }
    known = vm.keys().known_hosts.read_text().splitlines()
    assert [line.split()[0] for line in known] == ["vm-0,[127.77.1.10]:2222", "vm-1,[127.77.1.11]:2222"]


def test_only_a_process_started_with_our_pid_file_is_ours() -> None:
    node = vm.first(1)[0]
    assert vm.own_pid(node) is None
    vm.directory(node).mkdir(parents=True)
    pidfile = vm.directory(node) / "pid"
    for words, ours in ((["x"], False), ([str(pidfile)], True)):
        argv = [sys.executable, "-c", "print(flush=True); input()", *words]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdout
            process.stdout.readline()  # before that /proc may not show its words yet
            pidfile.write_text(f"{process.pid}\n")
            assert (vm.own_pid(node) == process.pid) is ours
        finally:
            process.kill()
            process.wait()
    assert vm.own_pid(node) is None


def test_inventory_of_the_lab_has_no_port() -> None:
    from lab import nodes

    assert "ansible_port" not in inventory.render(nodes.first(1), vm.keys())


def test_machines_stay_when_the_lab_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab import nodes

    monkeypatch.setattr(nodes, "project", lambda: tmp_path)
    (machine,) = vm.first(1)
    for folder in (nodes.keys().directory, tmp_path / ".lab/inventory", vm.directory(machine)):
        folder.mkdir(parents=True)
        (folder / "held").touch()
    nodes.forget_keys()
    assert [path.parent for path in tmp_path.rglob("held")] == [vm.directory(machine)]
