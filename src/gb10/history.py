"""The change history: entries chained by SHA-256, so that a changed, dropped or reordered one shows. docs/history.md.

A line of the ledger is the canonical JSON of ``{"entry", "hash", "previous", "sequence"}``. ``hash`` is the SHA-256 of
the canonical JSON of the line without it; ``previous`` is the hash of the entry with the sequence before.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gb10.plan import canonical

# Of every begin entry.
SCHEMA = 1
# What the first entry follows.
GENESIS = "0" * 64

LINE = re.compile(
    r'\{"entry":(\{.*\}),"hash":"([0-9a-f]{64})","previous":"([0-9a-f]{64})","sequence":(0|[1-9][0-9]{0,15})\}'
)
# How many faults are told one by one.
MOST_FAULTS = 20


@dataclass(frozen=True)
class Line:
    """One entry in the chain; ``text`` is its canonical JSON, ``run`` the run whose file it stands in."""

    run: str
    text: str
    hash: str
    previous: str
    sequence: int

    @cached_property
    def entry(self) -> dict[str, Any]:
        """The entry. ValueError where it is no JSON object."""
        held = json.loads(self.text)
        if not isinstance(held, dict):
            raise ValueError("it is no JSON object")
        return held

    @property
    def whole(self) -> bool:
        """Whether the content gives the hash."""
        return self.hash == digest(self.text, self.previous, self.sequence)

    def written(self) -> str:
        """The line of the file, without its end."""
        return f'{{"entry":{self.text},"hash":"{self.hash}","previous":"{self.previous}","sequence":{self.sequence}}}'


@dataclass(frozen=True)
class Chain:
    """A ledger as it was read: its lines by sequence, and what is wrong with it (one line of text each)."""

    lines: tuple[Line, ...] = ()
    faults: tuple[str, ...] = ()
    behind: bool = False  # the head names the entry before the last one: a writer died in between

    @property
    def last(self) -> Line | None:
        """The newest entry."""
        return self.lines[-1] if self.lines else None

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The entries that can be read."""
        held = []
        for line in self.lines:
            try:
                held.append(line.entry)
            except ValueError:
                continue
        return held

    @cached_property
    def identity(self) -> str:
        """The id the ledger was given with its first entry; empty for an empty one."""
        return str(self.lines[0].entry.get("ledger", "")) if self.lines else ""


def digest(text: str, previous: str, sequence: int) -> str:
    """The hash of an entry, given as canonical JSON."""
    return hashlib.sha256(f'{{"entry":{text},"previous":"{previous}","sequence":{sequence}}}'.encode()).hexdigest()


def following(last: Line | None, body: Mapping[str, Any]) -> Line:
    """The entry ``body`` as the one after ``last``."""
    text = canonical(dict(body))
    previous, sequence = (last.hash, last.sequence + 1) if last else (GENESIS, 0)
    return Line(str(body["run"]), text, digest(text, previous, sequence), previous, sequence)


def lines_of(run: str, text: str) -> tuple[list[Line], list[str]]:
    """The lines of one run's file and what is wrong with their form."""
    lines, faults = [], []
    if text and not text.endswith("\n"):
        faults.append(f"run {run}: its file ends within an entry")
    for number, line in enumerate(text.split("\n")[: -1 if text.endswith("\n") else None], 1):
        found = LINE.fullmatch(line)
        if found:
            lines.append(Line(run, found[1], found[2], found[3], int(found[4])))
        else:
            faults.append(f"run {run}: line {number} is not readable")
    if not text:
        faults.append(f"run {run}: its file is empty")
    return lines, faults


def verify(files: Mapping[str, str], head: Mapping[str, Any] | None, deep: bool = False) -> Chain:
    """Reads a ledger: ``files`` by run, and the head (``sequence``, ``hash``, ``run``), ``None`` where there is none.

    ``deep`` also parses every entry and holds it to the run of its file.
    """
    lines: list[Line] = []
    faults: list[str] = []
    for run, text in files.items():
        held, bad = lines_of(run, text)
        lines += held
        faults += bad
    lines.sort(key=lambda line: line.sequence)
    previous, expected = GENESIS, 0
    for line in lines:
        at = f"entry {line.sequence} (run {line.run})"
        if not line.whole:
            faults.append(f"{at} was changed: its content does not give its hash")
        if line.sequence > expected:
            gap = f"entry {expected} is" if line.sequence == expected + 1 else f"entries {expected} to "
            faults.append(gap + ("" if gap.endswith("is") else f"{line.sequence - 1} are") + " missing")
        elif line.sequence < expected:
            faults.append(f"{at} stands there twice")
        elif line.previous != previous:
            faults.append(f"{at} does not follow the one before")
        previous, expected = line.hash, line.sequence + 1
        if deep:
            faults += _content(line)
    behind, bad = _head(lines, head)
    return Chain(tuple(lines), tuple(few(faults + bad)), behind and not bad)


def _content(line: Line) -> list[str]:
    """What is wrong with an entry itself."""
    at = f"entry {line.sequence} (run {line.run})"
    try:
        if line.entry.get("run") != line.run:
            return [f"{at} is of run {line.entry.get('run')}"]
    except ValueError:
        return [f"{at} is no JSON"]
    return []


def _head(lines: list[Line], head: Mapping[str, Any] | None) -> tuple[bool, list[str]]:
    """Whether the head is one entry behind, and what is wrong with it."""
    if head is None:
        return len(lines) == 1, ["the head is missing"] if len(lines) > 1 else []
    held = (head.get("sequence"), head.get("hash"), head.get("run"))
    for back, line in enumerate(reversed(lines[-2:])):
        if held == (line.sequence, line.hash, line.run):
            return back == 1, []
    newest = lines[-1].sequence if lines else "none"
    return False, [f"the head names entry {held[0]} ({str(held[1])[:12]}), the newest one there is {newest}"]


def few(faults: Iterable[str]) -> list[str]:
    """The first faults; the number of the others."""
    held = list(faults)
    more = [f"and {len(held) - MOST_FAULTS} more"] if len(held) > MOST_FAULTS else []
    return held[:MOST_FAULTS] + more
