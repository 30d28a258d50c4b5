"""Rails, HCAs, GID index and interfaces of one node, from its facts: cases 12, 13, 14 and pinned values (8)."""

from __future__ import annotations

import hashlib

import pytest
from gb10_node import Hca, Link, mapped, spark, twins
from support import hosts

from gb10.deploy import detected, resolve
from gb10.fabric import Fabric, detect, gid_findings, pinned_findings, rail_findings, rails
from gb10.plan import build
from gb10.rank_env import nccl_todo

BOTH = ("rocep1s0f1", "roceP2p1s0f1")


@pytest.mark.parametrize(("octet", "index"), [(153, 3), (147, 5)])
def test_each_node_gets_its_own_gid_index(tmp_path, octet, index):
    """Case 12: a link-local v2 entry at 1 and another subnet's v2 entry come before the right one."""
    facts = spark(octet, own_index=index).facts(tmp_path)
    found = detect(facts, f"192.168.0.{octet}")
    assert found == Fabric(BOTH, ("enp1s0f1np1", "enP2p1s0f1np1"), "enp1s0f1np1", index)
    assert found.environment() == {
        "NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1",
        "NCCL_IB_GID_INDEX": str(index),
        "NCCL_SOCKET_IFNAME": "enp1s0f1np1",
        "GLOO_SOCKET_IFNAME": "enp1s0f1np1",
        "TP_SOCKET_IFNAME": "enp1s0f1np1",
    }


@pytest.mark.parametrize("cabled", ["f0", "f1"])
def test_only_the_cabled_pair_is_used(tmp_path, cabled):
    """Case 13: all four HCAs are visible, two are down."""
    facts = spark(158, cabled=cabled).facts(tmp_path)
    assert len(facts["rdma"]["devices"]) == 4
    assert detect(facts, "192.168.0.158").hcas == (f"rocep1s0{cabled}", f"roceP2p1s0{cabled}")


def test_without_a_default_route_everything_is_found_and_nothing_is_empty(tmp_path):
    """Case 14."""
    facts = spark(153).facts(tmp_path)
    assert facts["default_route"] is None
    for address in ("192.168.0.153", "192.168.1.153", "172.16.0.1"):
        for transport in ("roce", "socket"):
            env = detect(facts, address).environment(transport)
            assert all(env.values())
            assert "eth0" not in env.values()
            assert ("NCCL_IB_HCA" in env) == (transport == "roce")
    assert "NCCL_SOCKET_IFNAME" not in detect(facts, "172.16.0.1").environment()


def test_a_node_that_has_eth0_uses_it(tmp_path):
    facts = spark(153, hcas=[], links=[Link("eth0", ["10.77.1.153/24"])]).facts(tmp_path)
    assert detect(facts, "10.77.1.153").environment("socket")["NCCL_SOCKET_IFNAME"] == "eth0"
    assert detect(facts, "10.77.1.153").environment("roce").keys() == {
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
    }


def test_a_management_address_leaves_the_gid_index_unset(tmp_path):
    """The fabric address is on no rail: no index is right by it, NCCL chooses."""
    found = detect(spark(153).facts(tmp_path), "192.168.1.153")
    assert (found.socket_ifname, found.gid_index) == ("enP7s7", None)
    assert set(found.hcas) == set(BOTH)


def test_twins_with_different_indexes_leave_the_gid_index_unset(tmp_path):
    hcas, links = twins(153, own_index=3)
    for hca in hcas:
        if hca.name == "roceP2p1s0f1":
            hca.gids = {1: hca.gids[1], 5: hca.gids[3]}
    assert detect(spark(153, hcas=hcas, links=links).facts(tmp_path), "192.168.0.153").gid_index is None


@pytest.mark.parametrize(
    "gids",
    [
        {},
        {3: ("IB/RoCE v1", mapped("192.168.0.153"))},
        {3: ("RoCE v2", mapped("192.168.0.154"))},
        {1: ("RoCE v2", "fe80:0000:0000:0000:fe4c:eaff:fef9:4231")},
    ],
)
def test_no_right_entry_means_unset(tmp_path, gids):
    hcas = [Hca("rocep1s0f1", "enp1s0f1np1", gids=gids)]
    links = [Link("enp1s0f1np1", ["192.168.0.153/24"])]
    found = detect(spark(153, hcas=hcas, links=links).facts(tmp_path), "192.168.0.153")
    assert (found.hcas, found.gid_index) == (("rocep1s0f1",), None)
    assert "NCCL_IB_GID_INDEX" not in found.environment()


@pytest.mark.parametrize(
    ("pinned", "expected"),
    [
        ({"nccl_ib_hca": "roceP2p1s0f1"}, ("roceP2p1s0f1",)),
        ({"nccl_ib_hca": "=rocep1s0f1:1, roceP2p1s0f1"}, ("=rocep1s0f1:1", "roceP2p1s0f1")),
        ({"nccl_ib_hca": ["rocep1s0f1"]}, ("rocep1s0f1",)),
        ({"nccl_ib_hca": ""}, BOTH),
        ({"nccl_ib_hca": "detected"}, BOTH),
        ({"nccl_ib_hca": None}, BOTH),
    ],
)
def test_pinned_hcas_win(tmp_path, pinned, expected):
    assert detect(spark(153).facts(tmp_path), "192.168.0.153", pinned).hcas == expected


def test_a_pinned_index_and_interface_win(tmp_path):
    pinned = {"nccl_ib_gid_index": 0, "nccl_socket_ifname": "enP7s7"}
    found = detect(spark(153).facts(tmp_path), "192.168.0.153", pinned)
    assert (found.gid_index, found.socket_ifname) == (0, "enP7s7")
    assert found.environment()["NCCL_IB_GID_INDEX"] == "0"


@pytest.mark.parametrize(
    ("pinned", "code", "says"),
    [
        ({"nccl_ib_hca": "rocep1s0f1,roceP2p1s0f1"}, None, ""),
        ({"nccl_ib_hca": "enp1s0f1np1"}, "hca-is-interface", "Its HCA is rocep1s0f1"),
        ({"nccl_ib_hca": "enp9s0"}, "hca-is-interface", "rocep1s0f1"),
        ({"nccl_ib_hca": "mlx5_0"}, "hca-not-found", "roceP2p1s0f0, roceP2p1s0f1, rocep1s0f0, rocep1s0f1"),
        ({"nccl_ib_hca": "rocep1s0f0"}, "hca-not-live", "DOWN"),
        ({"nccl_ib_hca": "^rocep1s0f0"}, "hca-excluding", "rocep1s0f1"),
        ({"nccl_socket_ifname": "enp1s0f1np1"}, None, ""),
        ({"nccl_socket_ifname": "eth0"}, "interface-not-found", "192.168.0.153 is on: enp1s0f1np1"),
        ({"nccl_ib_gid_index": "3"}, None, ""),
        ({"nccl_ib_gid_index": 1}, "gid-index-wrong", "192.168.0.153 has 3"),
        ({"nccl_ib_gid_index": "2"}, "gid-index-wrong", "10.9.0.153"),
        ({"nccl_ib_gid_index": "three"}, "gid-index-wrong", "no number"),
        ({}, None, ""),
    ],
)
def test_pinned_values_are_judged_against_the_node(tmp_path, pinned, code, says):
    """Case 8 with a node at hand: an interface name is refused, and what is right is named."""
    findings = pinned_findings("spark-153", spark(153).facts(tmp_path), "192.168.0.153", pinned)
    assert {(f.level, f.node, f.code) for f in findings} == ({("error", "spark-153", code)} if code else set())
    if code:
        assert says in findings[0].message + findings[0].remedy


def test_a_twin_without_an_address_is_left_out_and_named(tmp_path):
    hcas, links = twins(153)
    for link in links:
        if link.name == "enP2p1s0f1np1":
            link.addresses = []
    facts = spark(153, hcas=hcas, links=links).facts(tmp_path)
    assert detect(facts, "192.168.0.153").hcas == ("rocep1s0f1",)
    (finding,) = rail_findings("spark-153", facts)
    assert (finding.level, finding.code) == ("warning", "rail-without-address")
    assert "roceP2p1s0f1" in finding.message


def test_an_interface_that_is_down_carries_no_rail(tmp_path):
    hcas, links = twins(153)
    links[-1].operstate = "down"
    facts = spark(153, hcas=hcas, links=links).facts(tmp_path)
    assert detect(facts, "192.168.0.153").hcas == ("rocep1s0f1",)
    assert "enP2p1s0f1np1 is down" in rail_findings("spark-153", facts)[0].message


def test_twins_in_one_subnet_are_warned_about(tmp_path):
    hcas, links = twins(153)
    links[-1].addresses = ["192.168.0.154/24"]
    (finding,) = rail_findings("spark-153", spark(153, hcas=hcas, links=links).facts(tmp_path))
    assert (finding.level, finding.code) == ("warning", "rails-share-subnet")
    assert "192.168.0.0/24" in finding.message


def test_facts_without_anything_detect_nothing():
    assert detect({}, "10.0.0.1") == Fabric((), (), None, None)
    assert rails({}) == []
    assert detect({}, "10.0.0.1").environment() == {}


def test_every_node_gets_the_environment_of_its_own_fabric(tmp_path):
    """Cases 12, 13 and 14 over eight nodes: cabled differently, GID tables drifted apart, no default route."""
    octets = (153, 147, 157, 158, 161, 162, 166, 148)
    about = {f"spark-{o}": (o, "f0" if o in (158, 166) else "f1", 5 if o in (147, 166) else 3) for o in octets}
    variables = {name: {"fabric_address": f"192.168.0.{o}"} for name, (o, _port, _index) in about.items()}
    shared = hosts("tp8-300k")
    planned = build("tp8-300k", {name: shared[name] | own for name, own in variables.items()})
    facts = {name: spark(o, port, index).facts(tmp_path) for name, (o, port, index) in about.items()}
    plain_hosts = {name: {"nccl_transport": "roce"} for name in about}
    deployed = resolve(planned, detected(planned["ranks"], facts, plain_hosts))
    assert len(deployed["ranks"]) == 8
    for rank in deployed["ranks"]:
        octet, port, index = about[rank["node"]]
        (written,) = nccl_todo(facts[rank["node"]], rank, "/etc/gb10/rank.env")["files"]
        env = dict(line.split("=", 1) for line in written["content"].splitlines() if not line.startswith("#"))
        assert env == rank["env"]
        assert env["NCCL_IB_HCA"] == f"rocep1s0{port},roceP2p1s0{port}"
        assert env["VLLM_HOST_IP"] == f"192.168.0.{octet}"
        for key in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            assert env[key] == f"enp1s0{port}np{port[1]}"
        assert env["NCCL_IB_GID_INDEX"] == str(index)  # NCCL by itself would take the other subnet's entry, at 2
        assert all(value and value != "detected" for value in env.values())


def test_the_file_is_written_where_it_differs_and_where_there_is_a_rank(tmp_path):
    rank = {"env": {"B": "2", "A": "1"}}
    path = "/etc/gb10/rank.env"
    facts = {"files": {"/etc/gb10": {"exists": False}, path: {"exists": False}}}
    todo = nccl_todo(facts, rank, path)
    (file,) = todo["files"]
    assert file["content"].endswith("\nA=1\nB=2\n")
    assert todo["directories"] == ["/etc/gb10"]
    held = {"exists": True, "mode": "0644", "owner": "root", "group": "root"}
    held["sha256"] = hashlib.sha256(file["content"].encode()).hexdigest()
    nothing = {"keep": [], "directories": [], "files": []}
    there = {"files": {"/etc/gb10": {"exists": True}, path: held}}
    assert nccl_todo(there, rank, path) == nothing
    assert nccl_todo(facts, None, path) == nothing
    assert nccl_todo(there, {"env": {"A": "1"}}, path)["files"]


def without_other_addresses(octet=153):
    """A node with the fabric's addresses only: each rail's own v2 entry is its first over IPv4."""
    hcas, links = twins(octet)
    for hca in hcas:
        hca.gids = {i: entry for i, entry in hca.gids.items() if not entry[1].split("ffff:")[-1].startswith("0a09")}
    for link in links:
        link.addresses = [a for a in link.addresses if not a.startswith("10.9.")]
    return spark(octet, hcas=hcas, links=links)


def test_where_nccl_chooses_right_the_index_stays_unset(tmp_path):
    """An index that drifts would restart the ranks."""
    facts = without_other_addresses().facts(tmp_path)
    assert detect(facts, "192.168.0.153").gid_index is None
    assert detect(facts, "192.168.0.153", {"nccl_ib_gid_index": "3"}).gid_index == 3
    assert gid_findings("spark-153", facts, "192.168.0.153") == []


def test_no_index_right_on_all_and_nccl_wrong_by_itself_is_said(tmp_path):
    hcas, links = twins(153)
    for hca in hcas:
        if hca.name == "roceP2p1s0f1":
            hca.gids = {1: hca.gids[1], 5: hca.gids[3]}
    facts = spark(153, hcas=hcas, links=links).facts(tmp_path)
    (finding,) = gid_findings("spark-153", facts, "192.168.0.153")
    assert (finding.level, finding.code, finding.node) == ("warning", "gid-ambiguous", "spark-153")
    assert "10.9.0.153" in finding.message
    assert gid_findings("spark-153", spark(153).facts(tmp_path / "b"), "192.168.0.153") == []  # 3 is right on both
