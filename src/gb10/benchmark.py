"""What a benchmark's requests add up to. Pure arithmetic on per-request times; every definition in one place.

- TTFT: from sending the request to the first chunk with content in it. An empty first chunk that only names the
  role (every chat completion of vLLM begins with one) is no token.
- TPOT: (latency - TTFT) / (tokens - 1), of one request, per token.
- ITL: the time between two chunks of one request. With speculative decoding a chunk holds several tokens, so this is
  per chunk, not per token.
- latency: from sending the request to its last token.
- TPS: tokens / latency of one request, TTFT included, as the report prints it.
- aggregate: output tokens of all completed requests / wall time of the level.
- request rate: completed requests / wall time of the level.
- mean, P50, P90, P99. Px is the figure that x % of the requests reach or better: of a time the x-th percentile, of a
  rate the (100 - x)-th. Between two values it is interpolated.

A failed request counts as failed and gives no other figure. What has no values is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

PERCENTILES = (50, 90, 99)
# Figures of one request, and whether low is bad.
RATES = {"ttft_ms": False, "tpot_ms": False, "itl_ms": False, "tps": True, "latency_s": False}


@dataclass(frozen=True)
class Request:
    """One request to the client, in seconds. ``error`` is empty for a completed one, else nothing else counts."""

    ttft: float = 0.0
    itls: tuple[float, ...] = ()
    latency: float = 0.0
    tokens: int = 0
    error: str = ""

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None where there is only one."""
        return (self.latency - self.ttft) / (self.tokens - 1) if self.tokens > 1 else None


def percentile(values: Sequence[float], x: float, *, rate: bool = False) -> float | None:
    """The figure that ``x`` % of the values reach or better; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    at = (len(ordered) - 1) * ((100 - x) if rate else x) / 100
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def statistics(values: Sequence[float], *, rate: bool = False) -> dict[str, float | None]:
    """mean, p50, p90, p99."""
    found: dict[str, float | None] = {"mean": fmean(values) if values else None}
    return found | {f"p{x}": percentile(values, x, rate=rate) for x in PERCENTILES}


def level(requests: Sequence[Request], wall: float) -> dict[str, Any]:
    """One level's figures. ``wall``: seconds from the first request sent to the last one ended.

    Returns requests, completed, failed, errors (texts with their number), tokens, chunks, wall_s, aggregate_tps,
    request_rate, and by figure its statistics.
    """
    good = [request for request in requests if not request.error]
    errors: dict[str, int] = {}
    for request in requests:
        if request.error:
            errors[request.error] = errors.get(request.error, 0) + 1
    tokens = sum(request.tokens for request in good)
    measured = bool(good) and wall > 0
    values = {
        "ttft_ms": [1000 * request.ttft for request in good],
        "tpot_ms": [1000 * request.tpot for request in good if request.tpot is not None],
        "itl_ms": [1000 * itl for request in good for itl in request.itls],
        "tps": [request.tokens / request.latency for request in good if request.latency > 0],
        "latency_s": [request.latency for request in good],
    }
    return {
        "requests": len(requests),
        "completed": len(good),
        "failed": len(requests) - len(good),
        "errors": errors,
        "tokens": tokens,
        "chunks": sum(len(request.itls) + 1 for request in good),
        "wall_s": wall,
        "aggregate_tps": tokens / wall if measured else None,
        "request_rate": len(good) / wall if measured else None,
    } | {name: statistics(values[name], rate=rate) for name, rate in RATES.items()}
