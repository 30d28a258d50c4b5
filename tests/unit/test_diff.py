"""What a deploy would change: ranks field by field, against Docker's words; clusters against facts and plans."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from gb10_node import IMAGE_ID, RANK_ID, container, running, spark
from support import hosts

from gb10 import deploy, diff, key_file, plan

PROFILE = "tp8-1m"
NODE = "spark-153"
KEY = "0123456789abcdef-key"
OF_IMAGE = ["PATH=/usr/bin", "LANG=C", "NVIDIA_VISIBLE_DEVICES=all"]


def document(**overrides: Any) -> dict[str, Any]:
    made = plan.build(PROFILE, hosts(PROFILE, **overrides))
    assert made["ranks"], made["findings"]
    return made


def rank(**changes: Any) -> dict[str, Any]:
    """Rank 0 as planned, some keys changed."""
    return {**diff.ranks(document())[NODE], **changes}


def said(planned: dict[str, Any] | None, running: Any) -> list[str]:
    return [str(change) for change in diff.fields(planned, running)]


def inspected(made: dict[str, Any], secret: str = "") -> dict[str, Any]:
    """What Docker tells of a container that was made from ``deploy.container``'s arguments (recorded of 20.10)."""
    env = [f"{key}={value}" for key, value in made["env"].items()]
    return {
        "State": {"ExitCode": 0},
        "Config": {"Entrypoint": None, "Cmd": made["command"], "Env": [*OF_IMAGE, *env, *([secret] if secret else [])]},
        "HostConfig": {
            "Ulimits": [
                {"Name": name, "Soft": int(limit.split(":")[0]), "Hard": int(limit.split(":")[-1])}
                for name, limit in (text.split(":", 1) for text in reversed(made["ulimits"]))
            ],
            "CapAdd": [f"CAP_{name}" for name in made["capabilities"]],
            "Devices": [
                {"PathOnHost": path.split(":")[0], "PathInContainer": path.split(":")[1], "CgroupPermissions": "rwm"}
                for path in made["devices"]
            ],
            "DeviceRequests": [
                {"Driver": "nvidia", "Count": r["count"], "DeviceIDs": None, "Capabilities": r["capabilities"]}
                for r in made.get("device_requests", [])
            ],
            "Memory": 112 << 30,
            "ShmSize": 8 << 30,
        },
        "Mounts": [
            {"Type": m["type"], "Source": m["source"], "Destination": m["target"], "RW": not m["read_only"]}
            for m in reversed(made["mounts"])
        ],
    }


def facts(tmp_path: Path, planned: dict[str, Any], node: str = NODE, hash_: str = "", **changes: Any) -> dict[str, Any]:
    """Facts of a node on which a rank runs as planned, what Docker tells changed by key of the inspected container."""
    deployed = deploy.resolve(planned, {})
    made = deploy.containers(deployed, "run")[node]
    labels = made["labels"] | ({"gb10.plan-hash": hash_} if hash_ else {})
    told = inspected(made, changes.pop("secret", ""))
    for key, value in changes.items():
        told["Config" if key in told["Config"] else "HostConfig"][key] = value
    answers = {
        f"/containers/{RANK_ID}/json": told,
        f"/images/{IMAGE_ID}/json": {"Config": {"Env": OF_IMAGE}},
    }
    return spark(docker=running(container(labels=labels, Image=made["image"]), **answers)).facts(tmp_path)


# --- two ranks -------------------------------------------------------------------------------------------------------


def with_option(option: str, *values: str) -> dict[str, Any]:
    """argv with other values of one option."""
    argv = rank()["argv"]
    at = argv.index(option)
    return {"argv": [*argv[: at + 1], *values, *argv[at + 2 :]]}


@pytest.mark.parametrize(
    ("was", "change"),
    [
        ({"rank": 3}, "rank: 3 -> 0"),
        ({"profile": "tp8-300k"}, "profile: tp8-300k -> tp8-1m"),
        ({"image": "other:1"}, "image: other:1 -> vllm-dsv41:latest"),
        ({"image_digest": "sha256:ab"}, "image digest: sha256:ab -> unpinned"),
        (with_option("--max-model-len", "4096"), "argv --max-model-len: 4096 -> 1048576"),
        (with_option("--engram-config", "{}"), "argv --engram-config.cpu_offload: none -> false"),
        ({"argv": [*rank()["argv"], "--enforce-eager"]}, 'argv --enforce-eager: "" -> none'),
        ({"argv": ["python", *rank()["argv"][1:]]}, "argv command: python serve /data/models/deepseek-v4.1-flash -> "),
        ({"env": rank()["env"] | {"NCCL_DEBUG": "INFO"}}, "env NCCL_DEBUG: INFO -> WARN"),
        ({"env": rank()["env"] | {"X": ""}}, 'env X: "" -> none'),
        ({"ulimits": rank()["ulimits"] | {"nofile": "1024:2048"}}, "ulimit nofile: 1024:2048 -> 1048576:1048576"),
        ({"cap_add": ["IPC_LOCK", "SYS_ADMIN"]}, "capability SYS_ADMIN: added -> none"),
        ({"devices": []}, "device /dev/infiniband: none -> given"),
        ({"gpus": ""}, "gpus: none -> all"),
        ({"mounts": rank()["mounts"][:1]}, "mount /root/.cache: none -> /var/cache/gb10 (writable)"),
        ({"memory_limit": "100g"}, "memory limit: 100g -> 112g"),
        ({"shm_size": "64m"}, "shm size: 64m -> 8g"),
    ],
)
def test_a_changed_field_is_said_and_nothing_else(was: dict[str, Any], change: str) -> None:
    changes = said(rank(), rank(**was))
    assert len(changes) == 1
    assert changes[0].startswith(change)


@pytest.mark.parametrize(
    "same",
    [
        {},
        {"memory_limit": 112 << 30, "shm_size": "8192m"},
        {"ulimits": {"stack": "67108864:67108864", "memlock": "-1", "nofile": "1048576"}},
        {"mounts": rank()["mounts"][::-1]},
        {"env": dict(reversed(rank()["env"].items()))},
        with_option("--engram-config", '{"cpu_offload": false}'),
    ],
)
def test_another_spelling_is_no_change(same: dict[str, Any]) -> None:
    assert said(rank(), rank(**same)) == []


def test_no_rank_on_one_side() -> None:
    assert said(rank(), None) == ["rank: none -> 0"]
    assert said(None, rank()) == ["rank: 0 -> none"]
    assert said(None, None) == []


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["vllm", "serve", "/m", "--port", "80"], {"command": "vllm serve /m", "--port": "80"}),
        (["--port=80", "--x"], {"--port": "80", "--x": ""}),
        (["--n", "-1", "-tp", "8"], {"--n": "-1", "-tp": "8"}),
        (["--a", "1", "--a", "2"], {"--a": "1 2"}),
        (["--j", '{"a": {"b": 1}, "c": false}'], {"--j.a": '{"b": 1}', "--j.c": "false"}),
        (["--j", "[1]"], {"--j": "[1]"}),
    ],
)
def test_options(argv: list[str], found: dict[str, str]) -> None:
    assert diff.options(argv) == found


@pytest.mark.parametrize(
    ("given", "spelled"),
    [("112g", "112g"), (112 << 30, "112g"), ("1536m", "1536m"), ("1.5G", "1536m"), (100, "100"), (0, ""), ("", "")],
)
def test_sizes(given: Any, spelled: str) -> None:
    assert diff.size(given) == spelled


# --- a rank against what Docker tells --------------------------------------------------------------------------------


def test_what_docker_tells_of_a_planned_rank_is_what_was_planned(tmp_path: Path) -> None:
    planned = document()
    resolved = diff.ranks(deploy.resolve(planned, {}))[NODE]
    assert said(resolved, diff.running_rank(facts(tmp_path, planned))) == []


@pytest.mark.parametrize(
    ("told", "change"),
    [
        ({"Cmd": ["vllm", "serve", "/m", "--api-key", "s3cret"]}, "argv --api-key: (set) -> none"),
        ({"Entrypoint": ["tini"]}, "argv command: tini vllm serve"),
        ({"Memory": 0}, "memory limit: none -> 112g"),
        ({"ShmSize": 64 << 20}, "shm size: 64m -> 8g"),
        ({"CapAdd": None}, "capability IPC_LOCK: none -> added"),
        ({"Devices": None}, "device /dev/infiniband: none -> given"),
        ({"DeviceRequests": None}, "gpus: none -> all"),
        ({"Ulimits": []}, "ulimit memlock: none -> -1:-1"),
        ({"Env": [*OF_IMAGE, "A=1"]}, "env A: 1 -> none"),
        ({"Env": ["LANG=de", *OF_IMAGE[2:]]}, "env LANG: de -> none"),
    ],
)
def test_what_was_made_otherwise_is_seen(tmp_path: Path, told: dict[str, Any], change: str) -> None:
    planned = document()
    found = facts(tmp_path, planned, **told)
    changes = said(diff.ranks(deploy.resolve(planned, {}))[NODE], diff.running_rank(found))
    assert [c for c in changes if c.startswith(change)], changes
    assert "s3cret" not in str(found)


def test_what_the_image_gives_is_no_change_even_where_the_plan_says_it_too(tmp_path: Path) -> None:
    planned = document(container_env={"NVIDIA_VISIBLE_DEVICES": "all"})
    found = facts(tmp_path, planned)
    made = diff.own_container(found)["made_from"]  # type: ignore[index]
    assert "NVIDIA_VISIBLE_DEVICES" not in made["env"]
    assert made["env_of_image"]["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert said(diff.ranks(deploy.resolve(planned, {}))[NODE], diff.running_rank(found)) == []


def test_a_secret_is_not_shown_and_not_judged(tmp_path: Path) -> None:
    planned = document(container_env={"HF_TOKEN": "new"})
    found = facts(tmp_path, document(), secret="HF_TOKEN=old")
    changes = said(diff.ranks(deploy.resolve(planned, {}))[NODE], diff.running_rank(found))
    assert changes == []
    assert "old" not in str(diff.own_container(found)["made_from"]["env"])  # type: ignore[index]
    without = said(diff.ranks(deploy.resolve(document(), {}))[NODE], diff.running_rank(found))
    assert without == ["env HF_TOKEN: (set) -> none"]


@pytest.mark.parametrize(
    ("kept", "made_with", "differs"),
    [("", "", False), (KEY, KEY, False), (KEY, "", True), ("", KEY, True), (KEY, KEY + "2", True)],
)
def test_the_api_key_is_no_change_of_the_plan_but_told_as_another(
    tmp_path: Path, kept: str, made_with: str, differs: bool
) -> None:
    planned = document()
    if kept:
        place = tmp_path / NODE / key_file.PATH[1:]
        place.parent.mkdir(parents=True)
        place.write_text(key_file.text(kept))
    found = facts(tmp_path, planned, secret=f"VLLM_API_KEY={made_with}" if made_with else "A=1")
    changes = said(diff.ranks(deploy.resolve(planned, {}))[NODE], diff.running_rank(found))
    assert changes == ([] if made_with else ["env A: 1 -> none"])
    assert (found["api_key"], diff.state(found)["key_differs"]) == (bool(kept), differs)
    assert KEY not in json.dumps(found)


# --- clusters --------------------------------------------------------------------------------------------------------


def everywhere(tmp_path: Path, planned: dict[str, Any], **more: Any) -> dict[str, dict[str, Any]]:
    """Facts of all nodes, each running what is planned for it."""
    found = {}
    for one in planned["ranks"]:
        (tmp_path / one["node"]).mkdir()
        found[one["node"]] = facts(tmp_path / one["node"], planned, one["node"], **more)
    return found


def nothing_detected(overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """A plan that pins all that nodes would tell, so that facts of one tree fit all nodes."""
    given = hosts(PROFILE, nccl_transport="socket", nccl_socket_ifname="enp1s0f1np1", **(overrides or {}))
    made = plan.build(PROFILE, given)
    assert made["ranks"], made["findings"]
    return made


def test_ranks_that_run_as_planned_would_not_change(tmp_path: Path) -> None:
    planned = nothing_detected()
    found = diff.against_facts(planned, everywhere(tmp_path, planned), hosts(PROFILE), {})
    assert (dict(found.changes), found.reasons) == ({}, ())
    assert diff.text(found) == "Nothing would change."


def test_one_changed_setting_is_said_once_for_all_nodes_and_restarts_all(tmp_path: Path) -> None:
    running_ = everywhere(tmp_path, nothing_detected())
    found = diff.against_facts(nothing_detected({"max_model_len": 500_000}), running_, hosts(PROFILE), {})
    assert len(found.changes) == len(found.reasons) == 8
    text = diff.text(found)
    assert text.count("argv --max-model-len: 1048576 -> 500000") == 1
    assert "A deploy stops and starts every rank" in text
    assert "the plan changed (runs tp8-1m" in text


def test_a_change_by_hand_that_a_deploy_would_not_see_is_called_so(tmp_path: Path) -> None:
    planned = nothing_detected()
    running_ = everywhere(tmp_path, planned)
    made = diff.own_container(running_["spark-147"])["made_from"]  # type: ignore[index]
    made["env"]["NCCL_DEBUG"] = "INFO"
    found = diff.against_facts(planned, running_, hosts(PROFILE), {})
    assert list(found.changes) == ["spark-147"]
    assert found.reasons == ()
    assert "changed by hand" in diff.text(found)


def test_ranks_that_ended_are_missing_or_too_many_are_said(tmp_path: Path) -> None:
    planned = nothing_detected()
    running_ = everywhere(tmp_path, planned)
    diff.own_container(running_["spark-147"])["state"] = "exited"  # type: ignore[index]
    running_["spark-157"]["docker"]["containers"] = []
    running_["spark-200"] = copy.deepcopy(running_["spark-153"])
    text = diff.text(diff.against_facts(planned, running_, hosts(PROFILE), {}))
    assert "spark-147: the rank exited" in text
    assert "spark-157:\n  rank: none -> 2" in text
    assert "spark-200:\n  rank: 0 -> none" in text


def test_what_nodes_tell_is_filled_in_before_it_is_compared(tmp_path: Path) -> None:
    """`detected` is no value a container has: the HCAs of the node's own facts are."""
    planned = document()
    running_ = everywhere(tmp_path, planned)
    found = diff.against_facts(planned, running_, hosts(PROFILE), {})
    assert "detected" not in diff.text(found)
    assert "env NCCL_IB_HCA: none -> roce" in diff.text(found)


def test_an_earlier_plan_is_compared_as_it_stands() -> None:
    assert diff.text(diff.against_plan(document(), document())) == "Nothing would change."
    text = diff.text(diff.against_plan(document(max_num_seqs=4), document()))
    assert "argv --max-num-seqs: 8 -> 4" in text
    assert "the plan changed" in text


def test_a_limit_that_docker_gives_every_container_is_no_difference() -> None:
    """daemon.json's default-ulimits show in a container the plan says nothing of."""
    planned = {"rank": 0, "image_digest": "x", "argv": [], "env": {}, "ulimits": {"nofile": "9:9"}}
    planned |= {"cap_add": [], "devices": [], "mounts": [], "image": "i", "profile": "p", "shm_size": "", "gpus": ""}
    planned |= {"memory_limit": ""}
    runs = {**planned, "env_of_image": {}, "ulimits": {"nofile": "9:9", "stack": "1:1"}}
    assert diff.fields(planned, runs) == []
    assert diff.fields(planned, {**runs, "ulimits": {"stack": "1:1"}}) != []
