"""The gates every change passes: formatting, lint, types, collections present without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

BIN = Path(sys.executable).parent

GATES = {
    "ruff-check": ["ruff", "check", "."],
    "ruff-format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
    "yamllint": ["yamllint", "--strict", "."],
    "ansible-lint": ["ansible-lint", "--offline", "--strict", "-q"],
    "galaxy": ["ansible-galaxy", "collection", "install", "-r", "requirements.yml", "--offline"],
    "syntax": ["ansible-playbook", "--syntax-check", "site.yml", *sorted(str(p) for p in ROOT.glob("playbooks/*.yml"))],
}


@pytest.mark.parametrize("gate", GATES)
def test_gate(gate: str) -> None:
    command = GATES[gate]
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
