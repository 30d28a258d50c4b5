"""The plans of all profiles as files: a change of data or code shows as a diff (`make goldens`) that somebody reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, hosts

from gb10 import plan

PROFILES = ("tp8-300k", "tp8-1m", "tp4-300k")


@pytest.mark.parametrize("profile", PROFILES)
def test_plan_is_the_golden(profile: str) -> None:
    made = json.dumps(plan.build(profile, hosts(profile)), indent=2, sort_keys=True) + "\n"
    assert made == (ROOT / f"tests/golden/{profile}.json").read_text()


@pytest.mark.parametrize("profile", PROFILES)
def test_the_playbook_writes_the_same_bytes_from_another_directory_and_contacts_no_node(
    profile: str, tmp_path: Path
) -> None:
    """ssh is taken off the path: a task that contacted a node would fail."""
    target = tmp_path / "plan.json"
    command = [
        Path(sys.executable).parent / "ansible-playbook",
        "-i",
        "../inventory/hosts.yml",
        "../playbooks/plan.yml",
    ]
    command += ["-e", f"profile={profile}", "-e", f"plan_file={target}"]
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, cwd=ROOT / "docs", env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert target.read_bytes() == (ROOT / f"tests/golden/{profile}.json").read_bytes()
