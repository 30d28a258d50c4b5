"""Anchors: what each node keeps of the newest entry it knew of, and what they say of a ledger. docs/history.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gb10.findings import Finding, error, warning
from gb10.history import Chain, Line
from gb10.runs import Run, runs

Anchor = Mapping[str, Any]


def folder(root: Path, given: str, cluster: str) -> Path:
    """Where a cluster's ledger is: as given, else in the checkout."""
    return Path(given).expanduser() if given else root / "history" / (cluster or "gb10")


def anchor(line: Line, ledger: str = "") -> dict[str, Any]:
    """What the nodes keep of an entry. ``ledger``: the ledger's id, where the entry does not say it."""
    who: dict[str, Any] = {key: line.entry[key] for key in ("operator", "controller") if key in line.entry}
    return {
        "schema": 1,
        "ledger": str(line.entry.get("ledger") or ledger),
        "sequence": line.sequence,
        "hash": line.hash,
        "run": line.run,
        "time": str(line.entry["time"]),
        **who,
    }


def anchor_findings(nodes: Mapping[str, Anchor], chain: Chain) -> list[Finding]:
    """What anchors say of a ledger. ``nodes``: every node that was asked, with an empty one where it has none.

    ``chain``: the ledger; its faults are told where it is written to, not here.
    """
    if not chain.lines:
        return list(fresh(nodes))
    held = {line.sequence: line for line in chain.lines}
    story = runs(line.entry for line in chain.lines)
    begun = {line.run: line.sequence for line in reversed(chain.lines)}
    found: list[Finding] = []
    for node, kept in nodes.items():
        found += judge(node, kept, chain, held)
        if not foreign(kept, chain):
            found += missed(node, int(kept.get("sequence", -1)), story, begun)
    return found


def foreign(kept: Anchor, chain: Chain) -> bool:
    """The anchor is of another ledger."""
    return bool(kept) and kept.get("ledger") != chain.identity


def judge(node: str, kept: Anchor, chain: Chain, held: Mapping[int, Line]) -> Iterator[Finding]:
    """One node's anchor against the entries."""
    if not kept:
        return
    if foreign(kept, chain):
        message = f"Its last run is {named(kept)} of another ledger."
        remedy = "Bring that controller's history/ here and work from one; this run's anchor takes its place."
        yield warning("anchor-unknown", message, remedy, node)
        return
    sequence, newest = int(kept.get("sequence", -1)), chain.lines[-1].sequence
    remedy = "Restore history/ from a backup; to go on without, move it away: a new ledger begins."
    if sequence > newest:
        message = f"It knows entry {sequence} ({named(kept)}), the ledger ends at {newest}."
        yield error("ledger-truncated", message, remedy, node)
    elif sequence not in held or held[sequence].hash != kept.get("hash"):
        here = held[sequence].hash[:12] if sequence in held else "missing"
        message = f"It knows entry {sequence} as {str(kept.get('hash'))[:12]}, the ledger has {here}."
        yield error("ledger-rewritten", message, remedy, node)


def missed(node: str, sequence: int, story: Iterable[Run], begun: Mapping[str, int]) -> Iterator[Finding]:
    """Runs on other nodes that this one has no anchor of."""
    later = [run for run in story if begun[run.id] > sequence and node in run.begin.get("nodes", ()) and acted(run)]
    if later:
        newest = later[-1]
        what = f"{newest.text('playbook')} of {newest.text('time')} by {newest.text('operator')}"
        message = f"It missed {len(later)} run{'s' if len(later) > 1 else ''}, the last one {what}."
        yield warning("anchor-behind", message, "Run site.yml on all nodes, or see why it was left out.", node)


def acted(run: Run) -> bool:
    """It is known to have got as far as the nodes."""
    return bool(run.changes) or run.well


def fresh(nodes: Mapping[str, Anchor]) -> Iterator[Finding]:
    """An empty ledger before nodes that know another."""
    kept = [one for one in nodes.values() if one]
    if kept:
        newest = max(kept, key=lambda one: str(one.get("time")))
        message = f"The ledger here is empty, but {len(kept)} of {len(nodes)} nodes know {named(newest)}."
        remedy = "Bring that controller's history/ here to keep one story, or go on with a new one."
        yield warning("history-fresh", message, remedy)


def named(kept: Anchor) -> str:
    """A run as a node knows it."""
    who = f"{kept.get('operator')}@{kept.get('controller')}" if kept.get("operator") else "an unknown operator"
    return f"run {kept.get('run')} by {who} at {kept.get('time')}"
