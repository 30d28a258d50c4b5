"""Runs of the benchmark made of times that are known, for tests of what is done with runs."""

from __future__ import annotations

from typing import Any

from gb10 import benchmark, benchmark_run, reference
from gb10.benchmark import Request
from gb10.benchmark_settings import Settings
from gb10.slo import Slo

SETTINGS = Settings(
    levels=[1, 2, 4, 8],
    output_tokens=128,
    requests_per_user=3,
    repeats=3,
    warmups=2,
    seed=1,
    command=["vllm", "bench", "serve"],
    python=["python3"],
    request_timeout=120,
    level_timeout=1800,
    timeout=14400,
    gate=False,
    gate_users=1,
    worse=0.05,
)
REPORT = Slo(1000, 20)
SERVER = {"acceptance": 0.61, "accepted_length": 4.05, "kv_use": 0.02, "preemptions": 0.0, "prefix_hits": 0.0}
SERVER |= {"ttft_ms": 205.0, "running": 8.0, "waiting": 0.0}
DEPLOYMENT = {
    "plan_hash": "9f2c" * 16,
    "deployed_by": "20261130T120000Z-0a1b2c3d",
    "image": "vllm-dsv41:engram-mem",
    "image_digest": "sha256:" + "5e1d" * 16,
    "ranks": 8,
    "kv_cache_tokens": "1460000",
    "options": {"tensor-parallel-size": "8", "gpu-memory-utilization": "0.8", "max-model-len": "300000"},
}


def like(row: reference.Row, factor: float, jitter: float, count: int) -> list[Request]:
    """Requests as slow as a row of the report, times ``factor``, spread evenly by the share ``jitter``."""
    assert row.ttft_ms
    assert row.tpot_ms
    made = []
    for n in range(count):
        scale = factor * (1 + jitter * (n - (count - 1) / 2) / count)
        ttft, tpot = scale * row.ttft_ms / 1000, scale * row.tpot_ms / 1000
        itls = (4 * tpot,) * 31 + (3 * tpot,)  # 128 tokens in chunks of four, the first with the first token
        made.append(Request(ttft, itls, ttft + sum(itls), 128))
    return made


def run(
    name: str = "20261130T160000Z-11111111",
    profile: str = "tp8-300k",
    factors: tuple[float, ...] = (0.99, 1.0, 1.01),
    failed: int = 0,
    settings: Settings = SETTINGS,
    slo: Slo = REPORT,
) -> dict[str, Any]:
    """A run like the report's; ``factors``: how slow each repeat is against it; ``failed`` requests at 8."""
    levels = []
    for c, row in reference.table(profile).items():
        repeats = []
        for factor in factors:
            count = c * settings.requests_per_user
            requests = like(row, factor, 0.1, count)
            wall = sum(request.latency for request in requests) / c
            if c == 8:
                requests += [Request(error="Internal Server Error")] * failed
            repeats.append((requests, wall))
        whole = benchmark.level([r for requests, _ in repeats for r in requests], sum(wall for _, wall in repeats))
        each = [benchmark.level(requests, wall) | {"server": SERVER} for requests, wall in repeats]
        levels.append({"c": c, **whole, "repeats": each})
    about = {"run": name, "time": "2026-11-30T16:00:00Z", "cluster": "gb10", "profile": profile, "head": "spark-153"}
    about |= {
        "model": "deepseek-v4.1-flash",
        "url": "http://192.168.1.153:8000",
        "commit": "c96dbc7" * 5,
        "dirty": False,
    }
    made = benchmark_run.document(levels, settings, slo, DEPLOYMENT, about)
    return made | {"findings": [finding.as_dict() for finding in benchmark_run.findings(made, settings)]}
