"""The benchmark of the cluster that test_c_cluster leaves: tiny levels, the real client in the real image.

The endpoint has an API key, which nobody gives here.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from lab_run import API_KEY, identities, play, ranks
from support import ROOT

TINY = {
    "benchmark_levels": [1, 2],
    "benchmark_requests_per_user": 2,
    "benchmark_repeats": 1,
    "benchmark_output_tokens": 8,
}


@pytest.fixture(scope="module", autouse=True)
def _serving() -> None:
    if not all(rank and rank["State"]["Running"] for rank in ranks().values()):
        done = play("playbooks/serve.yml", key=API_KEY)
        assert done.returncode == 0, done.stdout[-3000:]


def benchmark(folder: Path, **changes: Any) -> Any:
    return play("playbooks/benchmark.yml", "-e", json.dumps(TINY | {"benchmark_dir": str(folder)} | changes))


def told(done: Any) -> str:
    """All of the output, its lines joined: Ansible breaks them."""
    return " ".join((done.stdout + done.stderr).split())


def test_the_endpoint_is_measured_and_the_run_kept_and_on_record(tmp_path: Path) -> None:
    before = identities()
    done = benchmark(tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    assert identities() == before
    (place,) = tmp_path.iterdir()
    run = json.loads((place / "run.json").read_text())
    assert [(level["c"], level["completed"], level["tokens"]) for level in run["levels"]] == [(1, 2, 16), (2, 4, 32)]
    raw = json.loads((place / "raw.json").read_text())
    assert raw["probe"]["chunks"][0] == "role"  # what vLLM begins with, and its client takes for a token
    for level in run["levels"]:
        (server,) = (repeat["server"] for repeat in level["repeats"])
        assert server["preemptions"] == 0
        assert level["ttft_ms"]["mean"] > 0
        assert level["latency_s"]["mean"] > level["ttft_ms"]["mean"] / 1000
    head = ranks()["spark-153"]
    assert run["deployment"]["image_digest"] == head["Image"]
    assert run["deployment"]["plan_hash"] == head["Config"]["Labels"]["gb10.plan-hash"]
    assert {"report.html", "levels.csv", "ttft.png", "memory-budget.svg"} <= {path.name for path in place.iterdir()}
    told_ = [done.stdout, done.stderr, *(path.read_text(errors="replace") for path in place.iterdir())]
    assert not [text for text in told_ if API_KEY in text]
    story = (ROOT / f"history/lab/runs/{place.name}.jsonl").read_text()
    assert sha256((place / "run.json").read_bytes()).hexdigest() in story


def test_targets_that_are_missed_fail_the_gate_and_nonsense_is_refused(tmp_path: Path) -> None:
    done = benchmark(tmp_path, benchmark_levels=[1], benchmark_gate=True, benchmark_slo_tps=100000)
    assert done.returncode != 0
    assert "error [slo-missed] 0 concurrent users meet TTFT" in told(done)
    assert len(list(tmp_path.iterdir())) == 1  # what was measured is kept
    done = benchmark(tmp_path, benchmark_slo_tps=-1)
    assert done.returncode != 0
    assert "error [slo-invalid] benchmark_slo_tps is -1 but must be a number" in told(done)
    assert len(list(tmp_path.iterdir())) == 1
