"""Playbooks run by ``gb10`` for the document they write."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gb10 import checkout


def options(verb: argparse.ArgumentParser, kind: Callable[[str], str] = str) -> None:
    """Which nodes, and what else, in the words of ansible-playbook."""
    verb.add_argument("-i", "--inventory", type=kind, metavar="INVENTORY", help="as for ansible-playbook")
    verb.add_argument("-e", "--extra-vars", action="append", default=[], metavar="VARS", help="as there")


def given(args: argparse.Namespace) -> list[str]:
    """Those options again."""
    found = ["-i", args.inventory] if args.inventory else []
    return found + [word for more in args.extra_vars for word in ("-e", more)]


def ask(
    name: str, into: str, args: argparse.Namespace, variables: Mapping[str, Any] | None = None, more: Sequence[str] = ()
) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Runs playbooks/``name``.yml, whose variable ``into`` names a file: how that ended, and the document in the file.

    The document is None where none was written. ``more`` are options of ansible-playbook.
    """
    root = checkout.root()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        extra = json.dumps({**(variables or {}), into: str(path)})
        command = [program(), str(root / f"playbooks/{name}.yml"), "-e", extra, *given(args), *more]
        config = os.environ.get("ANSIBLE_CONFIG") or str(root / "ansible.cfg")
        environment = os.environ | {"ANSIBLE_CONFIG": config, "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        try:
            return done, json.loads(path.read_text())
        except (OSError, ValueError):
            return done, None


def program() -> str:
    """The ansible-playbook beside this Python, else the one on the PATH."""
    beside = Path(sys.executable).parent / "ansible-playbook"
    return str(beside) if beside.exists() else "ansible-playbook"
