"""What a network cannot do is refused, and what cuts the node off is rolled back on the node itself."""

import json

from vm_run import BIN, INVENTORY, NODE, play, recap, run

from lab import vm

PLAN = "/etc/netplan/60-gb10-fabric.yaml"
CUT = f"    {vm.MANAGEMENT}:\n      activation-mode: 'off'\n"


def addresses(host):
    """Address -> interface."""
    links = json.loads(host.check_output("ip -json -4 address show"))
    return {entry["local"]: link["ifname"] for link in links for entry in link["addr_info"]}


def test_a_plan_that_cuts_the_node_off_is_rolled_back(host):
    with host.sudo():
        file, before = host.file(PLAN), addresses(host)
        held, mode = file.content_string, file.mode
    arguments = json.dumps({"path": PLAN, "content": held + CUT, "apply": True, "timeout": 20})
    done = run(BIN / "ansible", "-i", INVENTORY, NODE, "-b", "-m", "gb10_netplan", "-a", arguments)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert f"error [netplan-rolled-back] {PLAN}: " in said
    assert "logged in by ssh, was cut off" in said
    assert "the old files are in force again" in said
    with host.sudo():
        assert (host.file(PLAN).content_string, host.file(PLAN).mode) == (held, mode)
    assert addresses(host) == before
    again = play("prepare")
    assert again.returncode == 0, again.stdout[-3000:]
    assert recap(again)["changed"] == 0


def test_a_lossless_class_the_driver_cannot_make_is_refused(host):
    assert "not supported" in host.run(f"/usr/sbin/dcb pfc show dev {next(iter(vm.RAILS))}").stderr.lower()
    done = play("prepare", fabric_lossless=True)
    assert done.returncode != 0
    assert f"error [dcb-unsupported] {NODE}: The driver of {', '.join(vm.RAILS)} has no DCB" in done.stdout
    assert recap(done)["changed"] == 0
    assert not host.file("/etc/systemd/system/gb10-lossless@.service").exists
    assert "NCCL_IB_TC" not in host.file("/etc/gb10/rank.env").content_string
