"""The verbs of ``gb10`` that look at nodes: each runs the playbook of its name and shows what that found alone."""

from __future__ import annotations

import argparse
import getpass
import re
import sys
from pathlib import Path
from typing import Any

from gb10 import checkout, drift, files, playbook, status, timers

VERBS = {
    "status": "what runs on every node, what should, and whether the endpoint answers",
    "drift": "what runs and how nodes are prepared, against what should be; exit status 2 where it differs",
    "logs": "the last lines every rank wrote",
}


def add(verbs: Any) -> None:
    """Adds them to the command line."""
    for name, text in VERBS.items():
        verb = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        verb.set_defaults(run=run, verb=name)
        playbook.options(verb)
        if name == "logs":
            verb.add_argument("-n", "--lines", type=int, default=40, metavar="N", help="lines a rank (default: 40)")
            verb.add_argument("--node", default="", metavar="NODE", help="of this node alone")
        verb.add_argument(
            "-o", "--format", choices=("table", "json"), default="table", help="on stdout (default: table)"
        )

    units = verbs.add_parser(
        "timers",
        help="systemd units that recover and look for drift from time to time",
        description="Writes four units into DIR, to be looked at and enabled. See docs/serving.md.",
        allow_abbrev=False,
    )
    units.set_defaults(run=write_timers)
    units.add_argument("directory", metavar="DIR", help="for example /etc/systemd/system")
    units.add_argument("-i", "--inventory", metavar="INVENTORY", required=True, help="as for ansible-playbook")
    units.add_argument("--user", default=getpass.getuser(), help="who runs them (default: you)")
    units.add_argument("--recover-every", default="5min", metavar="SPAN", help="after the last one ended (5min)")
    units.add_argument("--drift-every", default="1h", metavar="SPAN", help="after the last one ended (1h)")


def write_timers(args: argparse.Namespace) -> int:
    """``gb10 timers``."""
    root, beside = checkout.root(), Path(sys.executable).parent
    inventory = str(Path(args.inventory).absolute())
    units = timers.Units(str(root), inventory, args.user, str(beside), args.recover_every, args.drift_every)
    for name, text in units.files().items():
        path = Path(args.directory) / name
        path.write_text(text)
        print(path)
    print(
        "Then: systemctl daemon-reload && systemctl enable --now gb10-recover.timer gb10-drift.timer", file=sys.stderr
    )
    return 0


def run(args: argparse.Namespace) -> int:
    """Runs the playbook and says what it found; its exit status, and its own words where it found nothing."""
    logs = args.verb == "logs"
    variables = {"logs_lines": args.lines} if logs else {}
    limit = ["--limit", args.node] if logs and args.node else []
    done, document = playbook.ask(args.verb, f"{args.verb}_file", args, variables, limit)
    if document is None:
        print(errors(done.stdout, done.stderr), file=sys.stderr)
        return done.returncode or 1
    print(files.text(document) if args.format == "json" else said(args.verb, document) + "\n", end="")
    return done.returncode


def errors(stdout: str, stderr: str) -> str:
    """Of a playbook that found nothing the findings it failed with, each once; where there is none, its last words."""
    found = re.findall(r"msg: (error \[.*)", stdout)
    return "\n".join(dict.fromkeys(found)) or (stdout + stderr)[-4000:].strip()


def said(verb: str, document: Any) -> str:
    """The document as printed."""
    if verb == "status":
        return status.text(document)
    if verb == "drift":
        return drift.text(document)
    parts = []
    for node, lines in document["nodes"].items():
        parts.append("\n".join([f"== {node}", *(lines if lines is not None else ["(the node does not answer)"])]))
    return "\n\n".join(parts)
