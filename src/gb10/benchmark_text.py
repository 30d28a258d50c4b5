"""A run of the benchmark as a terminal shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gb10 import benchmark_compare
from gb10.benchmark_settings import Settings
from gb10.findings import Finding, line
from gb10.reference import table as reference
from gb10.report import table


def outset(settings: Settings, head: str) -> str:
    """What begins now, and where to see how far it is."""
    requests, tokens = settings.requests * settings.repeats, settings.output_tokens
    levels = f"{settings.repeats} times {', '.join(map(str, settings.levels))} users"
    return f"{requests} requests of {tokens} tokens ({levels}). On {head}: docker logs -f gb10-benchmark"


def text(run: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """Figures by level beside the report's, the recommendation, what changed, warnings."""
    rows, known = [], reference(run["profile"])
    for level in run["levels"]:
        reported = known.get(level["c"])
        shown = [number(level[name]["mean"], 2) for name in ("ttft_ms", "tpot_ms", "itl_ms", "tps", "latency_s")]
        rates = [number(level["aggregate_tps"], 1), number(level["request_rate"], 2)]
        failed = f"{level['failed']}/{level['requests']}" if level["failed"] else "0"
        rows.append((level["c"], *shown, *rates, failed, number(reported.tps if reported else None, 2)))
    header = ("users", "TTFT ms", "TPOT ms", "ITL ms", "TPS", "latency s", "tok/s", "req/s", "failed", "report's TPS")
    parts = [f"Benchmark of {run['profile']}, run {run['run']}", table(header, rows)]
    parts.append(f"Max C {run['capacity']['max_c']}. {run['capacity']['recommendation']}")
    if before and not benchmark_compare.unlike(before, run):
        parts.append(changes_text(before, run))
    warnings = [line(Finding(**finding)) for finding in run["findings"] if finding["level"] == "warning"]
    return "\n\n".join([*parts, *(["\n".join(warnings)] if warnings else [])])


def changes_text(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Two runs side by side."""
    rows = []
    for c in benchmark_compare.changes(before, after):
        name, unit, _ = benchmark_compare.FIGURES[c.figure]
        noise = "?" if c.noise is None else f"{c.noise:.1f}"
        rows.append((c.c, f"{name} {unit}", f"{c.before:.2f}", f"{c.after:.2f}", f"{c.percent:+.1f}", noise, c.verdict))
    header = ("users", "figure", before["run"][-24:], after["run"][-24:], "change %", "noise %", "verdict")
    return table(header, rows)


def number(value: float | None, digits: int) -> str:
    """The value, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
