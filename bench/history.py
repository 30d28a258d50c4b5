"""What recording costs: its share of a run's wall time, and how long ``gb10 history verify`` takes over 10,000 runs.

The run is one of ansible-playbook on this machine, with the plan and the facts of eight hosts that are all this one:
quick tasks that each change every host, so recording has the most to do for the time; then the same with nothing to do.
The ledger of 10,000 runs has entries and plans of the size real ones have. Exit is non-zero when a limit is exceeded.
Needs no node.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from gb10.history import Line, following
from gb10.ledger import Ledger
from gb10.plan import canonical

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
SHARE = 5.0  # per cent of a run's wall time, at most
VERIFY = 10.0  # seconds of a core, at most
HOSTS, TASKS, RUNS = 8, 12, 10_000

TASK = """\
    - name: File {number} is there
      ansible.builtin.copy:
        content: "{{{{ range(30) | map('string') | join('\\n') }}}}\\n"
        dest: "{{{{ folder }}}}/{{{{ inventory_hostname }}}}-{number}"
        mode: "0600"
"""
PLAYBOOK = (
    f"""\
- name: Plan
  ansible.builtin.import_playbook: {ROOT}/playbooks/plan.yml
"""
    + """\
- name: Run
  hosts: gb10
  gather_facts: false
  tasks:
    - name: What nodes say
      gb10_facts: {}
      register: gb10_node
    - name: What is to run
      ansible.builtin.set_fact:
        gb10_deploy: "{{ gb10_plan | combine({'plan_hash': '0' * 64}) }}"
      run_once: true
    - name: The run is on record
      gb10_history: {folder: "{{ folder }}/ledger"}
      run_once: true
"""
    + "".join(TASK.format(number=number) for number in range(TASKS))
)


def recorded(folder: Path) -> tuple[float, float, float]:
    """Seconds a run spent recording, its wall time, the share in per cent."""
    (folder / "play.yml").write_text(PLAYBOOK)
    given = f"profile=tp8-300k folder={folder} ansible_connection=local ansible_python_interpreter={sys.executable}"
    command = [BIN / "ansible-playbook", "play.yml", "-i", ROOT / "inventory/hosts.yml", "-e", given]
    environment = os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        sys.exit(f"the run failed:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
    end = Ledger(folder / "ledger").read().entries[-1]
    return end["recording"], end["seconds"], 100 * end["recording"] / end["seconds"]


def fill(folder: Path, count: int) -> Ledger:
    """A ledger of ``count`` runs as ``Ledger`` writes it, without its syncs: begin, two changes on all hosts, end."""
    ledger = Ledger(folder)
    for path in (ledger.runs, ledger.plans):
        path.mkdir(parents=True)
    nodes = [f"n{n}" for n in range(HOSTS)]
    rank = {"argv": ["--option", "value"] * 40, "env": {f"NCCL_{n}": "value" for n in range(30)}}
    last: Line | None = None
    plan = ""
    for number in range(count):
        run = f"20261130T000000Z-{number:08x}"
        if number % 20 == 0:
            text = canonical({"schema": 1, "number": number, "ranks": [rank | {"node": node} for node in nodes]})
            plan = sha256(text.encode()).hexdigest()
            (ledger.plans / f"{plan}.json").write_text(text)
        common = {"run": run, "time": "2026-11-30T00:00:00Z"}
        items = [{"node": node, "seconds": 1.234, "diff": "--- a\n+++ b\n-old line\n+new line\n" * 3} for node in nodes]
        facts = dict.fromkeys(nodes, "0" * 64)
        bodies = [
            common
            | {"kind": "begin", "ledger": "0" * 32, "plan": plan, "facts": facts, "nodes": nodes, "overrides": {}},
            common | {"kind": "change", "task": "A file is there", "path": "roles/x/tasks/main.yml:1", "items": items},
            common | {"kind": "change", "task": "A unit runs", "path": "roles/x/tasks/main.yml:9", "items": items},
            common | {"kind": "end", "outcome": "changed", "stats": {node: {"ok": 30, "changed": 2} for node in nodes}},
        ]
        lines = []
        for body in bodies:
            last = following(last, body)
            lines.append(last.written() + "\n")
        (ledger.runs / f"{run}.jsonl").write_text("".join(lines))
    if last:
        ledger.head.write_text(canonical({"hash": last.hash, "run": last.run, "sequence": last.sequence}) + "\n")
    return ledger


def timed(*words: str) -> tuple[float, float]:
    """Processor and wall time of a command that must end well. On a quiet machine they are the same."""
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(BIN / "gb10"), *words], check=True, stdout=subprocess.DEVNULL, timeout=900)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - begun


def main() -> None:
    """Prints one line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS, help="in the ledger that is verified")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shares = []
        for what in ("changing everything", "changing nothing"):
            cost, wall, share = recorded(folder)
            shares.append(share)
            print(f"a run {what:20} {cost:6.2f} s of {wall:6.2f} s recording: {share:.2f} %, at most {SHARE:g} %")
        ledger = fill(folder / "many", given.runs)
        size = sum(path.stat().st_size for path in ledger.folder.rglob("*") if path.is_file()) >> 20
        took, wall = timed("history", "verify", "--ledger", str(ledger.folder))
        print(
            f"verify of {given.runs} runs, {size} MiB  {took:6.2f} s of a core ({wall:.2f} s now), at most {VERIFY:g} s"
        )
        begun = time.perf_counter()
        ledger.begin({"kind": "begin", "run": "next", "time": "2026-11-30T00:00:00Z"})
        print(f"begin of a run after them       {time.perf_counter() - begun:6.2f} s")
    if max(shares) > SHARE or took > VERIFY:
        sys.exit("more than it may be")


if __name__ == "__main__":
    main()
