"""The table of a cluster, what is not as it should be, and what recover makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import hosts

from gb10 import deploy, deployments, plan, recovery, status

CLAIM = {"run": "20261130T120000Z-1", "time": "2026-11-30T12:00:00Z", "operator": "ada", "controller": "desk"}
Readings = dict[str, Any]
DIGEST = "sha256:" + "a" * 64


@pytest.fixture(name="deployment", scope="module")
def _deployment() -> dict[str, Any]:
    return deploy.resolve(
        plan.build("tp8-300k", hosts("tp8-300k"), {"vllm-dsv41:engram-mem": "sha256:" + "a" * 64}), {}
    )


def record(deployment: dict[str, Any], want: str = "serving") -> dict[str, Any]:
    held = deployments.read(deployments.record(want, CLAIM, deployment if want == "serving" else None))
    assert held
    return held


def healthy(deployment: dict[str, Any]) -> Readings:
    """What ``gb10_rank`` reads on eight nodes that serve."""
    found: Readings = {}
    for rank in deployment["ranks"]:
        labels = deploy.container(deployment, rank, "run")["labels"]
        state = {"exists": True, "running": True, "exit_code": 0, "labels": labels, "image_id": rank["image_digest"]}
        log = {"phase": "ready" if rank["rank"] == 0 else "profiling", "fault": None, "cause": "", "age_s": 900}
        node = {"total_kib": 128 << 20, "available_kib": 20 << 20, "gpus": [{"sm_mhz": "2400", "max_mhz": "3003"}]}
        found[rank["node"]] = {"rank": {**state, **log}, "node": node}
    return found


def test_a_healthy_cluster(deployment: dict[str, Any]) -> None:
    document = status.status(healthy(deployment), record(deployment), None, "")
    assert document["troubles"] == []
    text = status.text(document)
    assert len([line for line in text.splitlines() if " ready " in line]) == 8
    for words in ("a" * 12, "20.0 of 128.0", "2400 of 3003", "Should run: tp8-300k", "by ada on desk", "answers right"):
        assert words in text, words
    json.dumps(document)


def spoil(readings: Readings, node: str, **rank: Any) -> Readings:
    return readings | {node: {**readings[node], "rank": readings[node]["rank"] | rank}}


FAULT = {"code": "mtu", "line": "IBV_WC_RETRY_EXC_ERR(12)", "message": "m.", "remedy": "r."}


@pytest.mark.parametrize(
    ("change", "shown", "trouble"),
    [
        ({"running": False, "exit_code": 137, "cause": "RuntimeError: x"}, "exited 137", "exited with code 137"),
        ({"exists": False}, "none", "no rank container"),
        ({"exists": False, "problem": "Docker does not answer: refused"}, "no Docker", "no rank container"),
        ({"image_id": "sha256:bb"}, "running", "another image runs"),
        ({"labels": {}}, "running", "by hand"),
        ({"key_differs": True}, "running", "the API key changed"),
    ],
)
def test_a_rank_that_is_wrong_is_seen_and_restarts_all(
    deployment: dict[str, Any], change: dict[str, Any], shown: str, trouble: str
) -> None:
    readings = spoil(healthy(deployment), "spark-161", **change)
    document = status.status(readings, record(deployment), None, "")
    (one,) = [one for one in document["nodes"] if one["node"] == "spark-161"]
    assert one["container"] == shown
    (said,) = document["troubles"]
    assert said.startswith("spark-161: ")
    assert trouble in said
    found = recovery.recovery(record(deployment), readings, "", 3600)
    assert ([r.split(":")[0] for r in found.why], found.booting) == (["spark-161"], False)


def test_a_fault_in_the_log_is_the_last_error(deployment: dict[str, Any]) -> None:
    text = status.text(status.status(spoil(healthy(deployment), "spark-161", fault=FAULT), None, None, None))
    assert "[mtu] IBV_WC_RETRY_EXC_ERR(12)" in text
    assert "Nothing is on record." in text


def test_a_node_that_is_gone_is_one_trouble(deployment: dict[str, Any]) -> None:
    readings = healthy(deployment) | {"spark-161": None}
    document = status.status(readings, record(deployment), None, "nothing answers")
    assert document["troubles"] == ["spark-161 does not answer", "the endpoint: nothing answers"]
    assert "unreachable" in status.text(document)


def test_containers_that_all_run_with_a_dead_engine_are_not_healthy(deployment: dict[str, Any]) -> None:
    """kill -9 of an engine's process: every container runs, /health is 200, nothing answers."""
    readings = healthy(deployment)
    document = status.status(readings, record(deployment), None, "timed out")
    assert document["troubles"] == ["the endpoint: timed out"]
    assert recovery.recovery(record(deployment), readings, "timed out", 3600).why == ("the endpoint: timed out",)


@pytest.mark.parametrize(
    ("rank", "booting"),
    [
        ({"phase": "loading", "age_s": 300}, True),
        ({"phase": "", "age_s": 20}, True),  # it has said nothing yet
        ({"phase": "", "age_s": 90000}, False),  # it served for so long that its boot left the log
        ({"phase": "loading", "age_s": 4000}, False),  # longer than a boot takes
        ({"phase": "loading", "age_s": 300, "fault": FAULT}, False),
        ({"phase": "loading", "age_s": 300, "running": False}, False),
        ({"phase": "ready", "age_s": 300}, False),
    ],
)
def test_a_boot_in_progress_is_waited_for(deployment: dict[str, Any], rank: dict[str, Any], booting: bool) -> None:
    readings = spoil(healthy(deployment), deployment["head"], **rank)
    found = recovery.recovery(record(deployment), readings, "nothing answers", 3600)
    assert found.booting == booting
    assert bool(found.why) != booting


def test_stopped_on_purpose_is_well_unless_a_rank_is_left(deployment: dict[str, Any]) -> None:
    empty = {name: {"rank": {"exists": False}} for name in healthy(deployment)}
    assert status.status(empty, record(deployment, "stopped"), None, None)["troubles"] == []
    one = empty | {"spark-161": healthy(deployment)["spark-161"]}
    (said,) = status.status(one, record(deployment, "stopped"), None, None)["troubles"]
    assert said == "spark-161: a rank is there though all should be stopped"


def test_the_lock_is_shown(deployment: dict[str, Any]) -> None:
    held = {"held": {"run": "R", "verb": "deploy", "operator": "bob", "controller": "lap", "pid": 7}, "age": 65.2}
    document = status.status(healthy(deployment), record(deployment), held, "")
    assert "Locked: deploy, run R, by bob on lap (pid 7), for 65 s." in status.text(document)
    assert status.status(healthy(deployment), record(deployment), {"held": None}, "")["lock"] is None


def test_recover_does_nothing_where_nothing_is_to_be_done(deployment: dict[str, Any]) -> None:
    readings = healthy(deployment)
    for wanted, words in ((record(deployment), "nothing to do"), (record(deployment, "stopped"), "by ada on desk")):
        found = recovery.recovery(wanted, readings, "", 3600)
        assert (found.why, found.booting, found.fault) == ((), False, None)
        assert words in found.said


def test_recover_says_what_it_cannot_do(deployment: dict[str, Any]) -> None:
    readings = healthy(deployment)
    less = {name: one for name, one in readings.items() if name != "spark-161"}
    for wanted, given, code in (
        (None, readings, "record-missing"),
        (record(deployment), less, "record-strange"),
        (record(deployment), readings | {"spark-161": None}, "node-missing"),
    ):
        found = recovery.recovery(wanted, given, "", 3600)
        assert found.fault
        assert (found.fault.code, found.why, found.said) == (code, (), "")
