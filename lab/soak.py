"""Random kills on a lab that serves, one recover each: ``python -m lab.soak``. See docs/serving.md for a result."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gb10.ledger import Ledger

ROOT = Path(__file__).resolve().parents[1]
INVENTORY = ROOT / ".lab/inventory/hosts.yml"
BIN = Path(sys.executable).parent
ENVIRONMENT = os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PATH": f"{BIN}:{os.environ['PATH']}"}


def run(command: list[Any], seconds: int) -> subprocess.CompletedProcess[str]:
    """Bounded; output kept."""
    words = list(map(str, command))
    return subprocess.run(
        words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=seconds, check=False
    )


def on_node(node: str, *command: str) -> str:
    """Output of a command inside a node."""
    return run(["docker", "exec", node, *command], 60).stdout


def kill_container(node: str, _chance: random.Random) -> str:
    """The whole rank at once."""
    on_node(node, "docker", "kill", "--signal", "KILL", "gb10-rank")
    return "container"


def kill_process(node: str, chance: random.Random) -> str:
    """One process of the engine, whichever."""
    pids = on_node(node, "docker", "top", "gb10-rank", "-eo", "pid").split()[1:]
    chosen = chance.choice(pids)
    on_node(node, "kill", "-9", chosen)
    return f"process {pids.index(chosen) + 1} of {len(pids)}"


def kill_dockerd(node: str, _chance: random.Random) -> str:
    """The node's Docker engine."""
    on_node(node, "pkill", "-KILL", "-x", "dockerd")
    return "dockerd"


def restart_node(node: str, _chance: random.Random) -> str:
    """The node itself."""
    run(["docker", "restart", "--time", "1", node], 120)
    return "node restart"


KILLS = (kill_container, kill_process, kill_dockerd, restart_node)


def status() -> tuple[list[str], list[str]]:
    """Nodes with a rank that runs, and what is not as it should be, by one call of ``gb10 status``."""
    done = run([BIN / "gb10", "status", "-i", INVENTORY, "-o", "json"], 300)
    if not done.stdout:
        return [], [f"status failed: {done.stderr[-500:]}"]
    document = json.loads(done.stdout)
    return [one["node"] for one in document["nodes"] if one["container"] == "running"], document["troubles"]


def one(number: int, chance: random.Random, nodes: list[str]) -> bool:
    """One kill and one recover; a line of a table, and whether the cluster came back."""
    node, kill = chance.choice(nodes), KILLS[number % len(KILLS)]
    what = kill(node, chance)
    _nodes, seen = status()
    began = time.monotonic()
    done = run([BIN / "ansible-playbook", "-i", INVENTORY, "playbooks/recover.yml"], 1800)
    seconds = time.monotonic() - began
    _nodes, left = status()
    good = done.returncode == 0 and not left
    print(
        f"| {number + 1} | {node} | {what} | {'yes' if seen else 'no'} | {seconds:.0f} | {'yes' if good else 'NO'} |",
        flush=True,
    )
    if not good:
        print(done.stdout[-3000:], *left, sep="\n", file=sys.stderr)
    return good


def main() -> int:
    """Every kind of kill in turn, on random nodes; exit status 1 when one did not end in a recovery."""
    parser = argparse.ArgumentParser(prog="python -m lab.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    nodes, before = status()
    if before:
        print("The lab does not serve:", *before, "Deploy first: make demo.", sep="\n", file=sys.stderr)
        return 1
    print("| kill | node | of | seen by status | recover s | serves |\n|---|---|---|---|---|---|", flush=True)
    results = [one(number, chance, nodes) for number in range(args.rounds)]
    chain = Ledger(ROOT / "history/lab").read(deep=True)
    print(
        f"\n{sum(results)} of {len(results)} recovered; the ledger has {len(chain.lines)} entries, "
        f"{len(chain.faults)} faults"
    )
    return 0 if all(results) and not chain.faults else 1


if __name__ == "__main__":
    sys.exit(main())
