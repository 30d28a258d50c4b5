"""What the log of a rank says, by the signatures of data/engine_log.yml. Also runs on nodes, in a module of Ansible."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Signature = Mapping[str, Any]

LONGEST = 500  # characters of a line that are kept


def phase_of(lines: Sequence[str], phases: Iterable[Signature]) -> str:
    """Name of the furthest phase any line shows; empty before the first."""
    reached = ""
    for phase in phases:
        pattern = re.compile(phase["pattern"])
        if any(pattern.search(line) for line in lines):
            reached = str(phase["name"])
    return reached


def fault_of(lines: Sequence[str], faults: Iterable[Signature]) -> dict[str, str] | None:
    """The first known fault a line shows: ``{code, message, remedy, line}``."""
    for fault in faults:
        pattern = re.compile(fault["pattern"])
        for line in lines:
            if pattern.search(line):
                said = {key: str(fault.get(key, "")) for key in ("code", "message", "remedy")}
                return {**said, "line": line.strip()[:LONGEST]}
    return None


def cause_of(lines: Iterable[str], pattern: str) -> str:
    """The first line that matches: what follows it in a log is its consequence."""
    found = (line.strip() for line in lines if re.search(pattern, line)) if pattern else iter(())
    return next(found, "")[:LONGEST]


def figures_of(lines: Sequence[str], figures: Iterable[Signature]) -> dict[str, float]:
    """Every figure the log holds, by name; the last of several counts."""
    found = {}
    for figure in figures:
        pattern = re.compile(figure["pattern"])
        for line in lines:
            if match := pattern.search(line):
                found[str(figure["name"])] = float(match[1].replace(",", ""))
    return found


def notes_of(lines: Sequence[str], notes: Iterable[Signature]) -> list[dict[str, str]]:
    """Lines worth a warning, each thing they name once: ``{code, message, what}``."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for note in notes:
        pattern = re.compile(note["pattern"])
        for line in lines:
            if match := pattern.search(line):
                said = {"code": str(note["code"]), "message": str(note["message"]), "what": match[1]}
                found.setdefault((said["code"], said["what"]), said)
    return list(found.values())


def lines_of(stream: bytes) -> list[str]:
    """Lines of a log as Docker sends it: chunks framed by 8 bytes (stream, length) unless the container has a tty."""
    out = b""
    while len(stream) >= 8 and stream[0] in (0, 1, 2) and stream[1:4] == b"\0\0\0":
        size = int.from_bytes(stream[4:8], "big")
        out += stream[8 : 8 + size]
        stream = stream[8 + size :]
    return (out or stream).decode(errors="replace").splitlines()
