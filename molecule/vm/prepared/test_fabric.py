"""Soft-RoCE devices are found with their GIDs, and NCCL is told what is right on this node."""

import pytest
from vm_run import NODE, facts

from gb10 import fabric
from lab import vm

RAILS = vm.rail_addresses(vm.named(NODE))
HCAS = {"rocep1s0f1": "enp1s0f1np1", "roceP2p1s0f1": "enP2p1s0f1np1"}


@pytest.fixture(scope="module")
def node():
    return facts()


def test_devices_and_gids(host, node):
    address = next(iter(RAILS.values()))
    found = fabric.detect(node, address)
    assert dict(zip(found.hcas, found.netdevs, strict=True)) == HCAS
    assert found.socket_ifname == "enp1s0f1np1"
    index = fabric.gid_index(fabric.rails(node, address), address)
    assert found.gid_index in (None, index)  # None: NCCL's own choice is right
    port = f"/sys/class/infiniband/{found.hcas[0]}/ports/1"
    octets = [int(part) for part in address.split(".")]
    wanted = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*octets)
    assert host.file(f"{port}/gids/{index}").content_string.strip() == wanted
    assert host.file(f"{port}/gid_attrs/types/{index}").content_string.strip() == fabric.ROCE_V2
    assert host.file(f"{port}/gids/0").content_string.startswith("fe80:")  # what an empty index would mean


def test_rank_environment(host):
    lines = host.file("/etc/gb10/rank.env").content_string.splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    assert env["NCCL_IB_HCA"] == ",".join(HCAS)
    assert env["NCCL_SOCKET_IFNAME"] == env["GLOO_SOCKET_IFNAME"] == "enp1s0f1np1"
    assert all(env.values())  # an empty value is read as 0


def test_rails(host):
    for name, address in RAILS.items():
        assert host.interface(name).addresses[0] == address
        assert host.file(f"/sys/class/net/{name}/mtu").content_string.strip() == "9000"
    with host.sudo():
        assert host.file("/etc/netplan/60-gb10-fabric.yaml").mode == 0o600
        assert "gb10" in host.check_output("nft list tables")
