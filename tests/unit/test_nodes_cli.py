"""`gb10 status`, `logs`, `drift` against a machine without ranks and one that does not answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gb10.nodes_cli import errors

HERE = {"ansible_connection": "local", "ansible_host": "127.0.0.1", "node_rank": 0}
GONE = {"ansible_connection": "ssh", "ansible_host": "127.0.0.2", "ansible_port": 9, "node_rank": 1}


@pytest.fixture(name="inventory")
def _inventory(tmp_path: Path) -> Path:
    shared = {"ansible_become": False, "ansible_python_interpreter": sys.executable}
    shared |= {"serve_record": str(tmp_path / "wanted.json")}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump({"gb10": {"vars": shared, "hosts": {"here": HERE, "gone": GONE}}}, sort_keys=False))
    return path


def gb10(*words: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gb10.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_status_says_what_it_can_when_a_node_is_gone(inventory: Path) -> None:
    done = gb10("status", "-i", inventory, "-o", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(one["node"], one["reachable"]) for one in document["nodes"]] == [("here", True), ("gone", False)]
    assert document["troubles"] == ["gone does not answer", "no node has on record what should run"]


def test_drift_without_a_record_says_so_in_one_line(inventory: Path) -> None:
    done = gb10("drift", "-i", inventory)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error [record-missing] No node has on record what should run. Give -e profile=P.\n"


def test_what_a_playbook_failed_with_is_said_once() -> None:
    said = "fatal: [a]: FAILED! => \n    msg: error [x-y] One. Two.\n"
    assert errors(said + said, "") == "error [x-y] One. Two."
    assert errors("no finding\n", "words\n") == "no finding\nwords"
