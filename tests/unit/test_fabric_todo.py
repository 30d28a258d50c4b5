"""What the fabric role does on a node, from facts of recorded trees: netplan, lossless class, firewall, refusals."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
import yaml
from gb10_node import Hca, Link, container, plan_of, running, spark, twins

from gb10 import firewall, lossless, netplan, rails
from gb10.assess import assess
from gb10.fabric_todo import Wanted, fabric_findings, fabric_paths, fabric_todo, read_wanted, todos
from gb10.managed import idle, with_parents
from gb10.nodes import _stated_rails
from gb10.settings import BadValue

PEERS = ["192.168.0.153", "192.168.0.147"]
BASE = {"ansible_host": "192.168.1.153", "fabric_rail_subnets": ["192.168.0.0/24", "192.168.2.0/24"]}
CLASS = {"dscp_prio": [[26, 3]], "prio_pfc": [False, False, False, True, False, False, False, False], "pfc_cap": 8}
PLAIN = {"dscp_prio": [], "prio_pfc": [False] * 8, "pfc_cap": 8}
EMPTY = {key: [] for key in ("keep", "packages", "directories", "files", "links", "start", "stop", "absent")}
NETPLAN = "/etc/netplan/60-gb10-fabric.yaml"


def node(tmp_path, octet=153, own=(), cabled="f1", **changes: Any):
    """A node with the report's addresses only, and facts of all files the role may write."""
    hcas, links = twins(octet, cabled)
    for link in links:
        link.addresses = list(own) if own is None else [a for a in link.addresses if not a.startswith("10.9.")]
    tree = spark(octet, **{"hcas": hcas, "links": links} | changes)
    return tree.facts(tmp_path, files=with_parents(fabric_paths({})))


# --- twins and addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cabled", ["f0", "f1"])
def test_the_cabled_pair_in_rail_order(tmp_path, cabled):
    """Case 13: PCI domain 0 first, whichever port is cabled."""
    number = cabled[1]
    facts = node(tmp_path, cabled=cabled)
    assert rails.interfaces(facts) == [f"enp1s0{cabled}np{number}", f"enP2p1s0{cabled}np{number}"]
    assert [(t.port, t.domain, t.live) for t in rails.twins(facts)] == [
        ("p1s0f0", 0, cabled == "f0"),
        ("p1s0f0", 2, cabled == "f0"),
        ("p1s0f1", 0, cabled == "f1"),
        ("p1s0f1", 2, cabled == "f1"),
    ]


def test_a_carrier_counts_where_the_port_is_not_active_yet(tmp_path):
    hcas, links = twins(153)
    for hca in hcas:
        hca.state = "1: DOWN"
    for link in links:
        link.carrier = link.name == "enp1s0f1np1"
    facts = spark(153, hcas=hcas, links=links).facts(tmp_path)
    assert rails.interfaces(facts) == ["enp1s0f1np1"]
    (finding,) = rails.twin_findings("spark-153", facts)
    assert (finding.level, finding.code, finding.node) == ("warning", "twin-down", "spark-153")
    assert "roceP2p1s0f1" in finding.message


@pytest.mark.parametrize(
    ("own", "management", "expected"),
    [
        ([], "192.168.1.153", ["192.168.0.153/24", "192.168.2.153/24"]),
        (["10.0.0.7/16"], "192.168.1.153", ["10.0.0.7/16"]),
        ([], "spark-153.example", []),
        ([], "192.168.1.0", []),
        ([], "192.168.1.255", []),
    ],
)
def test_addresses_follow_the_management_address(own, management, expected):
    networks = rails.subnets(BASE["fabric_rail_subnets"])
    assert [str(a) for a in rails.addresses(networks, own, management)] == expected


@pytest.mark.parametrize(
    ("parse", "value", "says"),
    [
        (rails.subnets, ["192.168.0.0/24", "192.168.0.0/16"], "each of its own"),
        (rails.subnets, ["192.168.0.1/24"], "IPv4 networks"),
        (rails.subnets, ["fd00::/64"], "IPv4 networks"),
        (rails.stated, ["192.168.0.153"], "192.168.0.153/24"),
        (rails.stated, ["enp1s0f1np1"], "one a rail"),
        (firewall.networks, ["192.168.1.1/24"], "addresses and networks"),
        (firewall.port_ranges, ["60999-32768"], "low to high"),
        (firewall.port_ranges, ["http"], "integer"),
        (firewall.port_ranges, "32768-60999", "a list"),
    ],
)
def test_bad_values_say_what_would_be_right(parse, value, says):
    with pytest.raises(BadValue, match=says):
        parse(value)


@pytest.mark.parametrize(
    ("variables", "codes"),
    [
        ({}, []),
        ({"fabric_rails": ["192.168.0.153/24", "192.168.2.153/24"]}, []),
        ({"fabric_rails": ["192.168.0.153/24", "192.168.0.154/24"]}, ["rails-share-subnet"]),
        ({"fabric_rails": ["192.168.0.153/24", "192.168.0.154/16"]}, ["rails-share-subnet"]),
        ({"fabric_rails": ["169.254.3.1/16", "192.168.2.153/24"]}, ["address-link-local"]),
        ({"fabric_rails": "192.168.0.153/24"}, ["setting-invalid"]),
        ({"fabric_interfaces": ["enp1s0f1np1; reboot"]}, ["setting-invalid"]),
    ],
)
def test_stated_rails_are_judged_before_a_node_is_contacted(variables, codes):
    """Case 8."""
    found = _stated_rails("spark-153", variables)
    assert [f.code for f in found] == codes
    assert all(f.node == "spark-153" for f in found)
    assert {f.level for f in found} <= ({"error"} if codes == ["setting-invalid"] else {"warning"})


# --- netplan ---------------------------------------------------------------------------------------------------------


def test_nothing_wanted_is_nothing_to_do(tmp_path):
    facts = node(tmp_path)
    assert fabric_todo(facts, BASE, PEERS) == EMPTY | {"netplan": None}
    assert fabric_findings("spark-153", facts, BASE) == []


def test_the_netplan_file_gives_each_twin_its_address(tmp_path):
    todo = fabric_todo(node(tmp_path), BASE | {"fabric_netplan": True}, PEERS)
    plan = todo["netplan"]
    assert (plan["path"], plan["apply"]) == (NETPLAN, False)  # everything is in place already
    held = yaml.safe_load(plan["content"])["network"]
    assert held["version"] == 2
    assert {name: (about["addresses"], about["mtu"], about["dhcp4"]) for name, about in held["ethernets"].items()} == {
        "enp1s0f1np1": (["192.168.0.153/24"], 9000, False),
        "enP2p1s0f1np1": (["192.168.2.153/24"], 9000, False),
    }
    assert {"kind": "directory", "name": "/etc/netplan"} in todo["keep"]
    assert [item["name"] for item in todo["keep"] if item["kind"] == "file"] == [NETPLAN]


def test_the_same_file_again_is_nothing_to_do(tmp_path):
    wanted = BASE | {"fabric_netplan": True}
    content = fabric_todo(node(tmp_path), wanted, PEERS)["netplan"]["content"]
    facts = node(tmp_path / "again", netplan={"60-gb10-fabric.yaml": content})
    held = facts["files"][NETPLAN]
    held |= {"mode": "0600", "owner": "root", "group": "root"}
    assert fabric_todo(facts, wanted, PEERS) == EMPTY | {"netplan": None}
    assert fabric_findings("spark-153", facts, wanted) == []
    held["mode"] = "0644"
    assert fabric_todo(facts, wanted, PEERS)["netplan"]


def bare(tmp_path, **changes):
    """A node whose cabled twins have no address yet."""
    hcas, links = twins(153)
    for link in links:
        link.addresses = [] if link.mtu == 9000 else link.addresses
    return spark(153, hcas=hcas, links=links, **changes).facts(tmp_path, files=with_parents(fabric_paths({})))


@pytest.mark.parametrize(
    ("apply", "rank", "level", "code"),
    [
        (False, False, "warning", "netplan-not-applied"),
        (False, True, "warning", "netplan-not-applied"),
        (True, False, None, None),
        (True, True, "error", "netplan-under-rank"),
    ],
)
def test_netplan_is_never_applied_under_a_rank(tmp_path, apply, rank, level, code):
    facts = bare(tmp_path, **({"docker": running(container())} if rank else {}))
    wanted = BASE | {"fabric_netplan": True, "fabric_netplan_apply": apply}
    assert [(f.level, f.code) for f in fabric_findings("spark-153", facts, wanted)] == ([(level, code)] if code else [])
    assert fabric_todo(facts, wanted, PEERS)["netplan"]["apply"] == apply


def other(interface="enp1s0f1np1", **about):
    return yaml.safe_dump({"network": {"version": 2, "ethernets": {interface: about}}})


@pytest.mark.parametrize(
    ("files", "code", "says"),
    [
        ({"01-old.yaml": other(addresses=["192.168.0.153/24"])}, None, ""),
        ({"01-old.yaml": other(addresses=["10.9.0.153/24"])}, "netplan-merged", "10.9.0.153/24"),
        ({"99-late.yaml": other(addresses=["10.9.0.153/24"])}, "netplan-merged", "99-late.yaml"),
        ({"01-old.yaml": other(addresses=[{"10.9.0.153/24": {"label": "x"}}])}, "netplan-merged", "10.9.0.153/24"),
        ({"01-old.yaml": other(dhcp4=True)}, "netplan-merged", "DHCP"),
        ({"01-old.yaml": other("nm", match={"name": "enp1s0*"}, dhcp4=True)}, "netplan-merged", "enp1s0f1np1"),
        ({"01-old.yaml": other(mtu=1500)}, "netplan-mtu", "1500"),
        ({"01-old.yaml": other("enp1s0f0np0", dhcp4=True)}, None, ""),
        ({"01-old.yaml": "network: [broken"}, "netplan-broken", "01-old.yaml"),
        ({"01-old.yaml": "network: {ethernets: [1]}"}, "netplan-broken", "01-old.yaml"),
        ({"60-gb10-fabric.yaml": other(addresses=["10.9.0.153/24"])}, None, ""),  # ours, to be replaced
    ],
)
def test_other_files_that_would_be_merged_are_refused(tmp_path, files, code, says):
    found = fabric_findings("spark-153", node(tmp_path, netplan=files), BASE | {"fabric_netplan": True})
    assert [f.code for f in found] == ([code] if code else [])
    if code:
        assert says in found[0].message
        assert found[0].level == ("warning" if code == "netplan-mtu" else "error")


def test_a_password_in_netplan_does_not_leave_the_node(tmp_path):
    text = yaml.safe_dump({"network": {"wifis": {"wlP9s9": {"access-points": {"home": {"password": "hunter2"}}}}}})
    for files in ({"90-wifi.yaml": text}, {"90-wifi.yaml": text + "  bad: [hunter2"}):
        assert "hunter2" not in str(node(tmp_path / str(len(files["90-wifi.yaml"])), netplan=files)["netplan"])


@pytest.mark.parametrize(
    ("changes", "variables", "code"),
    [
        ({"programs": ()}, {}, "netplan-missing"),
        ({}, {"fabric_rail_subnets": ["192.168.0.0/24"]}, "rails-not-matching"),
        ({}, {"fabric_rails": ["192.168.0.153/24"]}, "rails-not-matching"),
        ({"hcas": []}, {}, "rails-not-matching"),
        ({}, {"fabric_interfaces": ["enp1s0f1np1", "eth7"]}, "interface-not-found"),
        ({}, {"fabric_netplan_file": "netplan.yaml"}, "setting-invalid"),
        ({}, {"fabric_mtu": "9k"}, "setting-invalid"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, changes, variables, code):
    found = fabric_findings("spark-153", node(tmp_path, **changes), BASE | {"fabric_netplan": True} | variables)
    assert code in [f.code for f in found if f.level == "error" and f.node == "spark-153"]


# --- lossless class --------------------------------------------------------------------------------------------------

LOSSLESS = BASE | {"fabric_lossless": True}
BOTH = dict.fromkeys(("enp1s0f1np1", "enP2p1s0f1np1"), CLASS)


def test_the_class_is_made_where_it_lacks_and_at_boot(tmp_path):
    facts = node(tmp_path, dcb={"enp1s0f1np1": CLASS, "enP2p1s0f1np1": PLAIN})
    todo = fabric_todo(facts, LOSSLESS, PEERS)
    assert todo["start"] == ["gb10-lossless@enP2p1s0f1np1.service"]
    assert [item["path"] for item in todo["files"]] == [lossless.UNIT]
    assert [item["path"] for item in todo["links"]] == [lossless.link("enp1s0f1np1"), lossless.link("enP2p1s0f1np1")]
    unit = todo["files"][0]["content"]
    assert "ExecStart=/usr/sbin/dcb app replace dev %i dscp-prio 26:3\n" in unit
    assert "ExecStart=/usr/sbin/dcb pfc set dev %i prio-pfc 3:on\n" in unit


def settled(tmp_path, **changes):
    links = {lossless.link(name): "" for name in BOTH}
    facts = node(tmp_path, system={lossless.UNIT: lossless.unit(), **links}, **{"dcb": BOTH} | changes)
    facts["files"][lossless.UNIT] |= {"mode": "0644", "owner": "root", "group": "root"}
    return facts


def test_a_node_that_has_it_is_left_alone(tmp_path):
    facts = settled(tmp_path)
    assert facts["lossless"]["interfaces"]["enp1s0f1np1"] == {"dscp_priority": {"26": 3}, "pfc": [3]}
    assert fabric_todo(facts, LOSSLESS, PEERS) == EMPTY | {"netplan": None}
    assert fabric_findings("spark-153", facts, LOSSLESS) == []


@pytest.mark.parametrize(
    "held",
    [
        CLASS | {"dscp_prio": []},
        CLASS | {"dscp_prio": [[26, 4]]},
        CLASS | {"prio_pfc": [False] * 8},
        CLASS | {"prio_pfc": [True, True, True, False, True, True, True, True]},
    ],
)
def test_half_a_class_is_made_whole(tmp_path, held):
    facts = settled(tmp_path, dcb=BOTH | {"enp1s0f1np1": held})
    assert fabric_todo(facts, LOSSLESS, PEERS)["start"] == ["gb10-lossless@enp1s0f1np1.service"]


@pytest.mark.parametrize("variables", [BASE, LOSSLESS | {"nccl_transport": "socket"}])
def test_turned_off_it_goes(tmp_path, variables):
    todo = fabric_todo(settled(tmp_path), variables, PEERS)
    assert sorted(todo["stop"]) == sorted(lossless.service(name) for name in BOTH)
    assert set(todo["absent"]) == {lossless.UNIT, *(lossless.link(name) for name in BOTH)}
    assert todo["start"] == []


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"dcb": BOTH}, None, ""),
        ({"dcb": {"enp1s0f1np1": CLASS}}, "dcb-unsupported", "enP2p1s0f1np1"),
        ({"programs": ()}, "dcb-missing", "dcb"),
    ],
)
def test_a_driver_without_dcb_is_a_finding(tmp_path, changes, code, says):
    found = fabric_findings("spark-153", node(tmp_path, **changes), LOSSLESS)
    assert [f.code for f in found] == ([code] if code else [])
    assert says in "".join(f.message for f in found)


# --- firewall --------------------------------------------------------------------------------------------------------

FIREWALL = BASE | {"fabric_firewall": True, "fabric_api_sources": ["192.168.1.0/24", "fd00::/64"]}


def test_rules_drop_only_opening_packets_to_our_ports():
    wanted = read_wanted(FIREWALL)[0]
    rules = firewall.rules(8000, wanted.fabric_api_sources, wanted.guarded(), PEERS)
    assert rules == [
        'iifname "lo" accept',
        "ip saddr { 192.168.0.147/32, 192.168.0.153/32, 192.168.1.0/24 } tcp dport 8000 accept",
        "ip6 saddr { fd00::/64 } tcp dport 8000 accept",
        f"{firewall.OPENING} tcp dport 8000 counter drop",
        "ip saddr { 192.168.0.147/32, 192.168.0.153/32 } tcp dport { 29501, 29700-29703, 32768-60999 } accept",
        f"{firewall.OPENING} tcp dport {{ 29501, 29700-29703, 32768-60999 }} counter drop",
    ]


def test_networks_and_ports_that_overlap_are_joined():
    """nft refuses a set whose elements overlap."""
    sources = firewall.networks(["192.168.0.0/24", "192.168.0.7"])
    rules = firewall.rules(8000, sources, [(29501, 29501), (29000, 30000), (30001, 30010)], PEERS)
    assert "ip saddr { 192.168.0.0/24 } tcp dport 8000 accept" in rules
    assert f"{firewall.OPENING} tcp dport {{ 29000-30010 }} counter drop" in rules


def test_an_open_api_inside_the_ranks_ports_stays_open():
    rules = firewall.rules(40000, [], [(32768, 60999)], PEERS)
    assert rules.index("tcp dport 40000 accept") < rules.index(
        f"{firewall.OPENING} tcp dport {{ 32768-60999 }} counter drop"
    )


def loaded(tmp_path, comment, count, **changes):
    table = {"table": {"family": "inet", "name": "gb10", "comment": comment}}
    nft = {"nftables": [{"metainfo": {}}, table, {"chain": {}}, *({"rule": {}} for _ in range(count))]}
    first = fabric_todo(node(tmp_path), FIREWALL, PEERS)
    system = {item["path"]: item["content"] for item in first["files"]} | {firewall.LINK: ""}
    facts = node(tmp_path / "loaded", nft=nft, system=system, **changes)
    for path in (firewall.UNIT, firewall.RULES):
        facts["files"][path] |= {"mode": "0644", "owner": "root", "group": "root"}
    return facts


def right_rules():
    wanted = read_wanted(FIREWALL)[0]
    return firewall.rules(8000, wanted.fabric_api_sources, wanted.guarded(), PEERS)


@pytest.mark.parametrize(
    ("comment", "count", "start"),
    [
        (firewall.digest(right_rules()), len(right_rules()), []),
        (firewall.digest(right_rules()), len(right_rules()) - 1, [firewall.SERVICE]),  # somebody removed a rule
        ("other", len(right_rules()), [firewall.SERVICE]),
    ],
)
def test_rules_are_loaded_where_others_are_in_force(tmp_path, comment, count, start):
    todo = fabric_todo(loaded(tmp_path, comment, count), FIREWALL, PEERS)
    kept = [{"kind": "unit", "name": firewall.SERVICE}] if start else []
    assert todo == EMPTY | {"netplan": None, "start": start, "keep": kept}


def test_a_new_node_changes_the_rules(tmp_path):
    facts = loaded(tmp_path, firewall.digest(right_rules()), len(right_rules()))
    todo = fabric_todo(facts, FIREWALL, [*PEERS, "192.168.0.157"])
    assert ([item["path"] for item in todo["files"]], todo["start"]) == ([firewall.RULES], [firewall.SERVICE])


def test_turned_off_the_table_goes(tmp_path):
    todo = fabric_todo(loaded(tmp_path, "x", 1), BASE, PEERS)
    assert todo["stop"] == [firewall.SERVICE]
    assert set(todo["absent"]) == {firewall.LINK, firewall.UNIT, firewall.RULES}


@pytest.mark.parametrize(
    ("variables", "changes", "code"),
    [
        ({"ansible_port": 40022}, {}, "firewall-cuts-ssh"),
        ({"fabric_rank_ports": ["1-1024"]}, {}, "firewall-cuts-ssh"),
        ({}, {"programs": (), "docker": running(container())}, "install-refused"),
        ({}, {"programs": ()}, None),
        ({}, {}, None),
    ],
)
def test_ssh_is_never_cut(tmp_path, variables, changes, code):
    found = fabric_findings("spark-153", node(tmp_path, **changes), FIREWALL | variables)
    assert [f.code for f in found] == ([code] if code else [])
    todo = fabric_todo(node(tmp_path / "b", **changes), FIREWALL | variables, PEERS)
    assert todo["packages"] == ([] if changes.get("programs") is None else ["nftables"])


# --- all nodes -------------------------------------------------------------------------------------------------------


def test_what_is_only_looked_at_is_nothing_to_do(tmp_path):
    done = fabric_todo(settled(tmp_path), LOSSLESS, PEERS) | {"reach": [{"name": "spark-161"}]}
    assert idle(done)
    assert [key for key in done if idle(done | {key: ["x"]})] == ["reach"]
    assert not idle(fabric_todo(node(tmp_path / "new"), LOSSLESS, PEERS))


def test_every_node_reaches_every_peer_on_every_rail(tmp_path):
    facts = {f"spark-{o}": node(tmp_path / str(o), o, cabled=c) for o, c in ((153, "f1"), (147, "f0"), (157, "f1"))}
    addresses = {name: name.replace("spark-", "192.168.0.") for name in facts}
    made = todos(facts, dict.fromkeys(facts, BASE), addresses)
    assert {(t["name"], t["rail"], t["source"], t["address"]) for t in made["spark-153"]["reach"]} == {
        (f"spark-{octet}", f"192.168.{net}.0/24", f"192.168.{net}.153", f"192.168.{net}.{octet}")
        for octet in (147, 157)
        for net in (0, 2)
    }


def test_swapped_twins_are_refused_and_the_node_named(tmp_path):
    facts = {f"spark-{o}": node(tmp_path / str(o), o, cabled=c) for o, c in ((153, "f1"), (147, "f0"), (157, "f1"))}
    plan = plan_of(153, 147, 157)
    assert "odd-rail-subnets" not in [f.code for f in assess(plan, facts, {})]
    for link in facts["spark-157"]["links"]:
        for address in link["addresses"]:
            swapped = {"192.168.0.157": "192.168.2.157", "192.168.2.157": "192.168.0.157"}
            address["address"] = swapped.get(address["address"], address["address"])
    (finding,) = [f for f in assess(plan, facts, {}) if f.code == "odd-rail-subnets"]
    assert (finding.level, finding.node) == ("error", "spark-157")
    assert "192.168.2.0/24, then 192.168.0.0/24" in finding.message


@pytest.mark.parametrize(("pending", "refused"), [([], True), (["spark-153"], False)])
def test_rails_that_get_their_address_now_do_not_stand_against_the_plan(tmp_path, pending, refused):
    facts = {"spark-153": bare(tmp_path)}
    found = [f.code for f in assess(plan_of(153), facts, {"fabric_pending": pending}) if f.level == "error"]
    assert ("no-hca" in found) == ("fabric-address-missing" in found) == refused


def test_defaults_are_those_of_the_role():
    wanted, findings = read_wanted({})
    assert findings == []
    assert wanted == Wanted()
    assert wanted.fabric_netplan is wanted.fabric_lossless is wanted.fabric_firewall is False


def test_in_place_needs_address_interface_and_mtu():
    wanted = {"rail0": ipaddress.IPv4Interface("10.0.0.1/24")}
    link = {"name": "rail0", "mtu": 9000, "addresses": [{"family": "inet", "address": "10.0.0.1", "prefix": 24}]}
    assert netplan.in_place({"links": [link]}, wanted, 9000)
    assert not netplan.in_place({"links": [link | {"mtu": 1500}]}, wanted, 9000)
    assert not netplan.in_place({"links": [link | {"name": "rail1"}]}, wanted, 9000)
    assert not netplan.in_place(
        {"links": [link | {"addresses": [{**link["addresses"][0], "prefix": 16}]}]}, wanted, 9000
    )


def test_a_single_device_needs_no_twin(tmp_path):
    facts = spark(153, hcas=[Hca("mlx5_0", "enp1s0")], links=[Link("enp1s0", ["10.0.0.1/24"])]).facts(tmp_path)
    assert rails.interfaces(facts) == ["enp1s0"]
    assert rails.twin_findings("spark-153", facts) == []
