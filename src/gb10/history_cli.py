"""``gb10 history``: what the change history of a cluster tells. Contacts no node, changes nothing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gb10 import checkout, runs, signature, stories, timeline, when
from gb10.history import Chain
from gb10.ledger import Ledger, LedgerError
from gb10.runs import Run

GOOD, DAMAGED, USAGE = 0, 1, 2

MORE = """\
examples:
  gb10 history list                              every run; --format html -o history.html: a page to look at
  gb10 history show last                         one run with everything it changed
  gb10 history verify                            whether entries were changed, dropped, added or reordered
  gb10 history diff 4d6db1aa last                what two runs differ in
  gb10 history now                               what runs, and since when
  gb10 history node spark-161 --since tuesday    what changed there
  gb10 history blame max_num_seqs                who set it; also --max-num-seqs or NCCL_BUFFSIZE
A run is given by its id, a part of it, or `last`.

exit status: 0; 1 when the ledger does not verify; 2 when what was given cannot be used."""


class Unusable(Exception):
    """What was given cannot be used; one line of text."""


class Book:
    """A ledger with its story."""

    def __init__(self, ledger: Ledger, deep: bool) -> None:
        self.ledger = ledger
        self.chain: Chain = ledger.read(deep)
        self.runs: list[Run] = runs.runs(self.chain.entries)

    def find(self, word: str) -> Run:
        """The run that is meant."""
        if word == "last" and self.runs:
            return self.runs[-1]
        found = [run for run in self.runs if word in run.id]
        if len(found) != 1:
            count = f"{len(found)} runs have" if found else "no run has"
            raise Unusable(f"{count} {word} in its id; see gb10 history list")
        return found[0]

    def plan(self, run: Run) -> dict[str, Any]:
        """What it was to deploy; empty where it was to deploy nothing."""
        return self.ledger.plan(run.text("plan")) if run.text("plan") else {}


Answer = tuple[Any, str]


def add(verbs: Any) -> None:
    """The verb on the command line of ``gb10``."""
    top = verbs.add_parser(
        "history",
        help="who changed what, when; whether the record is whole",
        description="Reads the change history of a cluster.",
        epilog=MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    acts = top.add_subparsers(metavar="WHAT", required=True)
    for name, (act, text) in ACTS.items():
        one = acts.add_parser(name, help=text, description=text, allow_abbrev=False)
        one.set_defaults(run=history_verb, act=act)
        for argument in ARGUMENTS.get(name, ()):
            one.add_argument(argument)
        if name == "node":
            one.add_argument("--since", default="", metavar="WHEN", help="2026-11-30, tuesday, yesterday, 3d, 12h")
        if name == "verify":
            one.add_argument("--allowed-signers", metavar="FILE", help="also the signatures (see ssh-keygen(1))")
            one.add_argument("--contains", default="", metavar="HASH", help="also whether it has this entry")
        formats = ("table", "json", "html") if name == "list" else ("table", "json")
        one.add_argument("--format", choices=formats, default="table")
        one.add_argument("-o", "--output", metavar="FILE", help="write there instead of on stdout")
        one.add_argument("--ledger", metavar="DIR", help="change_history_dir (default: the one in history/)")


def history_verb(args: argparse.Namespace) -> int:
    """Says what is asked for; faults of the ledger on stderr, whatever is asked."""
    try:
        return answer(args)
    except (Unusable, LedgerError) as problem:
        print(f"gb10: {str(problem).rstrip('.')}.", file=sys.stderr)
        return USAGE


def answer(args: argparse.Namespace) -> int:
    """The exit status. Raises Unusable and LedgerError."""
    ledger = Ledger(Path(args.ledger).expanduser() if args.ledger else only_ledger(checkout.root() / "history"))
    if not ledger.folder.is_dir():
        raise Unusable(f"{ledger.folder} is no directory: no run is on record there")
    book = Book(ledger, deep=args.act is verify)
    act: Callable[[argparse.Namespace, Book], Answer] = args.act
    try:
        document, text = act(args, book)
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        if book.chain.faults:
            raise Unusable(f"{ledger.folder} is damaged too much to tell: {book.chain.faults[0]}") from None
        raise Unusable(f"an entry has not the form it should have ({type(problem).__name__}: {problem})") from None
    faults = list(document["faults"]) if args.act is verify else list(book.chain.faults)
    for fault in faults:
        print(stories.damaged(ledger.folder, fault), file=sys.stderr)
    if args.format == "html":
        text = timeline.page(
            ledger.folder.name, book.runs, runs.now(book.runs), faults, stories.ending(book.chain.last)
        )
    elif args.format == "json":
        text = json.dumps(document, indent=1, sort_keys=True)
    if args.output:
        Path(args.output).expanduser().write_text(text.rstrip("\n") + "\n")
    else:
        print(text.rstrip("\n"))
    return DAMAGED if faults else GOOD


def only_ledger(folder: Path) -> Path:
    """The ledger in ``folder``, if there is one alone."""
    held = sorted(path.name for path in folder.glob("*") if (path / "runs").is_dir())
    if len(held) == 1:
        return folder / held[0]
    if not held:
        raise Unusable(f"no run is on record in {folder}; give --ledger DIR if it is elsewhere")
    raise Unusable(f"there are {len(held)} ledgers ({', '.join(held)}): give --ledger {folder}/NAME")


def summary(run: Run) -> dict[str, Any]:
    """A run as JSON, without what it changed."""
    keys = ("run", "time", "operator", "controller", "playbook", "profile", "overrides", "plan_hash", "commit", "dirty")
    more = {"outcome": run.outcome, "changed_nodes": run.touched, "deployed": run.deployment}
    return {key: run.begin.get(key) for key in keys} | more


def list_(args: argparse.Namespace, book: Book) -> Answer:
    """Every run, the oldest first."""
    return [summary(run) for run in book.runs], stories.runs_table(book.runs)


def show(args: argparse.Namespace, book: Book) -> Answer:
    """One run with everything it changed."""
    run = book.find(args.RUN)
    document = {"begin": run.begin, "changes": run.changes, "deployed": run.deployed, "end": run.end}
    return document, stories.run_text(run)


def verify(args: argparse.Namespace, book: Book) -> Answer:
    """Whether the ledger is whole."""
    chain = book.chain
    faults = list(chain.faults)
    if not faults:
        faults += book.ledger.plan_faults(chain)
        if args.contains and not contains(chain, args.contains):
            faults.append(f"no entry has the hash {args.contains}")
        if args.allowed_signers:
            faults += signature.faults(book.ledger, chain.lines, Path(args.allowed_signers).expanduser())
    notes = runs.backwards([line.entry for line in chain.lines]) if not faults else []
    notes += [f"run {run.id} has no end: it was killed, or is still at work" for run in book.runs if not run.end]
    state = "whole" if not faults else f"NOT whole, {len(faults)} faults"
    text = [
        f"{len(chain.lines)} entries of {len(book.runs)} runs, {state}; it ends with {stories.ending(chain.last)}",
        *notes,
    ]
    return {"entries": len(chain.lines), "runs": len(book.runs), "faults": faults, "notes": notes}, "\n".join(text)


def contains(chain: Chain, start: str) -> bool:
    """Whether an entry has this hash, given at least by its first 12 digits."""
    if len(start) < 12:
        raise Unusable(f"--contains {start}: give at least 12 digits of the hash")
    return any(entry.hash.startswith(start) for entry in chain.lines)


def diff(args: argparse.Namespace, book: Book) -> Answer:
    """What two runs differ in."""
    old, new = book.find(args.OLD), book.find(args.NEW)
    found = runs.difference(old, new, book.plan(old), book.plan(new))
    return [{"name": name, "old": a, "new": b} for name, a, b in found], stories.difference_text(found)


def now(args: argparse.Namespace, book: Book) -> Answer:
    """What runs now, and since when."""
    found = runs.now(book.runs)
    document = {
        "state": found.state,
        "deployment": summary(found.deployment) if found.deployment else None,
        "since": summary(found.since) if found.since else None,
        "unsure": [summary(run) for run in found.unsure],
    }
    return document, stories.now_text(found)


def node(args: argparse.Namespace, book: Book) -> Answer:
    """What changed on one node."""
    nodes = {str(name) for run in book.runs for name in [*(run.begin.get("nodes") or []), *run.touched]}
    if nodes and args.NODE not in nodes:
        raise Unusable(f"no run knows a node {args.NODE} (known: {', '.join(sorted(nodes))})")
    try:
        since = when.since(args.since, datetime.now(UTC)) if args.since else ""
    except (ValueError, OverflowError) as bad:
        raise Unusable(f"--since: {bad}") from None
    found = runs.changes_of(book.runs, args.NODE, since)
    document = [{"run": one.run.id, "time": one.run.begin["time"], "task": one.task, **one.item} for one in found]
    return document, stories.node_text(args.NODE, found, since)


def blame(args: argparse.Namespace, book: Book) -> Answer:
    """Who gave a setting which value."""
    found = runs.blame(book.runs, args.NAME, book.ledger.plan)
    document = [{"value": one.value, "override": one.override, **summary(one.run)} for one in found]
    return document, stories.blame_text(args.NAME, found)


ACTS: dict[str, tuple[Callable[[argparse.Namespace, Book], Answer], str]] = {
    "list": (list_, "Every run, the oldest first."),
    "show": (show, "One run with everything it changed."),
    "verify": (verify, "Whether the ledger is whole."),
    "diff": (diff, "What two runs differ in."),
    "now": (now, "What runs now, and since when."),
    "node": (node, "What changed on one node."),
    "blame": (blame, "Who gave a setting which value."),
}
ARGUMENTS: dict[str, Sequence[str]] = {
    "show": ["RUN"],
    "diff": ["OLD", "NEW"],
    "node": ["NODE"],
    "blame": ["NAME"],
}
