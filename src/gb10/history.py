"""The change history: entries chained by SHA-256, so that a changed, dropped or reordered one shows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from gb10.plan import canonical

# What the first entry follows.
GENESIS = "0" * 64


def entry(previous: str, sequence: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """A chained entry: ``body`` with ``sequence``, ``previous`` (hash of the entry before) and its own ``hash``."""
    content = {**body, "sequence": sequence, "previous": previous}
    return {**content, "hash": hashlib.sha256(canonical(content).encode()).hexdigest()}


def following(lines: Iterable[str], body: Mapping[str, Any]) -> str:
    """The line to append after ``lines``. ValueError with the first fault when those do not verify."""
    held = [line for line in lines if line.strip()]
    faults = verify(held)
    if faults:
        raise ValueError(faults[0])
    previous = json.loads(held[-1])["hash"] if held else GENESIS
    return canonical(entry(previous, len(held), body))


def verify(lines: Iterable[str]) -> list[str]:
    """What is wrong with a ledger, one line of text each; empty when every entry follows the one before."""
    faults = []
    previous = GENESIS
    for number, line in enumerate(lines):
        try:
            held = json.loads(line)
            content = {key: value for key, value in held.items() if key != "hash"}
            computed = hashlib.sha256(canonical(content).encode()).hexdigest()
        except (ValueError, AttributeError):
            faults.append(f"entry {number} is not readable")
            break
        if held.get("hash") != computed:
            faults.append(f"entry {number} was changed: its content does not give its hash")
        if held.get("previous") != previous or held.get("sequence") != number:
            faults.append(f"entry {number} does not follow the one before")
        previous = str(held.get("hash"))
    return faults
