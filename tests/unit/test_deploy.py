"""From plan to containers: detected values, container arguments, reasons to restart."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from support import hosts

from gb10 import deploy, plan


@pytest.fixture(name="planned")
def _planned() -> dict[str, Any]:
    return plan.build("tp8-300k", hosts("tp8-300k"), {"vllm-dsv41:engram-mem": "sha256:aa"})


@pytest.fixture(name="deployment")
def _deployment(planned: dict[str, Any]) -> dict[str, Any]:
    known = {"NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1", "NCCL_SOCKET_IFNAME": "enp1s0f1np1"}
    return deploy.resolve(planned, {rank["node"]: known for rank in planned["ranks"]})


def running(deployment: dict[str, Any]) -> dict[str, Any]:
    return {
        rank["node"]: {
            "exists": True,
            "running": True,
            "image_id": "sha256:aa",
            "labels": deploy.container(deployment, rank, "run")["labels"],
        }
        for rank in deployment["ranks"]
    }


def test_what_a_node_tells_is_filled_in_and_what_it_does_not_is_left_out(
    planned: dict[str, Any], deployment: dict[str, Any]
) -> None:
    env = deployment["ranks"][2]["env"]
    assert env["NCCL_IB_HCA"] == "rocep1s0f1,roceP2p1s0f1"
    assert "GLOO_SOCKET_IFNAME" not in env
    assert "detected" not in env.values()
    assert planned["ranks"][2]["env"]["NCCL_IB_HCA"] == "detected"


def test_another_hca_is_another_plan_hash(planned: dict[str, Any], deployment: dict[str, Any]) -> None:
    known = {rank["node"]: {"NCCL_IB_HCA": "rocep1s0f0"} for rank in planned["ranks"]}
    assert deploy.resolve(planned, known)["plan_hash"] != deployment["plan_hash"]


def test_a_node_starts_the_image_by_what_its_store_calls_it(planned: dict[str, Any]) -> None:
    """Two image stores, one image: started by its own id on each, and nobody restarts for it."""
    mixed = deploy.resolve(planned, {}, {"spark-147": "sha256:bb"})
    images = {node: made["image"] for node, made in deploy.containers(mixed, "run").items()}
    assert images.pop("spark-147") == "sha256:bb"
    assert set(images.values()) == {"sha256:aa"}
    states = running(mixed)
    assert deploy.restart_reasons(mixed, states) == ["spark-147: another image runs (sha256:aa)"]
    states["spark-147"]["image_id"] = "sha256:bb"
    assert deploy.restart_reasons(mixed, states) == []


def test_container_arguments(deployment: dict[str, Any]) -> None:
    rank = deployment["ranks"][7]
    arguments = deploy.container(deployment, rank, "20261130T000000Z-1")
    assert arguments["image"] == "sha256:aa"
    assert arguments["command"] == rank["argv"]
    assert set(arguments["ulimits"]) == {"nofile:1048576:1048576", "memlock:-1:-1", "stack:67108864"}
    assert arguments["capabilities"] == ["IPC_LOCK"]
    assert arguments["devices"] == ["/dev/infiniband:/dev/infiniband:rwm"]
    assert arguments["memory"] == "112g"
    assert arguments["device_requests"] == [{"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}]
    assert {"type": "bind", "source": rank["argv"][2], "target": rank["argv"][2], "read_only": True} in arguments[
        "mounts"
    ]
    assert arguments["labels"] == {
        "gb10.profile": "tp8-300k",
        "gb10.rank": "7",
        "gb10.run": "20261130T000000Z-1",
        "gb10.plan-hash": deployment["plan_hash"],
        "gb10.image": "vllm-dsv41:engram-mem",
    }


def test_nothing_restarts_while_all_run_what_is_planned(deployment: dict[str, Any]) -> None:
    assert deploy.restart_reasons(deployment, running(deployment)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"exists": False}, "no rank container"),
        ({"running": False, "exit_code": 137}, "exited with code 137"),
        ({"image_id": "sha256:bb"}, "another image"),
        ({"key_differs": True}, "the API key changed"),
        ({"labels": {}}, "by hand"),
        ({"labels": {"gb10.plan-hash": "0" * 64, "gb10.profile": "tp8-1m"}}, "tp8-1m"),
    ],
)
def test_one_wrong_rank_is_a_reason(deployment: dict[str, Any], change: dict[str, Any], words: str) -> None:
    states = running(deployment)
    states["spark-161"].update(change)
    reasons = deploy.restart_reasons(deployment, states)
    assert len(reasons) == 1
    assert reasons[0].startswith("spark-161: ")
    assert words in reasons[0]


def test_swapped_ranks_and_ranks_beyond_the_profile_are_reasons(deployment: dict[str, Any]) -> None:
    states = running(deployment)
    states["spark-161"]["labels"] = copy.deepcopy(states["spark-162"]["labels"])
    states["spare"] = states["spark-147"]
    reasons = deploy.restart_reasons(deployment, states)
    assert [r.split(":")[0] for r in reasons] == ["spare", "spark-161"]


def test_the_nodes_record_is_the_same_for_the_same_deployment(deployment: dict[str, Any]) -> None:
    first, second = (deploy.node_record(deployment, "spark-147") for _ in range(2))
    assert first == second
    assert json.loads(first)["rank"] == 1
