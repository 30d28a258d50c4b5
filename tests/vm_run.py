"""The virtual machine as the tests of molecule/vm see it: playbooks against it, its disks from outside, its facts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from support import ROOT

BIN = Path(sys.executable).parent
INVENTORY = ROOT / ".lab/vm/inventory/hosts.yml"
NODE = "vm-0"
SECONDS = 1500  # generous: a playbook takes 20 s on idle cores, ten times that on busy ones
ENVIRONMENT = os.environ | {
    "PATH": f"{BIN}:{os.environ['PATH']}",
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
    "ANSIBLE_FORCE_COLOR": "0",  # which molecule sets
}
RANK = "gb10-rank"


def declared(name: str) -> Any:
    """A variable's value on the machine: that of group_vars/vm.yml, else of group_vars/all, else the role's default."""
    paths = [
        ROOT / "group_vars/vm.yml",
        *(ROOT / "group_vars/all").glob("*.yml"),
        *ROOT.glob("roles/*/defaults/main.yml"),
    ]
    return next(held[name] for held in (yaml.safe_load(path.read_text()) for path in paths) if name in (held or {}))


def run(*command: Any) -> subprocess.CompletedProcess[str]:
    """Bounded; output kept."""
    return subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def play(playbook: str, *more: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """A playbook against the machine."""
    values = json.dumps({"profile": "tp8-300k"} | variables)
    return run(BIN / "ansible-playbook", "-i", INVENTORY, f"playbooks/{playbook}.yml", "-e", values, *more)


def recap(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Ansible's last line of the machine as numbers."""
    line = re.search(rf"^{NODE}\s+: (ok=.*)$", done.stdout, re.M)
    assert line, done.stdout[-3000:] + done.stderr[-3000:]
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line[1])}


def facts() -> dict[str, Any]:
    """What gb10_facts reads on the machine."""
    asked = "weights_path=/data/models timeout=180"  # every instruction is translated
    done = run(BIN / "ansible", "-i", INVENTORY, NODE, "-b", "-m", "gb10_facts", "-a", asked)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])[0]["gb10"]
    return found


def disk_digest(name: str, length: int = 64 << 20) -> str:
    """SHA-256 of the first ``length`` bytes of a disk as QEMU holds it."""
    with (ROOT / f".lab/vm/{NODE}/{name}.raw").open("rb") as raw:
        return hashlib.sha256(raw.read(length)).hexdigest()


def disk_of(host: Any, serial: str) -> str:
    """The kernel's name of the disk with that serial number; empty where there is none."""
    rows = host.check_output("lsblk --nodeps --noheadings --output NAME,SERIAL").splitlines()
    return next((row.split()[0] for row in rows if row.split()[1:] == [serial]), "")
