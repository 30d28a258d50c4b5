"""The change history as text: tables of runs, a run with its diffs, what runs now. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from gb10.findings import error, line
from gb10.history import Line
from gb10.runs import NodeChange, Now, Run, Setting

SHORT = 12
COLUMNS = ("run", "time (UTC)", "who", "playbook", "profile", "plan", "outcome", "changed nodes")


def damaged(folder: object, fault: str) -> str:
    """A fault of the ledger in one line."""
    remedy = "Keep it as it is; hold it against a backup and the nodes' anchors."
    return line(error("history-damaged", f"{folder}: {fault}.", remedy))


def ending(last: Line | None) -> str:
    """The newest entry, as nodes know it."""
    return f"entry {last.sequence}, {last.hash}" if last else "nothing"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Columns, each as wide as its widest word; the last one as it is."""
    held = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*held, strict=True)]
    lines = ("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in held)
    return "\n".join(lines)


def runs_table(held: Sequence[Run]) -> str:
    """One line a run, the oldest first."""
    return table([COLUMNS, *(row(run) for run in held)]) if held else "No run is on record."


def row(run: Run) -> list[str]:
    """A run in one line."""
    playbook = run.text("playbook").rsplit("/", 1)[-1]
    names = run.touched
    where = f"{len(names)} of {len(run.begin.get('nodes') or names)}" if names else "-"
    return [
        run.id,
        run.text("time"),
        f"{run.text('operator')}@{run.text('controller')}",
        playbook,
        run.text("profile") or "-",
        run.text("plan_hash")[:SHORT] or "-",
        outcome(run),
        where,
    ]


def outcome(run: Run) -> str:
    """How it ended, in a word or two."""
    if run.outcome == "open":
        return "no end yet"
    return run.outcome + (f" by {run.end['signal']}" if run.end and run.end.get("signal") else "")


def run_text(run: Run) -> str:
    """A run with everything it changed."""
    begin = run.begin
    given = [f"{name}={value}" for name, value in sorted((begin.get("overrides") or {}).items())]
    commit = f"{run.text('commit')[:SHORT] or 'no git'}{' with local changes' if begin.get('dirty') else ''}"
    pairs = [
        ("run", run.id),
        ("time", run.text("time") + (f" to {run.end['time']}, {run.end['seconds']:.0f} s" if run.end else "")),
        ("who", f"{run.text('operator')}@{run.text('controller')}"),
        ("command", " ".join(begin.get("command") or [])),
        ("commit", commit),
        ("profile", run.text("profile") or "-"),
        ("overrides", ", ".join(given) or "none"),
        ("plan", run.text("plan_hash") or "-"),
        *((f"image {name}", counted(held)) for name, held in (begin.get("images") or {}).items()),
        ("inventory", run.text("inventory_hash")[:SHORT]),
        ("group_vars", run.text("group_vars_hash")[:SHORT]),
        ("outcome", outcome(run) + (", deployed" if run.deployed else "")),
    ]
    lines = [table(pairs)]
    for change in run.changes:
        lines += ["", f"{change['time']}  {change['task']}  ({change['path']})"]
        lines += grouped(change["items"])
    for kind in ("failed", "unreachable"):
        for bad in (run.end or {}).get(kind) or []:
            lines += ["", f"{kind.upper()} {bad['node']}: {bad['task']}", indented(bad.get("message") or "")]
    if run.end:
        names = ["node", *next(iter(run.end["stats"].values()), {})]
        stats = [[node, *map(str, numbers.values())] for node, numbers in sorted(run.end["stats"].items())]
        lines += ["", table([names, *stats])] if stats else []
    return "\n".join(line for line in lines if line is not None)


def counted(held: dict[str, str]) -> str:
    """Digests of an image, each with how many nodes have it."""
    values = list(held.values())
    return ", ".join(f"{digest[:19]} on {values.count(digest)}" for digest in dict.fromkeys(values))


def grouped(items: Sequence[Any]) -> list[str]:
    """Changes of a task, those that say the same together."""
    said: dict[str, list[str]] = {}
    for item in items:
        text = "\n".join(filter(None, [item.get("item"), item.get("diff") or item.get("note")]))
        said.setdefault(text, []).append(str(item["node"]))
    lines = []
    for text, nodes in sorted(said.items(), key=lambda pair: min(pair[1])):
        lines.append("  " + ", ".join(sorted(set(nodes))))
        lines += [indented(text)] if text else []
    return lines


def indented(text: str) -> str:
    """Text under a heading."""
    return "\n".join(f"    {line}" for line in text.rstrip("\n").split("\n"))


def now_text(found: Now) -> str:
    """What runs now, and since when."""
    if found.deployment is None or found.since is None:
        return "Nothing was deployed yet, as far as this ledger knows."
    run = found.deployment
    what = f"{run.text('profile')}, plan {run.text('plan_hash')[:SHORT]}"
    by = f"{found.since.text('operator')}@{found.since.text('controller')}, run {found.since.id}"
    if found.state == "stopped":
        lines = [f"Nothing runs: stopped {found.since.text('time')} by {by}.", f"Before: {what}, run {run.id}."]
    else:
        lines = [f"{what}, since {found.since.text('time')} by {by}."]
        lines += [f"Last confirmed {run.text('time')}, run {run.id}."] if run is not found.since else []
    lines += [
        f"Not sure: run {later.id} ({later.text('playbook')}, {outcome(later)}) touched ranks after that."
        for later in found.unsure
    ]
    return "\n".join(lines)


def node_text(node: str, found: Sequence[NodeChange], since: str) -> str:
    """What changed on a node."""
    if not found:
        return f"Nothing changed on {node}{f' since {since}' if since else ''}, as far as this ledger knows."
    lines = []
    run = None
    for change in found:
        if change.run is not run:
            run = change.run
            lines += ["", "  ".join([*row(run)[:5], outcome(run)])]
        lines.append(f"  {change.task}")
        text = "\n".join(filter(None, [change.item.get("item"), change.item.get("diff") or change.item.get("note")]))
        lines += [indented(text)] if text else []
    return "\n".join(lines).lstrip("\n")


def blame_text(name: str, found: Sequence[Setting]) -> str:
    """Who gave a setting which value when."""
    if not found:
        return f"No run on record had {name}."
    rows = [
        [value(one.value), one.run.text("time"), who(one.run), one.run.text("commit")[:SHORT], how(one), one.run.id]
        for one in found
    ]
    return table([(name, "since (UTC)", "who", "commit", "given by", "run"), *rows])


def who(run: Run) -> str:
    """Operator and controller."""
    return f"{run.text('operator')}@{run.text('controller')}"


def how(one: Setting) -> str:
    """Where a value came from."""
    return "-e" if one.override else f"{one.run.text('profile') or 'the'} variables"


def difference_text(found: Sequence[tuple[str, Any, Any]]) -> str:
    """What two runs differ in; what several nodes have alike is told once."""
    if not found:
        return "The two runs were the same in everything that is kept of them."
    return "\n".join(f"{name}: {value(old)} -> {value(new)}" for name, old, new in found)


def value(given: Any) -> str:
    """A value in one line."""
    return "none" if given is None else given if isinstance(given, str) else json.dumps(given, sort_keys=True)
