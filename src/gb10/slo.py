"""Service level objectives: what one request must get, and whether a level of concurrent users gives it.

Every figure of a request has a side that is bad: a long time, a low rate. ``statistic`` says which of a level's figures
is held against the target: its mean (as the report does), or the one that 50, 90 or 99 % of the requests reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gb10.findings import Finding, error
from gb10.settings import BadValue, choice, nullable, number, shown

STATISTICS = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True)
class Slo:
    """``ttft_ms``: at most so many; ``tps``: at least so many tokens a second of one request. None: no such target."""

    ttft_ms: float | None
    tps: float | None
    statistic: str = "mean"

    def text(self) -> str:
        """The targets in words."""
        targets = [f"TTFT <= {self.ttft_ms:g} ms"] if self.ttft_ms is not None else []
        targets += [f"TPS >= {self.tps:g} tok/s"] if self.tps is not None else []
        return f"{' and '.join(targets)} ({self.statistic})"

    def misses(self, figures: Mapping[str, float | None], failed: int = 0) -> list[str]:
        """Why a level does not meet the targets, in words; empty when it does.

        ``figures``: ``ttft_ms`` and ``tps`` by the statistic. A failed request fails the level, as does a figure that
        could not be measured.
        """
        found = [f"{failed} request{'s' if failed > 1 else ''} failed"] if failed else []
        if self.ttft_ms is not None:
            found += _miss("TTFT", "ms", figures.get("ttft_ms"), self.ttft_ms, at_most=True)
        if self.tps is not None:
            found += _miss("TPS", "tok/s", figures.get("tps"), self.tps, at_most=False)
        return found


def _miss(name: str, unit: str, value: float | None, target: float, *, at_most: bool) -> list[str]:
    if value is None:
        return [f"{name} was not measured"]
    if value <= target if at_most else value >= target:
        return []
    return [f"{name} {value:.2f} {unit}, {'at most' if at_most else 'at least'} {target:g} is wanted"]


# Bounds of what can be meant: a millisecond to ten minutes; a token in ten seconds to more than any engine gives.
PARSERS = {
    "benchmark_slo_ttft_ms": nullable(number(1, 600_000)),
    "benchmark_slo_tps": nullable(number(0.1, 100_000)),
    "benchmark_slo_statistic": choice(*STATISTICS),
}


def read(variables: Mapping[str, Any]) -> tuple[Slo | None, list[Finding]]:
    """The targets from variables by name; None with one finding a value that means nothing."""
    values, findings = [], []
    for name, parse in PARSERS.items():
        try:
            values.append(parse(variables.get(name)))
        except BadValue as bad:
            message = f"{name} is {shown(variables.get(name))} but must be {bad}."
            findings.append(error("slo-invalid", message, "Correct the variable."))
    if not findings and values[0] is None and values[1] is None:
        message = "Neither benchmark_slo_ttft_ms nor benchmark_slo_tps is set: there is nothing to judge by."
        findings.append(error("slo-invalid", message, "Set one of them."))
    return (None if findings else Slo(*values)), findings
