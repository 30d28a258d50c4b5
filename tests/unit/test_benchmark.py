"""Definitions of the benchmark's figures, and the client's output made into requests: case 29 and whatever fails."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT

from gb10 import benchmark, benchmark_client, prompts, server_metrics
from gb10.benchmark import Request, percentile, statistics
from gb10.benchmark_client import Unmeasured, leading, requests_of, result_of
from gb10.benchmark_worker import MARK

# What vLLM 0.32's client wrote of tests/unit/stand_in.py: case 29's answers, and every fault in turn.
RAW = json.loads((ROOT / "tests/data/vllm-bench.json").read_text())


def whole(requests: list[Request], wall: float = 10.0) -> dict[str, Any]:
    return benchmark.level(requests, wall)


# --- case 29 ---------------------------------------------------------------------------------------------------------

# An empty role chunk at 0.1 s, then chunks of five tokens at 0.5, 0.6 and 0.7 s, usage 15: as the client tells it.
CASE = {"ttfts": [0.1], "itls": [[0.4, 0.1, 0.1]], "latencies": [0.7], "output_lens": [15], "errors": [""]}


def test_case_29() -> None:
    (request,) = requests_of(CASE, leading({"chunks": ["role", "content", "content", "content"]}), 15)
    assert request.ttft == pytest.approx(0.5)
    assert request.tokens == 15
    assert request.tpot == pytest.approx(0.2 / 14)  # 14.3 ms
    assert request.itls == pytest.approx((0.1, 0.1))
    found = whole([request], 0.7)
    assert found["ttft_ms"]["mean"] == pytest.approx(500)
    assert found["tpot_ms"]["mean"] == pytest.approx(14.3, abs=0.05)
    assert found["itl_ms"]["mean"] == pytest.approx(100)
    assert found["tps"]["mean"] == pytest.approx(15 / 0.7)
    assert found["chunks"] == 3


def test_case_29_as_the_real_client_measured_it() -> None:
    requests = requests_of(RAW["good"], 1, 15)
    found = whole(requests, RAW["good"]["duration"])
    assert found["failed"] == 0
    assert found["ttft_ms"]["p50"] == pytest.approx(500, rel=0.05)
    assert found["tpot_ms"]["p50"] == pytest.approx(14.3, rel=0.05)
    assert found["itl_ms"]["p50"] == pytest.approx(100, rel=0.05)


def test_without_a_role_chunk_the_first_chunk_is_the_first_token() -> None:
    (request,) = requests_of(CASE, leading({"chunks": ["content", "content"]}), 15)
    assert request.ttft == pytest.approx(0.1)
    assert len(request.itls) == 3


# --- failures --------------------------------------------------------------------------------------------------------


def test_every_fault_is_counted_and_gives_no_figure() -> None:
    """404, 500, guessed tokens, cut off, closed, empty, no stream: one answer of nine is right."""
    raw = RAW["faults"]
    requests = requests_of(raw, 1, 15)
    found = whole(requests, raw["duration"])
    good = [request for request in requests if not request.error]
    assert (found["requests"], found["completed"], found["failed"]) == (9, len(good), 9 - len(good))
    assert len(good) == 1
    assert found == whole(good, raw["duration"]) | {key: found[key] for key in ("requests", "failed", "errors")}
    assert sum(found["errors"].values()) == found["failed"]
    assert {"Not Found", "Internal Server Error", "it ended with 28 of 15 tokens"} <= set(found["errors"])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"errors": ["Not Found"]}, "Not Found"),
        ({"ttfts": [0.0], "latencies": [0.0], "output_lens": [0]}, "refused it without a reason"),
        ({"output_lens": [14]}, "14 of 15 tokens"),
        ({"output_lens": [16]}, "16 of 15 tokens"),
        ({"itls": [[]]}, "no chunk had content"),
    ],
)
def test_failed_requests(change: dict[str, Any], error: str) -> None:
    (request,) = requests_of(CASE | change, 1, 15)
    assert error in request.error
    assert (request.ttft, request.tokens, request.itls) == (0.0, 0, ())


@pytest.mark.parametrize("requests", [[], [Request(error="x")], [Request(error="x")] * 5])
def test_no_success_gives_no_figure_and_no_division_by_zero(requests: list[Request]) -> None:
    found = whole(requests)
    assert found["completed"] == 0
    assert found["aggregate_tps"] is None
    assert found["request_rate"] is None
    assert all(value is None for name in benchmark.RATES for value in found[name].values())
    assert whole([Request(0.1, (), 0.1, 1)], 0.0)["aggregate_tps"] is None


def test_one_token_has_no_tpot() -> None:
    found = whole([Request(0.1, (), 0.1, 1)])
    assert found["tpot_ms"]["mean"] is None
    assert found["itl_ms"]["p99"] is None
    assert found["tps"]["mean"] == pytest.approx(10)


# --- statistics ------------------------------------------------------------------------------------------------------


def test_the_bad_side_of_a_rate_is_the_low_one() -> None:
    values = [float(n) for n in range(1, 102)]  # 1 to 101
    assert statistics(values) == {"mean": 51, "p50": 51, "p90": 91, "p99": 100}
    assert statistics(values, rate=True) == {"mean": 51, "p50": 51, "p90": 11, "p99": 2}
    assert percentile([1.0, 2.0], 50) == 1.5
    assert percentile([], 50) is None


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=50))
def test_more_of_the_requests_reach_less(values: list[float]) -> None:
    up, down = statistics(values), statistics(values, rate=True)
    assert min(values) <= up["p50"] <= up["p90"] <= up["p99"] <= max(values)  # type: ignore[operator]
    assert max(values) >= down["p50"] >= down["p90"] >= down["p99"] >= min(values)  # type: ignore[operator]


@given(
    st.lists(
        st.builds(
            Request,
            ttft=st.floats(0.01, 10),
            itls=st.lists(st.floats(0.001, 1), max_size=20).map(tuple),
            latency=st.floats(10.1, 60),
            tokens=st.integers(1, 500),
            error=st.sampled_from(["", "x", "y"]),
        ),
        max_size=20,
    ),
    st.just(0.0) | st.floats(1e-6, 100),  # a clock of microseconds, or nothing measured
)
def test_counts_add_up_whatever_comes(requests: list[Request], wall: float) -> None:
    found = whole(requests, wall)
    assert found["completed"] + found["failed"] == found["requests"] == len(requests)
    assert sum(found["errors"].values()) == found["failed"]
    assert (found["aggregate_tps"] is None) == (not found["completed"] or wall == 0)
    if found["aggregate_tps"] is not None:
        assert found["aggregate_tps"] * wall == pytest.approx(found["tokens"])


# --- what the worker brings back -------------------------------------------------------------------------------------


def sent(document: object) -> str:
    return MARK + base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()


def test_the_result_is_found_among_what_a_container_says() -> None:
    assert result_of(f"WARNING something\n{sent({'a': 1})}\n") == {"a": 1}


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", "it said nothing"),
        ("vllm: not found\n", "gave no result: vllm: not found"),
        (sent({"a": 1})[:-9], "did not arrive whole"),
        (MARK + "%%%", "did not arrive whole"),
    ],
)
def test_no_result_is_said(output: str, words: str) -> None:
    with pytest.raises(Unmeasured, match=words):
        result_of(output)


MODEL = "deepseek-v4.1-flash"
LISTED = {"status": 200, "body": {"data": [{"id": MODEL}]}}
GOOD = {"chunks": ["role", "content"], "tokens": 15, "done": True, "error": ""}


@pytest.mark.parametrize(
    ("models", "probe", "words"),
    [
        (LISTED, GOOD, ""),
        ({"status": 0, "body": "Connection refused"}, {}, "nothing answers at http://h:8000: Connection refused"),
        ({"status": 404, "body": ""}, {}, "/v1/models answered HTTP 404"),
        ({"status": 401, "body": ""}, {}, "asks for another API key"),
        ({"status": 200, "body": {"data": [{"id": "/data/m"}]}}, {}, f"serves /data/m, not {MODEL}"),  # case 27
        ({"status": 200, "body": "<html>"}, {}, "answered no list"),
        (LISTED, GOOD | {"error": "timed out"}, "one streamed answer failed: timed out"),
        (LISTED, GOOD | {"chunks": ["role"]}, "no content in it"),
        (LISTED, GOOD | {"chunks": []}, "a streamed answer of 0 chunks"),
        (LISTED, GOOD | {"done": False}, "stopped before its end"),
        (LISTED, GOOD | {"tokens": None}, "told no usage"),
    ],
)
def test_an_endpoint_that_cannot_be_measured_is_said(models: Any, probe: Any, words: str) -> None:
    fault = benchmark_client.fault({"models": models, "probe": probe}, MODEL, "http://h:8000")
    assert words in fault
    assert bool(fault) == bool(words)


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_prompts_are_those_of_their_seed() -> None:
    assert prompts.prompt_set(1) == prompts.prompt_set(1)
    assert prompts.digest(prompts.prompt_set(1)) != prompts.digest(prompts.prompt_set(2))
    assert len(prompts.prompt_set(1)) == 64
    assert len(set(prompts.prompt_set(1))) > 32
    # Runs of different releases are compared by it: a new value is a new workload.
    assert prompts.digest(prompts.prompt_set(1)).startswith("1e0576e25f180f31")


# --- the engine's own figures ----------------------------------------------------------------------------------------

ENGINE = """vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} %d
vllm:num_preemptions_total{engine="0"} %d
vllm:prefix_cache_queries_total{engine="0"} %d
vllm:prefix_cache_hits_total{engine="0"} 0.0
vllm:time_to_first_token_seconds_sum{engine="0"} 4.0
vllm:time_to_first_token_seconds_count{engine="0"} %d
vllm:cache_config_info{block_size="128",kv_cache_size_tokens="1460000"} 1.0"""


def test_the_engines_figures_are_of_the_level_alone() -> None:
    before, after = (
        (ENGINE % (100, 500, 200, 1, 50, 8)).splitlines(),
        (ENGINE % (200, 1000, 505, 3, 250, 18)).splitlines(),
    )
    after[6] = after[6].replace("4.0", "6.5")
    found = server_metrics.level(before, after, {"vllm:kv_cache_usage_perc": 0.25})
    assert found["acceptance"] == pytest.approx(305 / 500)
    assert found["accepted_length"] == pytest.approx(1 + 305 / 100)
    assert (found["preemptions"], found["prefix_hits"], found["kv_use"]) == (2, 0, 0.25)
    assert found["ttft_ms"] == pytest.approx(250)
    assert server_metrics.label(after, "vllm:cache_config_info", "kv_cache_size_tokens") == "1460000"


def test_what_an_engine_does_not_tell_is_none() -> None:
    assert set(server_metrics.level([], [], {}).values()) == {None}
    assert server_metrics.level([], ["nonsense", "x{a=b 1", "y NaNish"], {})["acceptance"] is None
    same = (ENGINE % (1, 1, 1, 1, 1, 1)).splitlines()
    assert server_metrics.level(same, same, {})["acceptance"] is None
