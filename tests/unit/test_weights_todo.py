"""Who gets the weights from where, and what nodes' answers mean."""

from __future__ import annotations

from typing import Any

import pytest

from gb10.weights_report import findings, text
from gb10.weights_todo import mounting, prune_findings, route, still_wrong

ORDER = ["n0", "n1", "n2"]
FILES = [{"path": name, "size": 5, "sha256": "0" * 64} for name in ("a", "b", "c")]
GONE = "missing"


@pytest.mark.parametrize(
    ("lacking", "given", "source", "obtain", "by", "wants"),
    [
        ({}, {"directory": "/nfs"}, "", "", "", {}),
        ({"n2": "b"}, {}, "n0", "", "", {"n2": "b"}),
        ({"n0": "a", "n2": "b"}, {}, "n1", "", "", {"n0": "ab", "n2": "ab"}),
        ({"n0": "a"}, {"node": "n2"}, "n2", "", "", {"n0": "a"}),
        ({"n0": "a", "n2": "b"}, {"node": "n2"}, "n1", "", "", {"n0": "ab", "n2": "ab"}),
        (
            {"n0": "abc", "n1": "abc", "n2": "b"},
            {"directory": "/nfs"},
            "n0",
            "abc",
            "directory",
            {"n1": "abc", "n2": "abc"},
        ),
        (
            {"n0": "abc", "n1": "c", "n2": "b"},
            {"node": "n2", "repository": "a/b"},
            "n2",
            "b",
            "repository",
            {"n0": "abc", "n1": "abc"},
        ),
        (
            {"n0": "a", "n1": "a", "n2": "a"},
            {"folder": "/c", "directory": "/nfs", "repository": "a/b"},
            "n0",
            "a",
            "controller",
            {"n1": "a", "n2": "a"},
        ),
        ({"n0": "a", "n1": "a", "n2": "a"}, {"directory": "/nfs", "repository": "a/b"}, "n0", "a", "directory", None),
    ],
)
def test_a_node_that_has_all_gives_it_to_all_and_only_else_somebody_asks_outside(
    lacking: dict[str, str], given: dict[str, str], source: str, obtain: str, by: str, wants: dict[str, str] | None
) -> None:
    looks = {node: dict.fromkeys(lacking.get(node, ""), GONE) for node in ORDER}
    found = route(looks, ORDER, FILES, given)
    assert (found["source"], "".join(found["obtain"]), found["by"], found["findings"]) == (source, obtain, by, [])
    if wants is not None:
        assert {node: "".join(paths) for node, paths in found["wants"].items()} == wants
    assert {entry["path"] for entry in found["files"]} == set("".join(lacking.values()))


def test_nobody_has_it_and_nothing_is_given() -> None:
    looks = {node: dict.fromkeys("abc", GONE) for node in ORDER}
    (found,) = route(looks, ORDER, FILES, {})["findings"]
    assert (found.code, found.node, found.level) == ("weights-not-at-hand", "n0", "error")
    assert "a is missing; b is missing; c is missing there" in found.message


def test_a_source_that_is_no_node_is_refused() -> None:
    (found,) = route({}, ORDER, FILES, {"node": "n9"})["findings"]
    assert found.code == "weights-source-node"
    assert "n9" in found.message


def test_what_is_still_wrong_is_named_by_node_and_file() -> None:
    (found,) = still_wrong({"n0": {}, "n1": {"b": "sha256 abc, not def"}})
    assert (found.code, found.node) == ("weights-wrong", "n1")
    assert "b is sha256 abc, not def" in found.message


def container(state: str, *sources: str) -> dict[str, Any]:
    mounts = [{"source": source, "target": "/x"} for source in sources]
    return {"docker": {"containers": [{"name": "gb10-rank", "state": state, "made_from": {"mounts": mounts}}]}}


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (container("running", "/data/m"), "gb10-rank"),
        (container("running", "/cache", "/data/m/"), "gb10-rank"),
        (container("running", "/data"), "gb10-rank"),
        (container("running", "/"), "gb10-rank"),
        (container("running", "/data/m/sub"), "gb10-rank"),
        (container("paused", "/data/m"), "gb10-rank"),
        (container("running", "/data/m2"), ""),
        (container("exited", "/data/m"), ""),
        ({"docker": None}, ""),
        ({"docker": {"containers": [{"name": "x", "state": "running"}]}}, ""),
    ],
)
def test_what_a_running_rank_mounts_stays(facts: dict[str, Any], name: str) -> None:
    assert mounting(facts, "/data/m") == name
    nodes, found = prune_findings({"n1": ["old.safetensors"], "n2": []}, {"n1": name} if name else {})
    assert (nodes, [f.code for f in found]) == (([], ["weights-in-use"]) if name else (["n1"], []))


def look(**changes: Any) -> dict[str, Any]:
    whole = {"reasons": {}, "unread": [], "files": 3, "hashed": 0, "have": 15, "total": 15, "free": 1 << 40}
    return whole | changes


def test_nodes_stand_in_a_table_and_what_is_wrong_in_findings() -> None:
    states = {
        "n0": look(),
        "n1": look(reasons={"b": "missing"}, have=10, hashed=2),
        "n2": look(unread=["a"]),
        "n3": {"failed": "Connection timed out"},
    }
    rows = [line.split("  ") for line in text(states).splitlines()]
    assert [[cell.strip() for cell in row if cell.strip()][:4] for row in rows[1:]] == [
        ["n0", "whole", "3/3", "0"],
        ["n1", "wrong", "2/3", "1"],
        ["n2", "not verified", "2/3", "0"],
        ["n3", "no answer", "-", "-"],
    ]
    assert [(f.node, f.code) for f in findings(states)] == [("n1", "weights-wrong"), ("n3", "weights-unknown-state")]
    assert "b is missing" in findings(states)[0].message
