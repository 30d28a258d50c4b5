"""How many concurrent users an endpoint serves within its targets: Max C, and what that means in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gb10.reference import Row
from gb10.slo import Slo


@dataclass(frozen=True)
class Judged:
    """One level and why it misses the targets."""

    c: int
    misses: tuple[str, ...]


@dataclass(frozen=True)
class Capacity:
    """``max_c``: the highest level that meets the targets with every lower one meeting them too; 0: none does."""

    max_c: int
    levels: tuple[Judged, ...]

    @property
    def first_miss(self) -> Judged | None:
        """The lowest level that fails."""
        return next((level for level in self.levels if level.misses), None)


def capacity(levels: Mapping[int, tuple[Mapping[str, float | None], int]], slo: Slo) -> Capacity:
    """Of levels by concurrent users: the figures by the SLO's statistic, and how many requests failed."""
    judged = tuple(Judged(c, tuple(slo.misses(*levels[c]))) for c in sorted(levels))
    best = 0
    for level in judged:
        if level.misses:
            break
        best = level.c
    return Capacity(best, judged)


def of_table(rows: Mapping[int, Row], slo: Slo) -> Capacity:
    """Of one of the report's tables, which tell means."""
    return capacity({c: ({"ttft_ms": row.ttft_ms, "tps": row.tps}, 0) for c, row in rows.items()}, slo)


def recommendation(found: Capacity, slo: Slo) -> str:
    """What an operator should know, in words."""
    levels = [level.c for level in found.levels]
    if not levels:
        return "No level was measured, so nothing can be recommended."
    miss = found.first_miss
    if miss is None:
        users = users_of(found.max_c)
        return f"Serve {users}: every level measured meets {slo.text()}. More than {found.max_c} was not measured."
    why = "; ".join(miss.misses)
    if not found.max_c:
        return f"Not for interactive use within {slo.text()}: already {users_of(miss.c)} is too many ({why})."
    return f"Serve at most {users_of(found.max_c)} within {slo.text()}: {users_of(miss.c)} is too many ({why})."


def users_of(c: int) -> str:
    """``1 user``, ``4 concurrent users``."""
    return "1 user" if c == 1 else f"{c} concurrent users"
