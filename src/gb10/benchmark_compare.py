"""One run against another: how far a figure moved, and whether by more than its repeats differ among themselves.

Every repeat gives one value of a figure at a level. The difference of two runs' means has a 95 % confidence interval by
Welch's t test; where that interval holds 0, nothing can be said to have changed. With a single repeat on either side
there is no such interval, and nothing is called better or worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

from gb10 import data
from gb10.findings import Finding, error, warning

# Figure: its name for people, its unit, whether more is better.
FIGURES = {
    "ttft_ms": ("TTFT", "ms", False),
    "tpot_ms": ("TPOT", "ms", False),
    "tps": ("TPS", "tok/s", True),
    "latency_s": ("latency", "s", False),
    "aggregate_tps": ("aggregate", "tok/s", True),
}


@dataclass(frozen=True)
class Change:
    """One figure at one level. ``percent`` of the earlier mean; ``noise``: half its interval's width, None: unknown."""

    c: int
    figure: str
    before: float
    after: float
    percent: float
    noise: float | None

    @property
    def certain(self) -> bool:
        """More than noise."""
        return self.noise is not None and abs(self.percent) > self.noise

    @property
    def better(self) -> bool:
        """In the direction that is wanted."""
        return (self.percent > 0) == FIGURES[self.figure][2]

    @property
    def verdict(self) -> str:
        """In words."""
        if self.noise is None:
            return "unknown"
        return ("better" if self.better else "worse") if self.certain else "same"


def student_t(freedom: float) -> float:
    """Two-sided 95 % quantile, of the next lower whole number of degrees of freedom."""
    table = data.load("benchmark")["student_t"]
    return float(table[min(max(1, math.floor(freedom)), len(table)) - 1])


def half_width(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Half the 95 % interval of the difference of two means, in their unit; None with fewer than two values a side."""
    if len(before) < 2 or len(after) < 2:
        return None
    parts = [variance(values) / len(values) for values in (before, after)]
    total = sum(parts)
    if not total:
        return 0.0
    freedom = total**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (before, after), strict=True))
    return student_t(freedom) * math.sqrt(total)


def values_of(level: Mapping[str, Any], figure: str) -> list[float]:
    """One value a repeat: its mean, or the level's own figure."""
    held = [repeat[figure] for repeat in level["repeats"]]
    plain = [value["mean"] if isinstance(value, dict) else value for value in held]
    return [value for value in plain if value is not None]


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Of every figure at every level both runs have."""
    earlier = {level["c"]: level for level in before["levels"]}
    found = []
    for level in after["levels"]:
        for figure in FIGURES if level["c"] in earlier else ():
            old, new = values_of(earlier[level["c"]], figure), values_of(level, figure)
            if not old or not new or not fmean(old):
                continue
            a, b, width = fmean(old), fmean(new), half_width(old, new)
            noise = None if width is None else 100 * width / a
            found.append(Change(level["c"], figure, a, b, 100 * (b / a - 1), noise))
    return found


def unlike(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What makes two runs incomparable: their workloads' differences, in words."""
    old, new = before["workload"], after["workload"]
    return [
        f"{name} was {old.get(name)} and is {new.get(name)}"
        for name in new
        if name != "levels" and old.get(name) != new.get(name)
    ]


def findings(before: Mapping[str, Any], after: Mapping[str, Any], worse: float, *, gate: bool) -> list[Finding]:
    """Regressions: beyond noise, and by more than the share ``worse``. With the gate each is an error."""
    different = unlike(before, after)
    name = before["run"]
    if different:
        message = f"Run {name} measured something else: {'; '.join(different)}."
        return [warning("benchmark-not-comparable", message, "Compare with a run of the same workload.")]
    found = changes(before, after)
    if found and all(change.noise is None for change in found):
        message = f"Against run {name} no change can be told from noise: one of the two has a single repeat."
        return [warning("benchmark-noise-unknown", message, "benchmark_repeats: 3 or more, in both.")]
    make = error if gate else warning
    return [
        make(
            "benchmark-regression",
            f"{c.c} at once: {FIGURES[c.figure][0]} {c.before:.2f} -> {c.after:.2f} {FIGURES[c.figure][1]}, "
            f"{c.percent:+.1f} % (noise {c.noise:.1f} %) against run {name}.",
            "See what changed between the two in the report's configuration.",
        )
        for c in found
        if c.verdict == "worse" and abs(c.percent) > 100 * worse
    ]
