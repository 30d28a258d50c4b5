"""One run of the benchmark as a document: what was measured of what, judged. JSON in and out, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gb10 import benchmark, benchmark_client, deploy, server_metrics
from gb10.benchmark_client import Unmeasured
from gb10.benchmark_settings import Settings
from gb10.capacity import Capacity, capacity, recommendation
from gb10.findings import Finding, error, warning
from gb10.slo import Slo

Document = dict[str, Any]
SCHEMA = 1
CACHED = 0.05
"""Share of the prompt tokens in the prefix cache above which TTFT says less. Short prompts fill no block: none."""


# Of the head's command line, what decides how fast it is.
OPTIONS = (
    "--tensor-parallel-size",
    "--gpu-memory-utilization",
    "--kv-cache-memory-bytes",
    "--max-model-len",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--block-size",
    "--speculative-config",
    "--compilation-config",
)


def deployment(plan: Mapping[str, Any], rank: Mapping[str, Any], found: Mapping[str, Any]) -> Document:
    """What was measured: of the head's container (``rank``, as gb10_rank reads it), its plan and its /metrics."""
    labels, argv = rank.get("labels") or {}, list(plan["ranks"][0]["argv"])
    told = found["levels"][0]["after"] if found["levels"] else []
    known = {option.lstrip("-"): argv[argv.index(option) + 1] for option in OPTIONS if option in argv[:-1]}
    return {
        "plan_hash": str(labels.get(deploy.LABEL_PLAN, "")),
        "deployed_by": str(labels.get(deploy.LABEL_RUN, "")),
        "image": str(labels.get(deploy.LABEL_IMAGE, "")),
        "image_digest": str(rank.get("image_id", "")),
        "ranks": len(plan["ranks"]),
        "kv_cache_tokens": server_metrics.label(told, "vllm:cache_config_info", "kv_cache_size_tokens"),
        "options": known,
    }


def levels(found: Mapping[str, Any], output_tokens: int) -> list[Document]:
    """Every level: ``c``, all its requests together, ``repeats`` (each alone) and ``server``. Raises Unmeasured.

    ``found``: what the worker brought back, without a fault.
    """
    skipped = benchmark_client.leading(found["probe"])
    by_level: dict[int, list[tuple[list[benchmark.Request], float, Document]]] = {}
    for one in found["levels"]:
        if one["error"]:
            raise Unmeasured(f"{one['concurrency']} at once, repeat {one['repeat']}: {one['error']}")
        requests = benchmark_client.requests_of(one["raw"], skipped, output_tokens)
        server = server_metrics.level(one["before"], one["after"], one["highest"])
        by_level.setdefault(one["concurrency"], []).append((requests, one["raw"]["duration"], server))
    made = []
    for c, repeats in sorted(by_level.items()):
        everything = [request for requests, _, _ in repeats for request in requests]
        whole = benchmark.level(everything, sum(wall for _, wall, _ in repeats))
        if not whole["completed"]:
            why = ", ".join(f"{text} ({number})" for text, number in whole["errors"].items())
            raise Unmeasured(f"{c} at once: none of {whole['requests']} requests completed: {why}")
        each = [benchmark.level(requests, wall) | {"server": server} for requests, wall, server in repeats]
        made.append({"c": c, **whole, "repeats": each})
    if not made:
        raise Unmeasured("no level was measured")
    return made


def judged(measured: Sequence[Document], slo: Slo) -> Capacity:
    """The levels against the targets."""
    return capacity(
        {
            level["c"]: ({name: level[name][slo.statistic] for name in ("ttft_ms", "tps")}, level["failed"])
            for level in measured
        },
        slo,
    )


def document(
    measured: list[Document], settings: Settings, slo: Slo, deployment: Mapping[str, Any], about: Mapping[str, Any]
) -> Document:
    """The run as it is kept. ``about``: run, time, cluster, profile, head, model, commit and so on."""
    found = judged(measured, slo)
    return {
        "schema": SCHEMA,
        **about,
        "deployment": dict(deployment),
        "workload": settings.workload(),
        "client": {"command": settings.command, "warmups": settings.warmups, "repeats": settings.repeats},
        "slo": {"ttft_ms": slo.ttft_ms, "tps": slo.tps, "statistic": slo.statistic},
        "levels": measured,
        "capacity": {
            "max_c": found.max_c,
            "misses": {str(level.c): list(level.misses) for level in found.levels},
            "recommendation": recommendation(found, slo),
        },
    }


def slo_of(run: Mapping[str, Any]) -> Slo:
    """The targets a run was judged by."""
    return Slo(**run["slo"])


def findings(run: Mapping[str, Any], settings: Settings) -> list[Finding]:
    """What an operator must know of a run that was measured. With the gate too few users are an error."""
    found = []
    for level in run["levels"]:
        if level["failed"]:
            why = ", ".join(f"{text} ({number})" for text, number in level["errors"].items())
            message = f"{level['c']} at once: {level['failed']} of {level['requests']} requests failed: {why}."
            found.append(warning("benchmark-failures", message, "Figures are of the others; see the head's log."))
        hits = max((repeat["server"]["prefix_hits"] or 0 for repeat in level["repeats"]), default=0)
        if hits > CACHED:
            message = f"{level['c']} at once: {hits:.0%} of the prompt tokens came from the prefix cache."
            found.append(
                warning("benchmark-cached", message, "TTFT is that of cached prompts; lower benchmark_warmups.")
            )
        lost = sum(repeat["server"]["preemptions"] or 0 for repeat in level["repeats"])
        if lost:
            message = f"{level['c']} at once: {lost:.0f} requests were preempted: the KV cache was full."
            found.append(warning("benchmark-preempted", message, "Fewer users, or a larger KV cache."))
    most, wanted = run["capacity"]["max_c"], settings.gate_users
    if most < wanted:
        make = error if settings.gate else warning
        message = f"{most} concurrent users meet {slo_of(run).text()}, {wanted} are wanted (benchmark_gate_users)."
        found.append(make("slo-missed", message, "Serve fewer, or see in the report what limits it."))
    return found
