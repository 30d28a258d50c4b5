"""Counts what a prepare with nothing to change costs: ssh round trips a node, and time against a ping of the nodes.

Takes an inventory (default: the lab's). The nodes are prepared first, so the run that is measured changes nothing.
Exit is non-zero when it changed something, or a limit is exceeded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
TRIPS = 12  # round trips a node, at most
RATIO = 12.0  # times the wall time of a ping, wanted at most
SECONDS = 900
TOOLS = ("ssh", "scp", "sftp")

# Stands for ssh, scp and sftp: writes down one line a call, then becomes the real one. ControlMaster checks and exits
# (-O) reach no node.
WRAPPER = """\
#!/bin/sh
case " $* " in *" -O "*) ;; *) printf '%s %s\\n' {tool} "$*" | tr '\\n' ' ' >> {log}; echo >> {log} ;; esac
exec {real} "$@"
"""


def wrapped(folder: Path) -> dict[str, str]:
    """An environment in which Ansible calls the wrappers; they write to ``folder/log``."""
    environment = dict(os.environ, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), PATH=f"{BIN}:{os.environ['PATH']}")
    for tool in TOOLS:
        path = folder / tool
        path.write_text(WRAPPER.format(tool=tool, log=folder / "log", real=shutil.which(tool)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        environment[f"ANSIBLE_{tool.upper()}_EXECUTABLE"] = str(path)
    return environment


def timed(command: list[str], environment: Mapping[str, str]) -> tuple[str, float]:
    """A command's output and wall time in seconds; it must end well."""
    begun = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    took = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
    return done.stdout, took


def trips(log: Path, addresses: Mapping[str, str]) -> Counter[str]:
    """Calls by node. Every call of ssh, scp and sftp names its host once, as an argument of its own."""
    text = log.read_text() if log.exists() else ""
    calls = [set(re.split(r"[\s@\[\]:]+", line)) for line in text.splitlines()]
    return Counter({name: sum(address in words for words in calls) for name, address in addresses.items()})


def addresses(inventory: str) -> dict[str, str]:
    """Node to the address ssh is given, as Ansible has it."""
    pattern = "{{ inventory_hostname }}={{ ansible_host | default(inventory_hostname) }}"
    command = [str(BIN / "ansible"), "gb10", "-i", inventory, "-m", "ansible.builtin.debug", "-a", f"msg='{pattern}'"]
    said, _took = timed(command, dict(os.environ, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg")))
    return dict(re.findall(r"msg: ([\w.-]+)=([\w.:-]+)", said))


def main() -> None:
    """Prints one line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-i", "--inventory", default=".lab/inventory/hosts.yml")
    parser.add_argument("--profile", default="tp8-300k")
    parser.add_argument("--prepared", action="store_true", help="the nodes are prepared: do not do it first")
    given = parser.parse_args()
    play = [
        str(BIN / "ansible-playbook"),
        "-i",
        given.inventory,
        "playbooks/prepare.yml",
        "-e",
        f"profile={given.profile}",
    ]
    ping = [str(BIN / "ansible"), "gb10", "-i", given.inventory, "-m", "ansible.builtin.ping"]
    nodes = addresses(given.inventory)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = wrapped(folder)
        if not given.prepared:
            timed(play, environment)
        timed(ping, environment)  # connections are there for both
        _said, alone = timed(ping, environment)
        (folder / "log").unlink(missing_ok=True)
        said, took = timed(play, environment)
        counted = trips(folder / "log", nodes)
    changed = sum(map(int, re.findall(r"changed=(\d+)", said)))
    most = max(counted.values())
    print(f"{len(nodes)} nodes, nothing to change: {changed} changed")
    print(f"ssh round trips a node        {min(counted.values())} to {most}, at most {TRIPS}")
    print(f"ansible -m ping               {alone:6.2f} s")
    print(f"prepare.yml                   {took:6.2f} s, {took / alone:.1f} times that, wanted at most {RATIO:g}")
    if changed or most > TRIPS or not min(counted.values()):  # what is counted fails; a time is judged by who reads it
        sys.exit("more than it may be")


if __name__ == "__main__":
    main()
