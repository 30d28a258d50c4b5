"""What runs against what should, field by field, and what of the preparation is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import hosts

from gb10 import deploy, drift, plan


@pytest.fixture(name="deployment", scope="module")
def _deployment() -> dict[str, Any]:
    return deploy.resolve(plan.build("tp8-300k", hosts("tp8-300k"), {"vllm-dsv41:engram-mem": "sha256:aa"}), {})


def facts(deployment: dict[str, Any]) -> dict[str, Any]:
    """``gb10_facts`` of eight nodes that run it to the letter."""
    found = {}
    for rank in deployment["ranks"]:
        made = {key: rank[key] for key in ("argv", "env", "ulimits", "cap_add", "devices", "gpus", "mounts")}
        made |= {"env_of_image": {"PATH": "/usr/bin"}, "memory_bytes": 112 << 30, "shm_bytes": 8 << 30}
        container = {"ours": True, "state": "running", "exit_code": 0, "image_id": "sha256:aa", "made_from": made}
        container |= {"labels": deploy.container(deployment, rank, "run")["labels"], "image": rank["image"]}
        found[rank["node"]] = {"docker": {"containers": [container]}}
    copied: dict[str, Any] = json.loads(json.dumps(found))
    return copied


def rank_of(document: dict[str, Any], node: str) -> dict[str, Any]:
    held: dict[str, Any] = document[node]["docker"]["containers"][0]
    return held


def test_what_runs_to_the_letter_is_no_drift(deployment: dict[str, Any]) -> None:
    document = drift.drift(deployment, facts(deployment), {}, [], "")
    assert document["drift"] is False
    assert drift.text(document) == "All is as it should be."


def test_a_container_changed_by_hand_is_seen_though_its_labels_are_right(deployment: dict[str, Any]) -> None:
    found = facts(deployment)
    made = rank_of(found, "spark-161")["made_from"]
    made["env"]["NCCL_BUFFSIZE"] = "4194304"
    made["argv"][made["argv"].index("--max-num-seqs") + 1] = "16"
    made["ulimits"]["memlock"] = "65536:65536"
    made["shm_bytes"] = 64 << 20
    document = drift.drift(deployment, found, {}, [], "")
    assert document["drift"]
    assert document["restart"] == [], "the labels say nothing of it"
    text = drift.text(document)
    for words in (
        "env NCCL_BUFFSIZE: 4194304 -> 1048576",
        "argv --max-num-seqs: 16 -> 8",
        "ulimit memlock",
        "shm size",
    ):
        assert f"spark-161: {words}" in text, words
    assert list(document["ranks"]) == ["spark-161"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": "exited", "exit_code": 137}, "spark-161: the rank exited with code 137"),
        ({"image_id": "sha256:bb"}, "spark-161: image digest: sha256:bb -> sha256:aa"),
        ({"ours": False}, "spark-161: rank: none -> 4"),
    ],
)
def test_a_rank_that_is_gone_or_another_is_drift(
    deployment: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    found = facts(deployment)
    rank_of(found, "spark-161").update(change)
    document = drift.drift(deployment, found, {}, [], "")
    assert document["drift"]
    assert words in drift.text(document)


def test_a_node_that_cannot_be_read_is_drift_and_nothing_is_said_of_its_rank(deployment: dict[str, Any]) -> None:
    found = facts(deployment)
    del found["spark-161"]
    document = drift.drift(deployment, found, {}, ["spark-161"], "")
    assert drift.text(document) == "spark-161: could not be read"
    assert document["drift"]


def test_an_endpoint_that_answers_wrong_is_drift(deployment: dict[str, Any]) -> None:
    document = drift.drift(deployment, facts(deployment), {}, [], "timed out")
    assert (document["drift"], drift.text(document)) == (True, "the endpoint: timed out")


def test_a_rank_where_nothing_should_run_is_drift(deployment: dict[str, Any]) -> None:
    found = {"spark-161": facts(deployment)["spark-161"], "spark-162": {"docker": {"containers": []}}}
    text = drift.text(drift.drift(None, found, {}, [], None))
    assert "spark-161: a rank is there though all should be stopped" in text
    assert "spark-162" not in text
    assert not drift.drift(None, {"spark-162": found["spark-162"]}, {}, [], None)["drift"]


def test_what_preparation_would_still_do_is_drift(deployment: dict[str, Any]) -> None:
    todo = {
        "host_limits": {"keep": [{"name": "x"}], "files": [{"path": "/etc/sysctl.d/90-gb10.conf"}], "sysctls": {}},
        "docker": {"packages": ["docker.io"], "files": [], "notify": ["Docker restarts"], "start": False},
        "storage": {"mounts": [{"path": "/data", "src": "UUID=1"}], "probe": {"x": 1}},
        "fabric": {"reach": {"a": 1}, "netplan": None},
    }
    document = drift.drift(deployment, facts(deployment), {"spark-161": todo}, [], "")
    assert document["prepared"]["spark-161"] == [
        "host_limits: files /etc/sysctl.d/90-gb10.conf",
        "docker: packages docker.io",
        "storage: mounts /data",
    ]
    assert document["drift"]
