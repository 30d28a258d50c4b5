"""The fabric test on the lab, over TCP: an odd link is named, a node that dies is named, nothing is left running."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_run import BIN, ENVIRONMENT, INVENTORY, inventory_hosts, on_node, play, play_command, run
from support import ROOT

TEST = "playbooks/fabric_test.yml"
SECONDS = ("-e", "fabric_test_seconds=1")


def left_running() -> dict[str, str]:
    """Servers of the test by node."""
    found = {node: on_node(node, "pgrep", "-a", "-x", "iperf3").stdout for node in inventory_hosts()}
    return {node: text for node, text in found.items() if text}


@pytest.fixture(name="shaped")
def _shaped() -> Iterator[None]:
    """What spark-158 sends to spark-162 goes at 30 Mb/s."""
    commands = """\
qdisc add dev eth0 root handle 1: htb default 20
class add dev eth0 parent 1: classid 1:10 htb rate 30mbit
class add dev eth0 parent 1: classid 1:20 htb rate 90gbit
filter add dev eth0 parent 1: protocol ip u32 match ip dst 10.77.1.162/32 flowid 1:10
"""
    for line in commands.splitlines():
        done = on_node("spark-158", "tc", *line.split())
        assert done.returncode == 0, done.stderr
    yield
    on_node("spark-158", "tc", "qdisc", "del", "dev", "eth0", "root")


def test_the_odd_link_is_named(shaped: None, tmp_path: Path) -> None:
    files = {"fabric_test_file": tmp_path / "matrix.json", "fabric_test_picture": tmp_path / "matrix.svg"}
    done = play(
        TEST, *SECONDS, *(word for name, path in files.items() for word in ("-e", f"{name}={path}")), seconds=300
    )
    assert done.returncode != 0
    assert "tcp (iperf3, one stream), lab" in done.stdout
    matrix = json.loads(files["fabric_test_file"].read_text())
    (finding,) = matrix["findings"]
    assert (finding["code"], finding["node"]) == ("link-slow", "spark-158")
    assert "to spark-162" in finding["message"]
    (rail,) = matrix["rails"].values()
    values = {(a, b): rail["gbps"][i][j] for i, a in enumerate(matrix["nodes"]) for j, b in enumerate(matrix["nodes"])}
    assert values["spark-158", "spark-162"] < 0.04
    assert sum(value is not None for value in values.values()) == 8 * 7
    assert "spark-162" in files["fabric_test_picture"].read_text()
    assert left_running() == {}


def test_a_node_that_freezes_in_the_middle_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    matrix = tmp_path / "matrix.json"
    with log.open("w") as stream:
        command = play_command(TEST, *SECONDS, "-e", f"fabric_test_file={matrix}")
        process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=stream, stderr=stream)
        end = time.monotonic() + 120
        while "Senders measure" not in log.read_text() and time.monotonic() < end:
            time.sleep(0.2)
        try:
            subprocess.run(["docker", "pause", "spark-166"], check=True, capture_output=True, timeout=30)
            process.wait(timeout=480)
        finally:
            subprocess.run(["docker", "unpause", "spark-166"], check=True, capture_output=True, timeout=30)
    assert process.returncode not in (0, None), log.read_text()[-3000:]
    findings = json.loads(matrix.read_text())["findings"]
    assert findings
    assert all("spark-166" in (finding["node"] + finding["message"]) for finding in findings)
    assert {finding["code"] for finding in findings} == {"link-dead"}
    assert set(left_running()) <= {"spark-166"}  # which nobody could ask; its server ends by itself


def test_an_all_reduce_says_why_not() -> None:
    done = play("playbooks/all_reduce.yml", seconds=300)
    assert done.returncode != 0
    assert "container_gpus is empty" in done.stdout


FILE = "/etc/netplan/60-gb10-fabric.yaml"
GOOD = "network: {version: 2, ethernets: {rail9: {addresses: [10.9.9.9/24]}}}\n"
BAD = "network: {version: 2, ethernets: {rail9: {addresses: [10.9.9.9/99]}}}\n"


def netplan(**arguments: object) -> str:
    """The module on one node; what it said."""
    given = json.dumps({"path": FILE, "timeout": 20, **arguments})
    command = [BIN / "ansible", "-i", INVENTORY, "spark-148", "-b", "-m", "gb10_netplan", "-a", given]
    return run(command, 120).stdout


@pytest.fixture(name="no_netplan")
def _no_netplan() -> Iterator[None]:
    on_node("spark-148", "rm", "-f", FILE)
    yield
    on_node("spark-148", "rm", "-f", FILE)


def test_a_file_netplan_refuses_is_not_written(no_netplan: None) -> None:
    said = netplan(content=BAD)
    assert "error [netplan-refused]" in said
    assert "10.9.9.9/99" in said or "prefix" in said
    assert on_node("spark-148", "ls", "/etc/netplan").stdout == ""


def test_a_good_file_is_roots_alone_and_written_once(no_netplan: None) -> None:
    assert "CHANGED" in netplan(content=GOOD)
    assert "SUCCESS" in netplan(content=GOOD)
    assert on_node("spark-148", "stat", "-c", "%a %U", FILE).stdout == "600 root\n"
    assert on_node("spark-148", "cat", FILE).stdout == GOOD


@pytest.mark.parametrize("before", ["", GOOD.replace("9/24", "8/24")])
def test_what_cannot_be_applied_is_taken_back(no_netplan: None, before: str) -> None:
    """In a container netplan cannot be applied."""
    if before:
        assert "CHANGED" in netplan(content=before)
    said = netplan(content=GOOD, apply=True, expect=["10.9.9.9"])
    assert "error [netplan-rolled-back]" in said
    assert on_node("spark-148", "cat", FILE).stdout == before
