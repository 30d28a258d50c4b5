"""``gb10 weights``: makes the manifest, and asks nodes what they have of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from gb10 import playbook, weights_manifest, weights_report
from gb10.findings import error, line
from gb10.relay.problem import Problem
from gb10.sources import SourceError
from gb10.weights_files import Entry, gib

GOOD, REFUSED = 0, 1
PLAYBOOK = "weights_verify"
MANIFEST = """\
Writes manifest.json: path, bytes and sha256 of every file. SOURCE is a directory, every file of which is read, links
through; or a repository OWNER/NAME of Hugging Face's hub, by its own metadata (only its small files are fetched). Where
the hub cannot be reached its cache on this machine is taken."""
ASK = """\
One line a node. Compares every node's files with the manifest in weights_source; exit status 1 when a node or a file is
wrong, which stderr names. What was read before and did not change since is not read again."""


def add(verbs: Any) -> None:
    """The verb and its own verbs."""
    about = "manifest of a checkpoint; what nodes have of it"
    top = verbs.add_parser("weights", help=about, description=f"{about.capitalize()}. See docs/weights.md.")
    own = top.add_subparsers(metavar="VERB", required=True)
    made = own.add_parser("manifest", help="make manifest.json", description=MANIFEST, allow_abbrev=False)
    made.set_defaults(run=manifest_verb)
    made.add_argument("source", type=given, metavar="SOURCE", help="directory, or OWNER/NAME on the hub")
    made.add_argument("-o", "--output", type=given, metavar="FILE", help="default: manifest.json in SOURCE, or here")
    made.add_argument("--revision", default="", metavar="R", help="commit, branch or tag of a repository")
    made.add_argument("--no-read", action="store_true", help="of a download: believe the sums the hub gave with it")
    for name, read, text in (("verify", "changed", "read what was not read yet"), ("status", "none", "read nothing")):
        verb = own.add_parser(name, help=f"what nodes have; {text}", description=ASK, allow_abbrev=False)
        verb.set_defaults(run=ask_verb, read=read)
        playbook.options(verb, given)
        if name == "verify":
            verb.add_argument("--all", dest="read", action="store_const", const="all", help="read every file")


def given(word: str) -> str:
    """A word that is not empty, as that of a script whose variable is not set."""
    if not word:
        raise argparse.ArgumentTypeError("given but empty")
    return word


def manifest_verb(args: argparse.Namespace) -> int:
    """``gb10 weights manifest``. Raises SourceError."""
    folder = Path(args.source).expanduser()
    try:
        if folder.is_dir():
            entries, of = weights_manifest.of_directory(folder, hashing=not args.no_read), str(folder)
        elif weights_manifest.REPOSITORY.fullmatch(args.source):
            entries, commit = repository(args.source, args.revision)
            of = f"{args.source} at {commit}"
        else:
            raise Problem("weights-manifest", f"{args.source} is no directory, and no OWNER/NAME of a repository.")
        here = folder if folder.is_dir() else Path()
        target = Path(args.output).expanduser() if args.output else here / weights_manifest.MANIFEST
        try:
            weights_manifest.write(target, entries)
        except OSError as problem:
            raise Problem("weights-manifest", f"{target}: {problem.strerror}.") from None
    except Problem as problem:
        raise SourceError(error(problem.code, problem.text, "See docs/weights.md.")) from None
    print(f"{target}: {len(entries)} files, {gib(sum(size for _path, size, _sha256 in entries))}, of {of}")
    return GOOD


def repository(name: str, revision: str) -> tuple[list[Entry], str]:
    """By the hub, else by its cache on this machine. Raises Problem."""
    try:
        return weights_manifest.of_repository(name, revision)
    except Problem as problem:
        if problem.code != "weights-hub-silent":
            raise
        print(line(error(problem.code, problem.text, "Its cache on this machine is asked.")), file=sys.stderr)
        return weights_manifest.of_cache(name, revision)


def ask_verb(args: argparse.Namespace) -> int:
    """``gb10 weights verify`` and ``status``: runs the playbook, prints what every node said."""
    done, states = playbook.ask(PLAYBOOK, "weights_report", args, {"weights_read": args.read})
    if states is None:
        remedy = f"See ansible-playbook playbooks/{PLAYBOOK}.yml."
        raise SourceError(error("weights-unasked", f"{said(done.stdout + done.stderr)}.", remedy))
    print(weights_report.text(states))
    found = weights_report.findings(states)
    for finding in found:
        print(line(finding), file=sys.stderr)
    return REFUSED if found else GOOD


def said(output: str) -> str:
    """The line of Ansible's output that says what went wrong."""
    lines = [text.strip() for text in output.splitlines() if text.strip()]
    named = [text for text in lines if "error [" in text] or [text for text in lines if "rror" in text] or lines[-1:]
    return (named[0] if named else "ansible-playbook said nothing").rstrip(".")
