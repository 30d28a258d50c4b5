"""What a node lacks, from its facts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gb10.todo import docker_todo, has_image, images_to_bring, merged_daemon_json

WANTED = {"log-driver": "json-file", "log-opts": {"max-size": "50m"}}


def facts(**docker: Any) -> dict[str, Any]:
    base = {"installed": True, "reachable": True, "daemon_json": {"parsed": WANTED}, "containers": [], "images": []}
    return {"docker": base | docker, "python": {"requests": True}}


RANK = [{"ours": True, "state": "running"}]


@pytest.mark.parametrize(
    ("current", "result"),
    [
        (None, WANTED),
        ({}, WANTED),
        (WANTED, None),
        ({**WANTED, "runtimes": {"nvidia": {"path": "x"}}}, None),
        ({"runtimes": {"nvidia": {"path": "x"}}}, {"runtimes": {"nvidia": {"path": "x"}}, **WANTED}),
        (
            {"log-driver": "local", "log-opts": {"max-file": "9"}},
            {"log-driver": "json-file", "log-opts": {"max-file": "9", "max-size": "50m"}},
        ),
    ],
)
def test_daemon_json_is_merged_key_by_key(current: Any, result: Any) -> None:
    merged = merged_daemon_json(current, WANTED)
    assert (None if merged is None else json.loads(merged)) == result


def test_a_prepared_node_lacks_nothing() -> None:
    assert docker_todo(facts(), ["docker.io"], WANTED, False) == {
        "packages": [],
        "daemon_json": None,
        "refused": False,
        "start": False,
    }


def test_a_fresh_node_gets_docker() -> None:
    fresh = facts(installed=False, reachable=False, daemon_json={"parsed": None})
    fresh["python"]["requests"] = False
    todo = docker_todo(fresh, ["docker.io"], WANTED, False)
    assert todo["packages"] == ["docker.io", "python3-requests"]
    assert todo["start"]
    assert json.loads(todo["daemon_json"]) == WANTED


@pytest.mark.parametrize(("switch", "refused"), [(False, True), ("false", True), (True, False), ("true", False)])
def test_docker_does_not_restart_under_a_rank_unless_asked(switch: Any, refused: bool) -> None:
    changed = facts(daemon_json={"parsed": {}}, containers=RANK)
    assert docker_todo(changed, [], WANTED, switch)["refused"] == refused
    assert not docker_todo(facts(containers=RANK), [], WANTED, switch)["refused"]


@pytest.mark.parametrize(
    ("images", "image_id", "held"),
    [
        ([], "sha256:aa", False),
        ([{"id": "sha256:aa", "tags": ["x:1"]}], "sha256:aa", True),
        ([{"id": "sha256:bb", "tags": ["x:1"]}], "sha256:aa", False),
        ([{"id": "sha256:aa", "tags": ["y:1"]}], "sha256:aa", False),
        ([{"id": "sha256:bb", "tags": ["x:1"]}], "unpinned", True),
    ],
)
def test_a_tag_is_no_proof_of_content(images: list[dict[str, Any]], image_id: str, held: bool) -> None:
    assert has_image(facts(images=images), "x:1", image_id) == held


def test_only_nodes_that_lack_the_image_get_it() -> None:
    ranks = [{"node": n, "image": "x:1", "image_digest": "sha256:aa"} for n in ("a", "b")]
    known = {"a": facts(images=[{"id": "sha256:aa", "tags": ["x:1"]}]), "b": facts()}
    assert images_to_bring(ranks, known, {"x:1": "x.tar"}) == {"b": "x.tar"}
