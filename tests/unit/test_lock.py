"""The lock: taken once, freed by its owner alone, taken over from the dead, explained to the living."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from modules import load_module
from support import ROOT

from gb10 import lock

MODULE = load_module("gb10_lock")


def claim(run: str, **more: Any) -> dict[str, Any]:
    made = lock.claim(run, "serve", "ada", "desk", "boot-1", 4711, "1000", "2026-11-30T15:00:00Z")
    return {**made, **more}


def act(path: Path, state: str, check: bool = False, **more: Any) -> dict[str, Any]:
    given = {"state": state, "path": str(path), "claim": {}, "replace": "", "run": "", **more}
    found: dict[str, Any] = MODULE.act(given, check)
    return found


def test_taken_by_one_and_freed_by_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    assert act(path, "taken", claim=claim("one"))["taken"]
    second = act(path, "taken", claim=claim("two"))
    assert not second["taken"]
    assert second["held"]["run"] == "one"
    act(path, "free", run="two")
    assert act(path, "read")["held"]["run"] == "one"
    act(path, "free", run="one")
    assert act(path, "read")["held"] is None


def test_the_same_run_takes_it_again_and_a_named_run_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    act(path, "taken", claim=claim("one"))
    assert act(path, "taken", claim=claim("one"))["taken"]
    assert not act(path, "taken", claim=claim("two"), replace="another")["taken"]
    assert act(path, "taken", claim=claim("two"), replace="one")["held"]["run"] == "two"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_broken_file_is_a_lock_of_somebody_unknown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lock.json"
    path.write_text(content)
    assert not act(path, "taken", claim=claim("one"))["taken"]
    assert act(path, "taken", claim=claim("one"), replace=lock.UNKNOWN)["taken"]


def test_check_mode_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    assert act(path, "taken", check=True, claim=claim("one"))["changed"]
    assert not path.exists()


def take(path: Path, run: str, answers: Any) -> None:
    answers.put("asked")
    answers.put(act(path, "taken", claim=claim(run))["taken"])


def test_nobody_comes_between_looking_and_writing(tmp_path: Path) -> None:
    """While one run is at it, another waits, and then sees what the first wrote."""
    path = tmp_path / "lock.json"
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    with path.with_suffix(".guard").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        other = context.Process(target=take, args=(path, "two", answers), daemon=True)
        other.start()
        assert answers.get(timeout=60) == "asked"
        time.sleep(0.5)  # in which it would have taken the lock, if it did not wait
        path.write_text(json.dumps(claim("one")))
        fcntl.flock(guard, fcntl.LOCK_UN)  # the other holds a copy of the open file
    assert answers.get(timeout=60) is False
    other.join(60)
    assert json.loads(path.read_text())["run"] == "one"


@pytest.mark.parametrize(
    ("held", "started", "dead"),
    [
        ({}, "1000", False),
        ({}, "", True),  # the process is gone
        ({}, "2000", True),  # its number was given to another
        ({"boot": "boot-0"}, "1000", True),  # the controller has booted since
        ({"controller": "laptop"}, "", False),  # of another machine nothing can be told
        ({"controller": ""}, "", False),
    ],
)
def test_a_run_that_was_killed_is_known(held: dict[str, Any], started: str, dead: bool) -> None:
    assert lock.is_dead(claim("one", **held), claim("two"), started) == dead


def test_a_refusal_says_who_and_how_to_break_it() -> None:
    found = lock.refusal(claim("R1"), 300, "spark-153")
    assert found.code == "cluster-locked"
    for word in ("ada", "desk", "pid 4711", "run R1", "5 min", "serve"):
        assert word in found.message, word
    assert "-e serve_break_lock=R1" in found.remedy
    assert "serve_break_lock=unknown" in lock.refusal({}, 1, "spark-153").remedy


def test_it_lies_on_the_node_of_rank_0() -> None:
    hosts: dict[str, Any] = {"b": {"node_rank": "0"}, "a": {"node_rank": 1}, "c": {}}
    assert lock.node(hosts, ["a", "b", "c"]) == "b"
    assert lock.node(hosts, ["a", "c"]) == "a"


ACTING = ["site.yml", *(f"playbooks/{verb}.yml" for verb in ("serve", "stop", "recover", "rollback"))]


@pytest.mark.parametrize("name", ACTING)
def test_whoever_acts_on_ranks_takes_it_first_and_frees_it_always(name: str) -> None:
    plays = yaml.safe_load((ROOT / name).read_text())
    (block,) = [task for task in plays[-1]["tasks"] if "block" in task]
    taken, freed = ({"name": "serve", "tasks_from": word} for word in ("lock", "unlock"))
    assert block["block"][0]["ansible.builtin.import_role"] == taken
    assert [task["ansible.builtin.import_role"] for task in block["always"]] == [freed]
