"""Running playbooks and looking at nodes, as a user would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from support import ROOT

BIN = Path(sys.executable).parent
INVENTORY = ROOT / ".lab/inventory/hosts.yml"
API_KEY = "planted-0123456789-of-the-lab"  # by its looks alone nothing would hide it
KEY_FILE = "/var/lib/gb10/api/key.env"
BOOT = 900  # seconds a boot may take before a test gives up; one takes two to three minutes
ENVIRONMENT = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}


def environment(key: str) -> dict[str, str]:
    """A command's, with the endpoint's key where there is one."""
    return ENVIRONMENT | ({"GB10_API_KEY": key} if key else {})


def run(command: list[Any], seconds: int, key: str = "") -> subprocess.CompletedProcess[str]:
    """Bounded; output kept. ``key``: the endpoint's, in the command's environment."""
    return subprocess.run(
        command, cwd=ROOT, env=environment(key), capture_output=True, text=True, timeout=seconds, check=False
    )


@contextmanager
def running(command: list[Any], key: str = "") -> Iterator[subprocess.Popen[str]]:
    """A command at work, in a session of its own. One that is still there afterwards is killed, not waited for."""
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(key), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def molecule(act: str, scenario: str, *more: str, seconds: int = 600) -> None:
    """One molecule act; its output is the message when it fails."""
    keep = ["--destroy", "never"] if act == "test" else []  # the lab is all scenarios': conftest.py removes it
    done = run([BIN / "molecule", act, "--scenario-name", scenario, *keep, *more], seconds)
    assert done.returncode == 0, f"molecule {act} {scenario}\n{done.stdout[-8000:]}{done.stderr[-4000:]}"


def play_command(playbook: str, *more: str, profile: str = "tp8-300k", inventory: Path = INVENTORY) -> list[Any]:
    return [BIN / "ansible-playbook", "-i", inventory, playbook, "-e", f"profile={profile}", *more]


def play(
    playbook: str,
    *more: str,
    profile: str = "tp8-300k",
    inventory: Path = INVENTORY,
    seconds: int = BOOT,
    key: str = "",
) -> subprocess.CompletedProcess[str]:
    """A whole playbook."""
    return run(play_command(playbook, *more, profile=profile, inventory=inventory), seconds, key)


def recap(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, int]]:
    """Ansible's last lines as numbers, by node."""
    found = {}
    for name, numbers in re.findall(r"^(\S+)\s+: (ok=.*)$", done.stdout, re.M):
        found[name] = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", numbers)}
    return found


def inventory_hosts() -> dict[str, Any]:
    """Hosts of the lab with their own variables."""
    hosts: dict[str, Any] = yaml.safe_load(INVENTORY.read_text())["gb10"]["children"]["lab"]["hosts"]
    return hosts


def inventory_with(tmp_path: Path, **hosts: Any) -> Path:
    """The lab's inventory with some hosts changed (a mapping) or taken out (None)."""
    document = yaml.safe_load(INVENTORY.read_text())
    held = document["gb10"]["children"]["lab"]["hosts"]
    for name, change in hosts.items():
        node = name.replace("_", "-")
        if change is None:
            del held[node]
        else:
            held[node] = held[node] | change
    folder = tmp_path / "inventory"
    (folder / "group_vars").mkdir(parents=True)
    for path in (INVENTORY.parent / "group_vars").glob("*.yml"):
        (folder / "group_vars" / path.name).write_text(path.read_text())
    (folder / "hosts.yml").write_text(yaml.safe_dump(document))
    return folder / "hosts.yml"


def engine_says(script: str, given: str, seconds: int = 300) -> str:
    """The last line a file of lab/ prints, run by the engine's Python on what is ``given`` to it."""
    engine = yaml.safe_load((INVENTORY.parent / "group_vars/lab.yml").read_text())["lab_engine_dir"]
    done = subprocess.run(
        [Path(engine) / "bin/python", ROOT / "lab" / script],
        input=given,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def on_node(node: str, *command: str, seconds: int = 60) -> subprocess.CompletedProcess[str]:
    """A command inside a node, not through ssh: what is looked at must not depend on what is tested."""
    return run(["docker", "exec", node, *command], seconds)


def ranks() -> dict[str, dict[str, Any]]:
    """Every node's rank container as its Docker tells; empty where there is none."""
    found = {}
    for node in inventory_hosts():
        done = on_node(node, "docker", "inspect", "gb10-rank")
        found[node] = json.loads(done.stdout)[0] if done.returncode == 0 else {}
    return found


def identities() -> dict[str, tuple[str, str, int]]:
    """What changes when a rank is touched: container id, start time, process id of the engine."""
    return {
        node: (rank["Id"], rank["State"]["StartedAt"], rank["State"]["Pid"]) if rank else ("", "", 0)
        for node, rank in ranks().items()
    }
