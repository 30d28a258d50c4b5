"""What should run, as nodes keep it, and what to go back to: the newest whole record, the last good other plan."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from support import hosts

from gb10 import deploy, deployments, environment, plan
from gb10.runs import runs

CLAIM = {"run": "20261130T120000Z-1", "time": "2026-11-30T12:00:00Z", "operator": "ada", "controller": "desk", "pid": 1}


@pytest.fixture(name="deployment", scope="module")
def _deployment() -> dict[str, Any]:
    return deploy.resolve(plan.build("tp8-300k", hosts("tp8-300k"), {"vllm-dsv41:engram-mem": "sha256:aa"}), {})


def claim(run: str) -> dict[str, Any]:
    return CLAIM | {"run": run}


def test_a_record_is_read_back_whole(deployment: dict[str, Any]) -> None:
    held = deployments.read(deployments.record("serving", CLAIM, deployment))
    assert held
    assert held["deployment"] == deployment
    assert (held["operator"], held["run"]) == ("ada", CLAIM["run"])
    stopped = deployments.read(deployments.record("stopped", CLAIM))
    assert stopped
    assert (stopped["want"], stopped["deployment"]) == ("stopped", None)


@pytest.mark.parametrize("kept", ["", "{", "[]", "null", '{"schema": 2}', '{"schema": 1, "want": "x", "run": "r"}'])
def test_what_is_no_record_is_none(kept: str) -> None:
    assert deployments.read(kept) is None


@pytest.mark.parametrize("where", ["argv", "env", "image_digest", "node"])
def test_a_record_that_was_changed_is_none(deployment: dict[str, Any], where: str) -> None:
    held = json.loads(deployments.record("serving", CLAIM, deployment))
    held["deployment"]["ranks"][3][where] = copy.deepcopy(held["deployment"]["ranks"][4][where])
    if where in ("argv", "env", "image_digest"):
        held["deployment"]["ranks"][3][where] = ["x"] if where == "argv" else {"x": "y"} if where == "env" else "z"
    assert deployments.read(json.dumps(held)) is None


def test_the_last_run_of_any_node_counts(deployment: dict[str, Any]) -> None:
    """A node that was away while the others were stopped does not bring yesterday back."""
    old = deployments.record("serving", claim("20261129T000000Z-9"), deployment)
    new = deployments.record("stopped", claim("20261130T000000Z-1"))
    held = deployments.newest({"a": old, "b": new, "c": None, "d": "{", "e": old})
    assert held
    assert held["want"] == "stopped"
    assert deployments.newest({"a": None, "b": ""}) is None


def test_a_node_has_it_on_record_or_not(deployment: dict[str, Any]) -> None:
    kept = deployments.record("serving", CLAIM, deployment)
    assert deployments.on_record(deployment, kept)
    assert not deployments.on_record({**deployment, "plan_hash": "other"}, kept)
    assert not deployments.on_record(deployment, deployments.record("stopped", CLAIM))
    assert not deployments.on_record(deployment, "")


def test_the_endpoint_is_where_the_head_listens(deployment: dict[str, Any]) -> None:
    assert deployments.endpoint(deployment) == {"url": "http://192.168.1.153:8000", "model": "deepseek-v4.1-flash"}
    moved = deploy.resolve(plan.build("tp8-300k", hosts("tp8-300k", api_port=9000)), {})
    assert deployments.endpoint(moved)["url"].endswith(":9000")


def test_the_image_of_a_node_is_by_content_where_it_is_known(deployment: dict[str, Any]) -> None:
    assert deployments.image_of(deployment, "spark-161") == "sha256:aa"
    assert deployments.image_of(deployment, "spare") == ""
    unpinned = deploy.resolve(plan.build("tp8-300k", hosts("tp8-300k")), {})
    assert deployments.image_of(unpinned, "spark-161") == "vllm-dsv41:engram-mem"


def ledger(*steps: tuple[str, str, bool, str]) -> list[dict[str, Any]]:
    """Entries of runs ``(run, plan hash, deployed, outcome)``."""
    entries: list[dict[str, Any]] = []
    for run, planned, deployed, outcome in steps:
        entries.append({"kind": "begin", "run": run, "plan_hash": planned, "profile": planned, "playbook": "site.yml"})
        entries += [{"kind": "deployed", "run": run, "plan_hash": planned}] if deployed else []
        entries += [{"kind": "end", "run": run, "outcome": outcome}] if outcome else []
    return entries


@pytest.mark.parametrize(
    ("steps", "now", "back"),
    [
        ([("1", "a", True, "changed"), ("2", "b", True, "changed")], "b", "1"),
        # The one that should run never became ready: back to the last that did, though it is the newest good one.
        ([("1", "a", True, "changed"), ("2", "b", False, "failed")], "b", "1"),
        ([("1", "a", True, "changed"), ("2", "b", False, "")], "b", "1"),
        # Runs that deployed nothing, and the same plan again, are not what to go back to.
        ([("1", "a", True, "changed"), ("2", "b", True, "changed"), ("3", "c", False, "changed"),
          ("4", "b", True, "unchanged")], "b", "1"),
        ([("1", "a", True, "changed"), ("2", "b", True, "changed"), ("3", "a", True, "changed")], "a", "2"),
        ([("1", "a", True, "changed")], "a", None),
        ([], "", None),
    ],
)  # fmt: skip
def test_what_to_go_back_to(steps: list[tuple[str, str, bool, str]], now: str, back: str | None) -> None:
    found = deployments.previous(runs(ledger(*steps)), now)
    assert (found and found.id) == back


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, ([], [], [])),
        ({"NCCL_SOCKET_IFNAME": "enp1s0f1np1", "GLOO_SOCKET_IFNAME": "enp1s0f1np1"}, (["enp1s0f1np1"], [], [])),
        ({"TP_SOCKET_IFNAME": "a, b"}, (["a", "b"], [], [])),
        ({"NCCL_IB_HCA": "=rocep1s0f1:1,roceP2p1s0f1"}, ([], ["roceP2p1s0f1", "rocep1s0f1"], [])),
        ({"VLLM_HOST_IP": "192.168.0.153"}, ([], [], ["192.168.0.153"])),
    ],
)
def test_what_a_rank_was_told_to_use(env: dict[str, str], wanted: tuple[list[str], ...]) -> None:
    given = {"ranks": [{"node": "one", "env": {"NCCL_DEBUG": "WARN", **env}}, {"node": "two", "env": {}}]}
    assert tuple(deployments.needs(given, "one").values()) == wanted
    assert list(deployments.needs(given, "two").values()) == [[], [], []]
    assert list(deployments.needs(given, "three").values()) == [[], [], []]


@pytest.mark.parametrize(
    ("said", "more", "codes"),
    [
        ({}, {}, []),
        ({"image_held": True, "lacks": [], "key_file": ""}, {}, []),
        ({"image_held": False}, {"restart": False}, ["image-absent"]),
        ({"image_held": False}, {"check": True}, []),  # it would have been brought
        ({"lacks": ["interface eth1 (it has eth0)"]}, {"check": True}, ["device-gone"]),
        ({"lacks": ["interface eth1 (it has eth0)"]}, {"restart": False}, []),  # the ranks run as they are
        ({"key_file": "/k"}, {}, ["api-key-missing"]),
        ({"key_file": "/k"}, {"restart": False, "check": True}, ["api-key-missing"]),
        ({"key_file": "/k"}, {"key_act": "keep"}, []),
        ({"key_file": "/k"}, {"key_act": "remove"}, []),
        (
            {"image_held": False, "lacks": ["x"], "key_file": "/k"},
            {},
            ["image-absent", "device-gone", "api-key-missing"],
        ),
    ],
)
def test_what_stands_on_a_node_against_a_deployment(
    deployment: dict[str, Any], said: dict[str, Any], more: dict[str, Any], codes: list[str]
) -> None:
    asked = {"restart": True, "key_act": "leave", "check": False} | more
    found = deployments.lacking(deployment, {"spark-153": {}, "spark-161": said}, **asked)
    assert [(one.node, one.code) for one in found] == [("spark-161", code) for code in codes]


def test_all_nodes_that_lack_something_are_named_at_once(deployment: dict[str, Any]) -> None:
    said = {name: {"image_held": name == "spark-147"} for name in ("spark-153", "spark-147", "spark-161")}
    found = deployments.lacking(deployment, said, restart=True, key_act="leave", check=False)
    assert [one.node for one in found] == ["spark-153", "spark-161"]


@pytest.mark.parametrize(
    ("node", "launcher", "codes"),
    [
        ("spark-153", "docker", []),
        ("spark-153", None, []),
        ("spark-153", "sparkrun", ["api-key-missing"]),
        ("spark-161", "docker", ["api-key-missing"]),
    ],
)
def test_a_kept_key_needs_the_head_and_our_own_start(
    deployment: dict[str, Any], node: str, launcher: str | None, codes: list[str]
) -> None:
    given = deployment | ({"launcher": launcher} if launcher else {})
    found = deployments.lacking(given, {node: {"key_file": "/k"}}, restart=False, key_act="leave", check=False)
    assert [one.code for one in found] == codes


def test_every_key_that_differs_per_node_is_looked_for_or_needs_no_look(deployment: dict[str, Any]) -> None:
    """The GID index alone names nothing that could be away."""
    assert {*deployments.NAMED} == {*environment.PER_NODE_KEYS, "VLLM_HOST_IP"} - {"NCCL_IB_GID_INDEX"}
    assert all(deployments.needs(deployment, rank["node"])["addresses"] for rank in deployment["ranks"])
