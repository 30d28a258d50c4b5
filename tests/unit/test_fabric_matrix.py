"""The fabric test: who sends to whom, what runs, what the programs print, which link is named."""

from __future__ import annotations

import json
from collections import Counter
from itertools import permutations

import pytest
from gb10_node import Link, container, running, spark, twins
from modules import load_module

from gb10 import bandwidth, fabric_matrix, heatmap, pairs
from gb10.fabric_test import Given, lost, plan_test

OCTETS = (153, 147, 157, 158, 161, 162, 166, 148)
SETTINGS = {
    "cluster_name": "gb10",
    "fabric_test_seconds": 2,
    "fabric_test_port": 18515,
    "fabric_test_under_rank": False,
}
# As ib_write_bw and ib_write_lat of perftest print them.
BW = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : rocep1s0f1
 GID index       : 3
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 1500.000000 != 3100.000000. CPU Frequency is not max.
 65536      20000            111.72             111.71             0.213070
---------------------------------------------------------------------------------------
"""
LAT = """\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]\
   99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.42           1.93         1.47     \t       1.48        \t0.00   \t\t1.57    \t\t1.93
"""
IPERF = json.dumps({"end": {"sum_sent": {"bits_per_second": 9e9}, "sum_received": {"bits_per_second": 8.5e9}}})


# --- who sends to whom -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(2, 10))
def test_every_ordered_pair_once_and_nobody_twice_in_a_step(count):
    names = [f"n{i}" for i in range(count)]
    steps = pairs.steps(names)
    assert len(steps) == 2 * (count - 1 + count % 2)
    for step in steps:
        assert max(Counter([*step, *step.values()]).values()) == 1
    assert Counter(pair for step in steps for pair in step.items()) == Counter(permutations(names, 2))


@pytest.mark.parametrize("names", [[], ["n0"]])
def test_no_pair_no_step(names):
    assert pairs.steps(names) == []


def given(tmp_path, octets=(153, 147), variables=None, **changes):
    facts = {}
    for octet in octets:
        hcas, links = twins(octet)
        facts[f"spark-{octet}"] = spark(octet, **{"hcas": hcas, "links": links} | changes).facts(tmp_path)
        facts[f"spark-{octet}"]["packages"] = {"perftest": "24.10", "iperf3": "3.16"}
    names = list(facts)
    return Given(facts, {n: variables or {} for n in names}, {n: n.replace("spark-", "192.168.0.") for n in names})


def test_rails_meet_by_network_and_gids_are_those_of_the_addresses(tmp_path):
    """The tables hold a link-local entry at 1, another subnet's at 2 and the own one at 3 (case 12)."""
    test, findings = plan_test(given(tmp_path), SETTINGS)
    assert findings == []
    sends = test["steps"][0]["spark-153"]
    assert {(t["receiver"], t["rail"], t["kind"]) for t in sends} == {
        ("spark-147", rail, kind) for rail in ("192.168.0.0/24", "10.9.2.0/24") for kind in ("gbps", "us")
    }
    first = next(t for t in sends if (t["rail"], t["kind"]) == ("192.168.0.0/24", "gbps"))
    server = next(s for s in test["servers"]["spark-147"] if str(s["port"]) in first["argv"])
    assert first["argv"] == [
        *["ib_write_bw", "-F", "-u", "20", "-d", "rocep1s0f1", "-p", str(server["port"]), "-x", "3"],
        *["-s", "65536", "-q", "4", "-D", "2", "--report_gbits", "192.168.0.147"],
    ]
    assert server["argv"][3:] == first["argv"][:-1]
    assert server["argv"][:2] == ["timeout", "--kill-after=5"]


def test_each_perftest_server_has_a_port_of_its_own(tmp_path):
    test, _ = plan_test(given(tmp_path, OCTETS), SETTINGS)
    for node, servers in test["servers"].items():
        ports = [server["port"] for server in servers]
        assert len(set(ports)) == len(ports) == 7 * 2 * 2
        used = [
            t["argv"][t["argv"].index("-p") + 1]
            for step in test["steps"]
            for ts in step.values()
            for t in ts
            if t["receiver"] == node
        ]
        assert sorted(used) == sorted(map(str, ports))


def test_the_lossless_class_is_used_where_it_is_on(tmp_path):
    test, _ = plan_test(given(tmp_path, variables={"fabric_lossless": True}), SETTINGS)
    assert all("--tclass=106" in t["argv"] for t in test["steps"][0]["spark-153"])
    assert all("--tclass=106" in s["argv"] for s in test["servers"]["spark-153"])


def test_over_sockets_it_is_iperf3_on_the_fabric_address(tmp_path):
    tree = given(tmp_path, variables={"nccl_transport": "socket"})
    test, findings = plan_test(tree, SETTINGS)
    assert (findings, test["tool"], test["label"]) == ([], "tcp", "tcp (iperf3, one stream), gb10")
    (transfer,) = test["steps"][0]["spark-153"]
    assert transfer["argv"][:3] == ["iperf3", "--client", "192.168.0.147"]
    assert transfer["argv"][3:5] == ["--bind", "192.168.0.153"]
    assert len(test["servers"]["spark-147"]) == 1


def test_nodes_without_a_common_network_meet_at_their_addresses(tmp_path):
    facts = {
        f"n{i}": spark(153, hostname=f"n{i}", hcas=[], links=[Link("eth0", [f"10.{i}.0.1/24"])]).facts(tmp_path)
        for i in (0, 1)
    }
    ends = {name: pairs.places(held, False, [], f"10.{name[1]}.0.1") for name, held in facts.items()}
    found = pairs.links(ends, {"n0": "10.0.0.1", "n1": "10.1.0.1"})
    assert [(link.rail, link.source, link.target) for link in found] == [
        ("routed", "10.0.0.1", "10.1.0.1"),
        ("routed", "10.1.0.1", "10.0.0.1"),
    ]


@pytest.mark.parametrize(
    ("changes", "settings", "codes"),
    [
        ({"docker": running(container())}, {}, ["test-under-rank"] * 2),
        ({"docker": running(container())}, {"fabric_test_under_rank": "true"}, []),
        ({"hcas": []}, {}, ["no-rail"] * 2),
        ({}, {"fabric_test_seconds": "long"}, ["setting-invalid"]),
        ({}, {"fabric_test_least_gbps": "-1"}, ["setting-invalid"]),
        ({}, {"fabric_test_least_gbps": "90"}, []),
    ],
)
def test_what_stands_against_it(tmp_path, changes, settings, codes):
    test, findings = plan_test(given(tmp_path, **changes), SETTINGS | settings)
    assert [f.code for f in findings] == codes
    assert bool(test) == (not codes)


def test_a_missing_program_and_a_single_node_are_said(tmp_path):
    one = given(tmp_path, (153,))
    one.facts["spark-153"]["packages"] = {}
    assert [f.code for f in plan_test(one, SETTINGS)[1]] == ["test-tool-missing", "no-pair"]


# --- what the programs print -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "output", "value"),
    [
        ("gbps", BW, 111.71),
        ("us", LAT, 1.47),
        ("gbps", IPERF, 8.5),
        ("us", BW, None),
        ("gbps", BW.replace(" 65536      20000", "Failed to"), None),
        ("gbps", '{"error": "unable to connect to server"}', None),
        ("gbps", '{"end": ', None),
        ("gbps", "", None),
        ("gbps", "Couldn't connect to 192.168.0.147:18515", None),
    ],
)
def test_values(kind, output, value):
    assert bandwidth.value_of(kind, output) == value


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"timed_out": True, "stdout": ""}, "no end within its time"),
        ({"stdout": '{"error": "unable to connect to server"}'}, "unable to connect to server"),
        ({"stdout": "", "stderr": "Couldn't connect to 192.168.0.147:18515\n"}, "Couldn't connect"),
        ({"stdout": "----\n", "stderr": "", "rc": 7}, "exit code 7"),
    ],
)
def test_problems(result, says):
    assert says in bandwidth.problem_of(result)


# --- the matrix ------------------------------------------------------------------------------------------------------

NAMES = [f"spark-{octet}" for octet in OCTETS]


def measured(cells=(), value=110.0, kind="gbps", rdma=True, dead=()):
    """Results of all pairs; ``cells``: (sender, receiver) -> value over the others."""
    own = dict(cells)
    template = BW.replace("111.71", "{:.2f}") if kind == "gbps" else LAT.replace("1.47", "{:.2f}")
    sent = {}
    for sender, receiver in permutations(NAMES, 2):
        out = template.format(own.get((sender, receiver), value))
        if not rdma:
            out = json.dumps({"end": {"sum_received": {"bits_per_second": own.get((sender, receiver), value) * 1e9}}})
        if sender in dead or receiver in dead:
            out = ""
        result = {"receiver": receiver, "rail": "192.168.0.0/24", "kind": kind, "stdout": out, "stderr": "no route"}
        sent.setdefault(sender, []).append(result)
    return sent


def found(sent, tool="rdma", **limits):
    document = fabric_matrix.build(NAMES, sent, tool, fabric_matrix.limits_of(tool, limits))
    return document, fabric_matrix.judge(document)


ALL_SENT = [(("spark-158", other), 13.0) for other in NAMES if other != "spark-158"]
ALL_RECEIVED = [((other, "spark-158"), 13.0) for other in NAMES if other != "spark-158"]


@pytest.mark.parametrize(
    ("cells", "node", "says"),
    [
        ([], None, ""),
        ([(("spark-158", "spark-162"), 13.0)], "spark-158", "to spark-162: 13.00 Gb/s"),
        ([(("spark-158", "spark-162"), 99.0)], "spark-158", "at least 100"),
        (ALL_SENT, "spark-158", "all it sends (7 links)"),
        (ALL_RECEIVED, "spark-158", "all it receives (7 links)"),
        (ALL_SENT + ALL_RECEIVED, "spark-158", "all links of spark-158"),
    ],
)
def test_the_odd_link_or_node_is_named(cells, node, says):
    """A link can negotiate 200 Gb/s and carry 13."""
    _document, findings = found(measured(cells))
    assert [(f.level, f.node, f.code) for f in findings] == ([("error", node, "link-slow")] if node else [])
    assert says in "".join(f.message for f in findings)


def test_two_odd_links_are_two_findings():
    cells = [(("spark-158", "spark-162"), 13.0), (("spark-153", "spark-147"), 20.0)]
    assert [f.node for f in found(measured(cells))[1]] == ["spark-153", "spark-158"]


@pytest.mark.parametrize(
    ("value", "limits", "odd"),
    [(3.0, {}, False), (3.1, {}, True), (8.0, {"most_us": 10}, False), (8.0, {"most_us": ""}, True)],
)
def test_latency_has_a_limit(value, limits, odd):
    findings = found(measured([(("spark-158", "spark-162"), value)], 1.5, "us"), **limits)[1]
    assert bool(findings) == odd


def test_over_tcp_only_the_others_tell():
    cells = [(("spark-158", "spark-162"), 0.03)]
    assert [f.node for f in found(measured(cells, 5.0, rdma=False), "tcp")[1]] == ["spark-158"]
    assert found(measured([(("spark-158", "spark-162"), 2.6)], 5.0, rdma=False), "tcp")[1] == []
    assert found(measured(cells, 5.0, rdma=False), "tcp", odd=0.001)[1] == []


def test_a_dead_node_is_named_once():
    document, (finding,) = found(measured(dead=("spark-166",)))
    assert (finding.node, finding.code) == ("spark-166", "link-dead")
    assert "no route" in finding.message
    assert len(document["problems"]) == 14


def test_a_node_that_could_not_be_asked_counts_as_failed():
    sent = measured()
    test = {
        "nodes": NAMES,
        "steps": [{s: [{k: v for k, v in r.items() if k != "stdout"} for r in rs]} for s, rs in sent.items()],
    }
    missing = lost(test, {name: results for name, results in sent.items() if name != "spark-166"})
    (finding,) = found(missing)[1]
    assert (finding.node, finding.code) == ("spark-166", "link-dead")
    assert "could not be asked" in finding.message


def test_the_table_has_senders_in_rows_and_marks():
    document, _ = found(measured([(("spark-158", "spark-162"), 13.0)], dead=("spark-166",)))
    lines = fabric_matrix.text(document, "rdma, gb10").splitlines()
    assert lines[1].split() == NAMES
    row = next(line.split() for line in lines if line.startswith("spark-158"))
    assert row[1:] == ["110.00", "110.00", "110.00", "-", "110.00", "13.00*", "x", "110.00"]


def test_the_document_survives_json():
    document, findings = found(measured([(("spark-158", "spark-162"), 13.0)]))
    again = json.loads(json.dumps(document))
    assert again["findings"] == [f.as_dict() for f in findings]
    assert again["rails"]["192.168.0.0/24"]["gbps"][3][5] == 13.0
    assert fabric_matrix.judge(again) == findings


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_picture_is_the_same_for_the_same_matrix(tmp_path, ending, magic):
    document, _ = found(measured([(("spark-158", "spark-162"), 13.0)], dead=("spark-166",)))
    paths = [tmp_path / f"{n}.{ending}" for n in (1, 2)]
    for path in paths:
        heatmap.write(document, "rdma, gb10", path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert first.startswith(magic)
    if ending == "svg":
        assert all(name in first.decode() for name in (*NAMES, "192.168.0.0/24", ">13<"))


@pytest.mark.parametrize("name", ["matrix.gif", "matrix"])
def test_another_ending_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"\.png or \.svg"):
        heatmap.write(found(measured())[0], "x", tmp_path / name)


# --- the module that runs them ---------------------------------------------------------------------------------------

module = load_module("gb10_bandwidth")
LISTEN = "import socket,sys,time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"


def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_servers_listen_and_are_ended_by_their_own_id(tmp_path):
    record, port = str(tmp_path / "record.json"), free_port()
    argv = ["timeout", "60", "python3", "-c", LISTEN, str(port)]
    assert module.start([{"port": port, "argv": argv}], record, 15) == ""
    (held,) = json.loads((tmp_path / "record.json").read_text())
    assert port in module.listening()
    assert "is taken" in module.start([{"port": port, "argv": argv}], record, 15)
    assert module.stop(record) == 1
    assert port not in module.listening()
    assert module.begun(held["pid"]) is None
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_took_the_id_is_left_alone(tmp_path):
    import subprocess

    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        record = tmp_path / "record.json"
        record.write_text(json.dumps([{"pid": other.pid, "begun": "1", "log": str(tmp_path / "log")}]))
        assert module.stop(str(record)) == 0
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize(
    ("argv", "says"),
    [(["sh", "-c", "echo no such device; exit 1"], "no such device"), (["/nonexistent"], "/nonexistent")],
)
def test_a_server_that_does_not_start_is_said(tmp_path, argv, says):
    assert says in module.start([{"port": free_port(), "argv": argv}], str(tmp_path / "r.json"), 10)


@pytest.mark.parametrize(
    ("argv", "timeout", "rc", "timed_out"),
    [
        (["echo", "x"], 5, 0, False),
        (["false"], 5, 1, False),
        (["sleep", "30"], 0.3, None, True),
        (["/nonexistent"], 5, None, False),
    ],
)
def test_a_transfer_is_told_whatever_happens(argv, timeout, rc, timed_out):
    result = module.transfer({"argv": argv, "timeout": timeout, "receiver": "x"})
    assert (result["rc"], result["timed_out"], result["receiver"]) == (rc, timed_out, "x")
