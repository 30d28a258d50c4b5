"""The ledger: every kind of damage shows, and a damaged ledger is never written to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gb10.history import following, verify
from gb10.ledger import append


def lines(count: int = 4) -> list[str]:
    held: list[str] = []
    for number in range(count):
        held.append(following(held, {"kind": "begin", "run": f"r{number}"}))
    return held


def test_a_whole_ledger_verifies() -> None:
    assert verify([]) == []
    assert verify(lines()) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda held: [held[0].replace("r0", "r9"), *held[1:]],
        lambda held: [*held[:1], *held[2:]],
        lambda held: held[1:],
        lambda held: [held[0], held[2], held[1], held[3]],
        lambda held: [*held[:3], held[3][:-5]],
        lambda held: [*held, held[3]],
        lambda held: [*held, "null"],
        lambda held: [json.dumps(json.loads(held[0]) | {"added": 1}), *held[1:]],
    ],
)
def test_damage_shows_and_stops_the_next_entry(damage: Callable[[list[str]], list[str]], tmp_path: Path) -> None:
    damaged = damage(lines())
    assert verify(damaged)
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text("\n".join(damaged) + "\n")
    before = ledger.read_bytes()
    with pytest.raises(ValueError, match="entry"):
        append(ledger, {"kind": "begin"})
    assert ledger.read_bytes() == before


def test_entries_are_appended_in_order(tmp_path: Path) -> None:
    ledger = tmp_path / "deep" / "ledger.jsonl"
    for number in range(3):
        append(ledger, {"kind": "begin", "run": str(number)})
    held = ledger.read_text().splitlines()
    assert verify(held) == []
    assert [json.loads(line)["run"] for line in held] == ["0", "1", "2"]
