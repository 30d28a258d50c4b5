"""Times ``gb10 plan``: 8 nodes, 512 nodes (64 inventories of 8), and the start of Ansible's inventory alone."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLUSTERS = 64
RUNS = 3


def seconds(command: Sequence[str | Path]) -> float:
    """The best of some runs of a command that must end well."""
    times = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - begun)
    return min(times)


def cluster(number: int) -> str:
    """An inventory of eight nodes with addresses of its own."""
    hosts = (f"    c{number}-n{n}: {{ansible_host: 10.1.{number}.{n + 1}, node_rank: {n}}}\n" for n in range(8))
    return "gb10:\n  hosts:\n" + "".join(hosts)


def main() -> None:
    """Prints one line a measurement."""
    plan: list[str | Path] = [Path(sys.executable).parent / "gb10", "plan", "--profile", "tp8-300k"]
    with tempfile.TemporaryDirectory() as folder:
        many: list[str | Path] = []
        for number in range(CLUSTERS):
            path = Path(folder) / f"cluster-{number:02}.yml"
            path.write_text(cluster(number))
            many += ["-i", path]
        start = seconds([sys.executable, "-c", "import ansible.inventory.manager, ansible.vars.hostvars"])
        times = {
            "8 nodes": seconds([*plan, "-i", "inventory/hosts.yml"]),
            "512 nodes, 64 clusters": seconds([*plan, *many]),
        }
    print(f"{'import of ansible.inventory.manager':<36}{start:6.2f} s")
    for what, took in times.items():
        print(f"{'gb10 plan, ' + what:<36}{took:6.2f} s{took / start:6.1f} times that")


if __name__ == "__main__":
    main()
