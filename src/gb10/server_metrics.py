"""The engine's own figures of a level, from its Prometheus text before and after it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

SAMPLE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$")


def totals(lines: Iterable[str]) -> dict[str, float]:
    """Each metric's value, its labels (engines) added up."""
    found: dict[str, float] = {}
    for line in lines:
        sample = SAMPLE.match(line.strip())
        if sample:
            try:
                found[sample[1]] = found.get(sample[1], 0.0) + float(sample[3])
            except ValueError:
                continue
    return found


def label(lines: Iterable[str], metric: str, name: str) -> str:
    """A label's value of a metric; empty where it is not told."""
    for line in lines:
        sample = SAMPLE.match(line.strip())
        if sample and sample[1] == metric:
            held = re.search(rf'\b{name}="([^"]*)"', sample[2] or "")
            return held[1] if held else ""
    return ""


def level(before: list[str], after: list[str], highest: Mapping[str, float]) -> dict[str, Any]:
    """The level's server side; None what the engine does not tell, or where there was nothing to divide by.

    acceptance: share of the drafted tokens that were accepted; accepted_length: tokens a step gave (1 without drafts);
    kv_use: highest share of the KV cache seen; preemptions; prefix_hits: share of the prompt tokens found in the cache;
    ttft_ms: mean, from arrival at the engine to its first token (warm-up requests too); running, waiting: most at once.
    """
    old, new = totals(before), totals(after)

    def delta(name: str) -> float | None:
        return new[name] - old.get(name, 0.0) if name in new else None

    def share(part: str, whole: str, scale: float = 1.0) -> float | None:
        a, b = delta(part), delta(whole)
        return scale * a / b if a is not None and b else None

    length = share("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_drafts_total")
    return {
        "acceptance": share("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"),
        "accepted_length": None if length is None else 1 + length,
        "kv_use": highest.get("vllm:kv_cache_usage_perc"),
        "preemptions": delta("vllm:num_preemptions_total"),
        "prefix_hits": share("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        "ttft_ms": share("vllm:time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_count", 1000),
        "running": highest.get("vllm:num_requests_running"),
        "waiting": highest.get("vllm:num_requests_waiting"),
    }
