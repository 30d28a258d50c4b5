"""The report's tables as levels that can be judged and drawn beside our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gb10 import data


@dataclass(frozen=True)
class Row:
    """One level of the report. None where it published no figure. ``tpot_ms`` is what it prints as ITL."""

    c: int
    ttft_ms: float | None
    tpot_ms: float | None
    tps: float
    latency_s: float | None
    rps_printed: float | None

    @property
    def request_rate(self) -> float | None:
        """Requests a second of the whole cluster: a closed loop of ``c`` users."""
        return self.c / self.latency_s if self.latency_s else None

    @property
    def aggregate_tps(self) -> float | None:
        """Output tokens a second of the whole cluster."""
        rate = self.request_rate
        return rate * int(data.load("reference")["output_tokens"]) if rate else None


def profiles() -> list[str]:
    """Names of what the report measured."""
    return list(data.load("reference")["profiles"])


def table(profile: str) -> Mapping[int, Row]:
    """Its levels by concurrent users; empty for a profile the report has no table of."""
    rows = data.load("reference")["profiles"].get(profile) or []
    return {row[0]: Row(*row) for row in rows}
