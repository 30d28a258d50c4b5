"""The rank's module where no Docker answers: looking says so, acting fails, the record is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from modules import run_module


def rank(tmp_path: Path, *more: str, **given: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"docker_socket": str(tmp_path / "none.sock"), **given}
    return run_module("gb10_rank", *more, **arguments)


def test_looking_says_that_docker_does_not_answer(tmp_path: Path) -> None:
    found = rank(tmp_path, image="sha256:aa", node=True)
    assert not found["changed"]
    assert found["rank"]["exists"] is False
    assert found["rank"]["problem"].startswith("Docker does not answer: ")
    assert found["image_held"] is False
    assert found["node"]["total_kib"] > found["node"]["available_kib"] > 0


def test_acting_fails_in_words(tmp_path: Path) -> None:
    found = rank(tmp_path, state="stopped")
    assert found["msg"].startswith("Docker does not answer: ")
    assert "Traceback" not in json.dumps(found)


def test_the_record_is_written_once_for_root_alone(tmp_path: Path) -> None:
    path = tmp_path / "below/wanted.json"
    checked = rank(tmp_path, "--check", record=str(path), wanted="one\n")
    assert (checked["changed"], path.exists(), checked["record"]) == (True, False, "")
    first = rank(tmp_path, record=str(path), wanted="one\n")
    assert (first["changed"], first["record"]) == (True, "one\n")
    assert path.stat().st_mode & 0o777 == 0o600
    assert not rank(tmp_path, record=str(path), wanted="one\n")["changed"]
    assert [p.name for p in path.parent.iterdir()] == ["wanted.json"]
    assert rank(tmp_path, record=str(path))["record"] == "one\n"


def test_what_the_node_lacks_of_what_a_rank_was_told_to_use(tmp_path: Path) -> None:
    """A renamed interface, an HCA that is gone, an address of another node."""
    assert rank(tmp_path, needs={"interfaces": ["lo"], "addresses": ["127.0.0.1"], "hcas": []})["lacks"] == []
    needs = {"interfaces": ["lo", "enp9s9"], "hcas": ["rocep9s9"], "addresses": ["192.0.2.7", "2001:db8::7", "host"]}
    interface, hca, *addresses = rank(tmp_path, needs=needs)["lacks"]
    assert interface.startswith("interface enp9s9 (it has ")
    assert "lo" in interface
    assert hca.startswith("HCA rocep9s9 (it has ")
    assert addresses == ["address 192.0.2.7", "address 2001:db8::7", "address host"]
    assert "lacks" not in rank(tmp_path)
