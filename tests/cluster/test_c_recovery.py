"""The cluster that test_c_cluster leaves: looked at, locked, killed and brought back, rolled back, stopped.

Its endpoint has an API key, which only a deploy is given.
"""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_run import (
    API_KEY,
    BIN,
    BOOT,
    INVENTORY,
    KEY_FILE,
    identities,
    inventory_hosts,
    on_node,
    play,
    play_command,
    ranks,
    run,
    running,
)
from support import ROOT
from test_c_cluster import COUNTED, models, profiles, until_said

# RENAMED is the node test_c_cluster took off the network: its interface has another name now, and its first one again
# after a restart.
HEAD, WORKER, OTHER, RENAMED = "spark-153", "spark-148", "spark-147", "spark-161"


@pytest.fixture(scope="module", autouse=True)
def _key() -> Iterator[None]:
    """What comes after this module deploys without one."""
    yield
    on_node(HEAD, "rm", "-rf", str(Path(KEY_FILE).parent))


def look(verb: str, *more: Any) -> tuple[int, dict[str, Any]]:
    """``gb10 VERB -o json``: exit status and document."""
    done = run([BIN / "gb10", verb, "-i", INVENTORY, "-o", "json", *more], 300)
    assert done.stdout, done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


def test_status_and_drift_of_a_cluster_that_serves() -> None:
    status, document = look("status")
    assert (status, document["troubles"], document["endpoint_fault"]) == (0, [], "")
    assert {one["phase"] for one in document["nodes"]} == {"ready"}
    assert {one["image_digest"] for one in document["nodes"]} == {rank["Image"] for rank in ranks().values()}
    assert all(one["memory_available_kib"] > 0 for one in document["nodes"])
    status, document = look("drift")
    assert (status, document["drift"]) == (0, False), document
    text = run([BIN / "gb10", "logs", "-i", INVENTORY, "-n", "5"], 300).stdout
    assert all(f"== {node}" in text for node in inventory_hosts())


def test_a_second_operator_is_refused_and_a_killed_ones_lock_is_taken_over() -> None:
    """Also Ctrl-C before a rank is touched: nothing is left to bring back."""
    before = identities()
    command = play_command("playbooks/serve.yml", "-e", "max_num_seqs=4")
    with running(command, API_KEY) as process:
        until_said(process, "TASK [serve : The run has a name]", 300)
        process.send_signal(signal.SIGSTOP)  # an operator who takes his time
        refused = play("playbooks/stop.yml")
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert refused.returncode != 0
    said = " ".join((refused.stdout + refused.stderr).split())
    assert "cluster-locked" in said
    assert f"(pid {process.pid})" in said
    taken = play("playbooks/recover.yml")
    assert taken.returncode == 0, taken.stdout[-3000:]
    assert "has ended without freeing the lock" in taken.stdout
    assert "nothing to do" in taken.stdout
    assert identities() == before
    assert on_node(HEAD, "test", "-e", "/run/gb10-lock.json").returncode != 0


def test_a_run_killed_between_the_key_and_the_restart_is_seen() -> None:
    """The head keeps another key than its rank carries: told by status and drift, and recover would restart."""
    kept = on_node(HEAD, "cat", KEY_FILE).stdout
    try:
        on_node(HEAD, "sed", "-i", "s/$/2/", KEY_FILE)
        _status, document = look("status")
        assert f"{HEAD}: the API key changed" in document["troubles"]
        assert document["endpoint_fault"] == "the endpoint asks for another API key"
        assert f"{HEAD}: the API key changed" in look("drift")[1]["restart"]
    finally:
        on_node(HEAD, "sed", "-i", "s/2$//", KEY_FILE)
    assert on_node(HEAD, "cat", KEY_FILE).stdout == kept
    assert look("status")[1]["troubles"] == []


def test_killed_ranks_are_seen_at_once_and_brought_back_by_one_command() -> None:
    """An engine's process, a node, a Docker engine; then the head is rebooted in the middle of the start."""
    engine = on_node(WORKER, "docker", "top", "gb10-rank", "-eo", "pid").stdout.split()[-1]
    on_node(WORKER, "kill", "-9", engine)
    subprocess.run(["docker", "restart", "--time", "1", OTHER], check=True, timeout=120, capture_output=True)
    _status, document = look("status")
    assert any(WORKER in trouble or "endpoint" in trouble for trouble in document["troubles"]), document["troubles"]
    assert any(OTHER in trouble for trouble in document["troubles"]), document["troubles"]
    assert look("drift")[0] == 2
    on_node("spark-158", "pkill", "-KILL", "-x", "dockerd")
    command = [BIN / "ansible-playbook", "-i", INVENTORY, "playbooks/recover.yml"]
    with running(command) as process:
        until_said(process, f"rank 0 on {HEAD}", 600)
        subprocess.run(["docker", "restart", "--time", "1", HEAD], check=True, timeout=120, capture_output=True)
        rest = process.communicate(timeout=400)[0]
    assert process.returncode != 0
    assert HEAD in rest[-8000:]
    done = run(command, BOOT)
    assert done.returncode == 0, done.stdout[-3000:]
    assert COUNTED in done.stdout
    assert look("status")[1]["troubles"] == []
    assert [models(key) for key in ("", API_KEY)] == [401, 200]
    kept = sorted((ROOT / "history/lab/logs").glob("*/*.log.gz"))
    assert any("vLLM" in gzip.decompress(path.read_bytes()).decode() for path in kept)


def test_rollback_brings_the_previous_good_deployment() -> None:
    (now,) = profiles(ranks())
    done = play("playbooks/rollback.yml")
    assert done.returncode == 0, done.stdout[-3000:]
    assert COUNTED in done.stdout
    (then,) = profiles(ranks())
    assert {now, then} == {"tp8-300k", "tp8-1m"}
    assert [models(key) for key in ("", API_KEY)] == [401, 200]
    engine = max((ROOT / "history/lab/logs").glob("*/engine.json"), key=lambda path: path.stat().st_mtime)
    figures = json.loads(engine.read_text())["ranks"][HEAD]
    assert figures["kv_tokens"] > 0


def test_stop_leaves_no_rank_and_recover_leaves_it_so() -> None:
    done = play("playbooks/stop.yml")
    assert done.returncode == 0, done.stdout[-3000:]
    assert set(map(bool, ranks().values())) == {False}
    again = play("playbooks/recover.yml")
    assert again.returncode == 0, again.stdout[-3000:]
    assert "stopped on purpose" in again.stdout
    assert set(map(bool, ranks().values())) == {False}
    _status, document = look("drift")
    assert (document["ranks"], document["restart"]) == ({}, [])


def test_a_node_that_lost_what_its_rank_was_told_to_use_is_named_before_any_rank_is_touched() -> None:
    (then,) = {on_node(node, "cat", "/var/lib/gb10/wanted.json").stdout for node in inventory_hosts()}
    subprocess.run(["docker", "restart", "--time", "1", RENAMED], check=True, timeout=120, capture_output=True)
    refused = play("playbooks/rollback.yml")
    assert refused.returncode != 0
    said = " ".join(refused.stdout.split())
    assert f"error [device-gone] {RENAMED}: " in said
    assert "interface eth1 (it has docker0, eth0, lo)" in said
    assert {on_node(node, "cat", "/var/lib/gb10/wanted.json").stdout for node in inventory_hosts()} == {then}
