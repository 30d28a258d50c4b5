"""The memory plan: the report's tables, the published boots, every finding, and what must hold for every input."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gb10.accounting import ENGINE, REPORTED
from gb10.findings import errors, line
from gb10.memory import gmu_ceiling, gmu_floor, gmu_recommended, plan_memory, with_auto, with_gmu
from gb10.memory_findings import memory_findings
from gb10.memory_input import MemoryInput, input_findings
from gb10.memory_table import memory_table
from gb10.model_config import Plain, builtin
from gb10.node_memory import measure

NCCL = {"nccl_max_nchannels": 8, "nccl_buffsize": 1048576}
TP8_300K = MemoryInput(8, 0.80, 300000, engram="memory", **NCCL)
TP8_1M = MemoryInput(8, 0.75, 1048576, engram="disk", flashinfer_autotune=True, **NCCL)
TP4_300K = MemoryInput(4, 0.80, 300000, engram="disk", flashinfer_autotune=True, **NCCL)
PROFILES = {"tp8-300k": TP8_300K, "tp8-1m": TP8_1M, "tp4-300k": TP4_300K}
LLAMA = Plain("LlamaForCausalLM", 1024, heads=8, layers=2, kv_heads=8, head_size=32, dtype_bytes=2)
LAB = MemoryInput(
    8,
    0.5,
    1024,
    node_memory_gib=24,
    kv_cache_memory_bytes=16777216,
    accelerator="cpu",
    model=LLAMA,
    weight_bytes=10 << 20,
)


def findings(i):
    assert input_findings(i) == []
    return memory_findings(i, plan_memory(i))


def codes(i):
    return [f.code for f in findings(i)]


def gib(accounting):
    return {c.name: round(c.gib, 2) for c in accounting.components}


# --- the report's tables ----------------------------------------------------------------------------------------------


def test_table_6_1():
    a = plan_memory(TP8_300K).reported
    assert gib(a) == {"weights": 49.55, "engram": 23.6, "nccl": 11.0, "cuda-graphs": 1.5}
    assert (round(a.budget_gib, 4), round(a.used_gib, 4), round(a.left_gib, 4)) == (96.8, 85.65, 11.15)
    assert (a.kv_published_gib, round(a.unexplained_gib, 4), round(a.kv_gib, 4)) == (8.7, 2.45, 8.7)
    assert round(a.requests, 1) == 6.2


def test_table_6_2():
    plan = plan_memory(TP8_1M)
    a = plan.reported
    assert gib(a) == {"weights": 38.0, "nccl": 11.0, "autotune-peak": 10.0, "cuda-graphs": 1.5}
    assert (a.budget_gib, a.used_gib, a.left_gib, a.kv_gib) == (90.75, 60.5, 30.25, 30.0)
    assert round(plan.request_gib, 2) == 3.66
    assert math.floor(a.kv_gib - plan.request_gib) == 26


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_pass_their_own_plan(name):
    assert errors(findings(PROFILES[name])) == []


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("tp8-300k", ["requests-below-max-num-seqs", "kv-accountings-disagree"]),
        ("tp8-1m", ["requests-below-max-num-seqs", "weights-disagree", "kv-accountings-disagree"]),
        ("tp4-300k", ["requests-below-max-num-seqs"]),
    ],
)
def test_profiles_are_warned_of_what_is_known(name, warned):
    assert codes(PROFILES[name]) == warned


def test_tp8_300k_says_how_many_requests_fit():
    text = next(f.message for f in findings(TP8_300K) if f.code == "requests-below-max-num-seqs")
    assert "max_num_seqs 8" in text
    assert "8.70 GiB hold 6.2 (reported)" in text
    assert "1.4056 GiB" in text


# --- the engine accounting reproduces published boots -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("i", "printed", "within"),
    [
        (TP4_300K, 1032963, 0.0),  # 4 Sparks, boot 9
        (replace(TP8_300K, nccl_ll128_buffsize=262144), 3193029, 0.0002),  # 8 Sparks, Engram in memory
        (MemoryInput(8, 0.77, 300000, engram="disk", flashinfer_autotune=True), 6819463, 0.0002),  # 8 Sparks, disk
        (MemoryInput(8, 0.77, 1048576, engram="disk", flashinfer_autotune=True), 8687243, 0.001),  # the same, 1M
        (replace(TP8_1M, nccl_max_nchannels=None), 8128103, 0.02),  # the same at 0.75: boots vary by 0.5 GiB
    ],
)
def test_engine_pool_of_published_boots(i, printed, within):
    assert abs(plan_memory(i).engine.tokens / printed - 1) <= within


def test_engine_headroom_of_a_published_site():
    """Eight Sparks at 0.80 with 8 channels and small buffers had 13.86 to 15.78 GiB left."""
    left = plan_memory(replace(TP8_300K, nccl_ll128_buffsize=262144)).engine.headroom_gib
    assert left == pytest.approx(13.86, abs=0.05)


def test_engine_refuses_what_a_published_site_refused():
    """Default NCCL at TP8: 0.80 was refused, 0.75 served."""
    i = MemoryInput(8, 0.80, 300000, engram="disk", flashinfer_autotune=True)
    assert plan_memory(i).engine.headroom_gib < 1
    assert 0.72 < gmu_ceiling(i) < 0.75 < gmu_ceiling(replace(i, memory_reserve_gib=6))


def test_weights_of_other_degrees_are_derived_from_the_two_measured():
    by_degree = {tp: plan_memory(replace(TP8_1M, tensor_parallel=tp)).engine.components[0] for tp in (2, 4, 8, 12)}
    assert [c.kind for c in by_degree.values()] == ["derived", "measured", "measured", "derived"]
    assert [round(c.gib, 2) for c in by_degree.values()] == [145.64, 81.58, 49.55, 38.87]


def test_vllm_lines():
    assert plan_memory(TP4_300K).engine.prints("GPU") == [
        "Available KV cache memory: 4.84 GiB",
        "GPU KV cache size: 1,032,963 tokens, Maximum concurrency for 300,000 tokens per request: 3.44x",
    ]
    small = plan_memory(replace(TP4_300K, max_model_len=1048576)).engine.prints("GPU")[1]
    assert small.startswith(
        "To serve at least one request with the model's max seq len (1048576), (3.66 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (1.66 GiB). Based on the available memory, the estimated maximum "
        "model length is "
    )
    assert plan_memory(with_gmu(TP8_300K, 0.6)).engine.prints("GPU")[1] == "No available memory for the cache blocks."
    pinned = plan_memory(replace(TP8_300K, kv_cache_memory_bytes=8 << 30)).engine.prints("GPU")[0]
    assert pinned == "... reserved 8.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes config ..."


# --- the lab's model --------------------------------------------------------------------------------------------------


def test_lab_plans_exactly():
    plan = plan_memory(LAB)
    for a in plan.accountings:
        assert (a.kv_blocks, a.tokens, a.requests) == (512, 65536, 64)
    assert plan.engine.prints("CPU") == [  # a CPU worker says nothing of available memory
        "CPU KV cache size: 65,536 tokens, Maximum concurrency for 1,024 tokens per request: 64.00x"
    ]
    assert findings(LAB) == []
    assert plan.nccl_pinned_gib == plan.dev_shm_bytes == 0
    assert plan.gmu_recommended is None
    assert plan.start is None


def test_lab_pool_too_small():
    i = replace(LAB, kv_cache_memory_bytes=8 * 32768)
    (found,) = findings(i)
    assert (found.level, found.code) == ("error", "kv-pool-too-small")
    assert "the largest that fits is 896" in found.message
    assert "raise kv_cache_memory_bytes" in found.remedy


# --- findings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("i", "level", "code", "words"),
    [
        (replace(TP8_300K, nccl_max_nchannels=None), "error", "nccl-channels", "not set (64 channels by default)"),
        (replace(TP8_300K, nccl_max_nchannels=64), "error", "nccl-channels", "is 64 at TP8: 37 GiB"),
        (replace(TP8_1M, nccl_max_nchannels=None), "error", "nccl-channels", "37 GiB"),
        (replace(TP8_300K, nccl_max_nchannels=32), "error", "kv-pool-empty", "99.24 of the 96.80 GiB"),
        (replace(TP8_300K, flashinfer_autotune=True), "error", "kv-pool-empty", "98.10 of the 96.80 GiB"),
        (with_gmu(TP8_300K, 0.735), "error", "kv-pool-too-small", "needs 1.41 GiB of KV cache, 0.83 GiB are left"),
        (replace(with_gmu(TP8_300K, 0.75), max_model_len=1048576), "error", "kv-pool-too-small", "fits is 712,320"),
        (replace(TP4_300K, engram="memory"), "error", "kv-pool-empty", "are used before it"),
        (replace(TP4_300K, max_model_len=1048576), "warning", "kv-pool-too-small-engine", "reported sum leaves 4.84"),
        (with_gmu(TP8_1M, 0.535), "warning", "kv-pool-too-small-engine", "fits is"),
        (with_gmu(TP8_300K, 0.93), "error", "host-headroom", "8.5 GiB of 121.00 are left"),
        (with_gmu(TP8_300K, 0.84), "warning", "host-headroom-engine", "8.3 GiB of 121.69 are left"),
        (replace(TP8_300K, memory_reserve_gib=40), "error", "gmu-no-room", "(from 0.7398)"),
        (replace(TP8_300K, memory_reserve_gib=30), "warning", "gmu-no-room-engine", "(from 0.6887)"),
        (replace(TP8_300K, max_model_len=2000000), "error", "max-model-len-above-model", "own 1,048,576"),
        (replace(TP8_300K, block_size=64), "error", "block-size", "block_size is 64"),
        (replace(TP8_300K, nccl_buffsize=16777216), "warning", "nccl-buffsize", "16777216 pins 3.38 GiB a rank"),
        (replace(TP8_300K, kv_cache_memory_bytes=8 << 30), "warning", "kv-cache-memory-bytes", "skip its own"),
        (replace(TP8_1M, tensor_parallel=16), "error", "engram-split", "16 ranks"),
        (replace(TP8_1M, tensor_parallel=3), "error", "heads-split", "64 attention heads, which 3 ranks"),
        (replace(LAB, model=replace(LLAMA, heads=12)), "error", "heads-split", "12 attention heads and 8 key-"),
        (replace(LAB, model=replace(LLAMA, kv_heads=6), tensor_parallel=4), "error", "heads-split", "6 key-value"),
        (replace(with_gmu(TP8_300K, 0.95), nccl_communicators=8), "warning", "startup-memory-estimate", "are expected"),
        (TP8_1M, "warning", "weights-disagree", "38.00 GiB a rank as reported and 49.55 as measured"),
        (TP8_300K, "warning", "kv-accountings-disagree", "8.70 GiB as reported, 14.96"),
    ],
)  # fmt: skip
def test_findings(i, level, code, words):
    found = {f.code: f for f in findings(i)}
    assert code in found
    assert found[code].level == level
    assert words in found[code].message
    assert found[code].remedy
    assert "\n" not in line(found[code])


@pytest.mark.parametrize(
    ("change", "code", "remedy"),
    [
        ({"kv_cache_memory_bytes": 1}, "kv-pool-empty", "Raise kv_cache_memory_bytes to 1509442560 or more."),
        ({"kv_cache_memory_bytes": 1 << 30}, "kv-pool-too-small", "or raise kv_cache_memory_bytes to 1509442560 or"),
        ({"kv_cache_memory_bytes": 1 << 40}, "host-headroom", "Use at most 28293097062."),
        ({"kv_cache_memory_bytes": 8 << 30}, "requests-below-max-num-seqs", "kv_cache_memory_bytes 12074572800 would"),
        (
            {"max_num_batched_tokens": 1 << 20, "memory_reserve_gib": 25.0},
            "kv-pool-too-small",
            "at most 262016: no GMU",
        ),
        ({"node_memory_gib": 64.0}, "gmu-no-room", "Put Engram on disk, or use more nodes."),
        ({"node_memory_gib": 64.0, "engram": "disk"}, "gmu-no-room-engine", "Use more nodes."),
        (
            {"memory_reserve_gib": 25.0, "max_num_batched_tokens": 1 << 20},
            "gmu-no-room",
            "Shorten max_model_len, put Engram on disk, lower memory_reserve_gib, or use more nodes.",
        ),
    ],
)
def test_remedies_are_numbers_and_ways_that_help(change, code, remedy):
    i = replace(TP8_300K, **change)
    found = {f.code: f.remedy for f in findings(i)}
    assert remedy in found[code]
    numbers = [word.strip(".,") for word in remedy.split() if word.strip(".,").isdigit()]
    for most in map(int, numbers if "kv_cache_memory_bytes" in change else ()):
        assert code not in codes(replace(i, kv_cache_memory_bytes=most))
        step = 1 << 20 if code == "host-headroom" else -(1 << 20)
        assert code in codes(replace(i, kv_cache_memory_bytes=most + step)) or "kv-pool" in code


@pytest.mark.parametrize(
    "change",
    [
        {"max_num_batched_tokens": 16384},
        {"num_speculative_tokens": 0},
        {"kv_layout": "stock"},
        {"max_num_seqs": 4},
        {"max_model_len": 200000},
        {"kv_cache_memory_bytes": 8 << 30},
    ],
)
def test_a_published_pool_is_that_of_its_own_settings_only(change):
    plan = plan_memory(replace(TP8_300K, **change))
    assert plan.reported.kv_published_gib is None
    assert {d.what for d in plan.disagreements} & {"kv-sum", "kv-tokens"} == set()
    assert "KV pool as published" not in table_of(replace(TP8_300K, **change))


def test_errors_come_first():
    levels = [f.level for f in findings(with_gmu(TP8_300K, 0.93))]
    assert levels == sorted(levels)
    assert "warning" in levels


def test_too_many_channels_are_named_alone():
    assert [f.code for f in errors(findings(replace(TP8_300K, nccl_max_nchannels=None)))] == ["nccl-channels"]


@pytest.mark.parametrize("channels", [None, 64])
def test_four_ranks_may_leave_channels_alone(channels):
    assert "nccl-channels" not in codes(replace(TP4_300K, nccl_max_nchannels=channels))


def test_more_kv_heads_than_ranks_are_needed_by_nobody():
    """Four ranks and two key-value heads: each rank has one, twice."""
    assert codes(replace(LAB, model=replace(LLAMA, heads=8, kv_heads=2), tensor_parallel=4)) == []


def test_a_measured_node_takes_the_place_of_the_estimate():
    """Case 10: 100 of 121.69 GiB available, GMU 0.87."""
    i = with_gmu(replace(TP8_300K, memory_reserve_gib=5), 0.93)
    assert "startup-memory-estimate" in codes(replace(i, nccl_communicators=8))
    plan = plan_memory(i)
    facts = {"memory": {"total_kib": 127600812, "available_kib": 100 << 20}}
    node = measure(plan.start, "spark-161", facts)
    found = {(f.code, f.node) for f in memory_findings(i, plan, [node])}
    assert ("memory-not-available", "spark-161") in found
    assert "startup-memory-estimate" not in {code for code, _ in found}


def test_smaller_node_has_a_smaller_budget():
    i = replace(TP8_300K, node_memory_gib=119.3)
    plan = plan_memory(i)
    assert round(plan.reported.budget_gib, 4) == 95.2
    assert plan.engine.budget_gib == math.ceil(int(119.3 * 2**30) * 0.8) / 2**30
    assert plan.reported.kv_published_gib is None


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu_memory_utilization", math.nan),
        ("gpu_memory_utilization", math.inf),
        ("gpu_memory_utilization", 80),
        ("gpu_memory_utilization", 1.7),
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", -0.8),
        ("gpu_memory_utilization", "0.8"),
        ("gpu_memory_utilization", True),
        ("max_model_len", 0),
        ("max_model_len", -1),
        ("max_model_len", 300000.0),
        ("max_model_len", "1M"),
        ("max_model_len", None),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 1 << 40),
        ("tensor_parallel", 0),
        ("tensor_parallel", True),
        ("block_size", 0),
        ("num_speculative_tokens", -1),
        ("num_speculative_tokens", 31),
        ("nccl_max_nchannels", 0),
        ("nccl_max_nchannels", 65),
        ("nccl_buffsize", "1M"),
        ("nccl_communicators", 0),
        ("node_memory_gib", 0.0),
        ("node_memory_gib", math.nan),
        ("memory_reserve_gib", -1.0),
        ("weights_gib", -1.0),
        ("weight_bytes", -1),
        ("kv_cache_memory_bytes", 0),
        ("kv_cache_memory_bytes", 10**400),
        ("node_memory_gib", 10**400),
        ("engram", "ram"),
        ("accelerator", "tpu"),
        ("kv_layout", "full-attention"),
        ("kv_layout", "x"),
    ],
)
def test_bad_input_is_named(name, value):
    found = input_findings(replace(TP8_300K, **{name: value}))
    assert found
    assert {(f.level, f.code) for f in found} == {("error", "memory-input")}
    told = " ".join(line(f) for f in found).lower()
    assert name in told or name.replace("_", " ") in told
    assert all("\n" not in line(f) for f in found)


def test_limits_are_written_in_all_digits():
    (found,) = input_findings(replace(TP8_300K, nccl_buffsize=0))
    assert "must be an integer from 1 to 4294967296" in found.message


# --- what a person reads ----------------------------------------------------------------------------------------------


def test_another_model_needs_its_weights():
    (found,) = input_findings(replace(LAB, weight_bytes=None))
    assert (found.level, found.code) == ("error", "weights-unknown")
    assert input_findings(replace(LAB, weight_bytes=None, weights_gib=0.5)) == []


def test_weights_of_another_model_are_its_bytes_over_the_ranks():
    part = plan_memory(replace(LAB, weight_bytes=16 << 30)).engine.components[0]
    assert (part.gib, part.kind) == (2.0, "derived")
    other = replace(builtin(), layers=44)
    part = plan_memory(replace(TP8_300K, model=other, weight_bytes=510313353565)).engine.components[0]
    assert part.gib == pytest.approx((510313353565 / 2**30 - 188.8332) / 8, abs=1e-3)


def table_of(i):
    return memory_table(json.loads(json.dumps(plan_memory(i).as_dict(), allow_nan=False)))


@pytest.mark.parametrize("i", [*PROFILES.values(), LAB, with_gmu(TP8_300K, 0.5), with_auto(TP8_1M)])
def test_documents_are_stable_plain_json_and_tables_fit(i):
    first, second = (json.dumps(plan_memory(i).as_dict(), allow_nan=False) for _ in range(2))
    assert first == second
    assert table_of(i) == table_of(i)
    assert max(map(len, table_of(i).splitlines())) <= 100


def rows(table):
    """What a line says behind its name."""
    return {text[:34].strip(): text[34:].split() for text in table.splitlines()}


def test_table_6_1_is_reprinted_beside_the_engine_accounting():
    table = table_of(TP8_300K)
    found = rows(table)
    assert found["weights"] == ["49.55", "r", "[1]", "49.55", "m", "[2]"]
    assert found["engram"] == ["23.60", "r", "[1]", "23.60", "d", "[3]"]
    assert found["nccl"] == ["11.00", "r", "[4]", "outside"]
    assert found["cuda-graphs"][:3] == ["1.50", "r", "[1]"]
    assert found["used"] == ["85.65", "82.39"]
    assert found["budget, GMU 0.8"] == ["96.80", "of", "121", "97.35", "of", "121.69"]
    assert found["left"] == ["11.15", "14.96"]
    assert found["KV pool as published"] == ["8.70", "r", "[1]"]
    assert found["unexplained"] == ["2.45"]
    assert found["KV pool"] == ["8.70", "14.96"]
    assert found["needed for 300,000 tokens"] == ["1.41", "1.41"]
    assert found["requests of full length at once"] == ["6.19", "10.64"]
    assert "gpu_memory_utilization (GMU): given is 0.8, recommended is 0.83" in table
    assert "  kv-sum       8.70 against 11.15 GiB" in table
    assert "  [1] report 6.1\n" in table
    assert "GPU KV cache size: 1,856,768 tokens" in table


def test_table_6_2_is_reprinted():
    found = rows(table_of(TP8_1M))
    assert [found[name][0] for name in ("budget, GMU 0.75", "used", "left", "unexplained", "KV pool")] == [
        "90.75", "60.50", "30.25", "0.25", "30.00",
    ]  # fmt: skip
    assert found["needed for 1,048,576 tokens"] == ["3.66", "3.66"]
    assert found["left after it"] == ["26.34", "24.26"]


def test_the_table_says_what_auto_became():
    assert "gpu_memory_utilization (GMU): auto became 0.83, recommended is 0.83" in table_of(with_auto(TP8_300K))


def test_disagreements_of_the_disk_profile():
    told = {d.what: (d.reported, round(d.evidence, 2)) for d in plan_memory(TP8_1M).disagreements}
    assert told["weights"] == (38.0, 49.55)
    assert told["kv-sum"] == (30.0, 30.25)


# --- what must hold for every input -----------------------------------------------------------------------------------

inputs = st.builds(
    MemoryInput,
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    gpu_memory_utilization=st.floats(0.05, 1.0),
    max_model_len=st.integers(1, 1048576),
    max_num_seqs=st.integers(1, 64),
    max_num_batched_tokens=st.integers(1, 65536),
    num_speculative_tokens=st.integers(0, 15),
    engram=st.sampled_from(["memory", "disk"]),
    kv_layout=st.sampled_from(["sm12x-64-state", "stock"]),
    flashinfer_autotune=st.booleans(),
    nccl_max_nchannels=st.none() | st.integers(1, 64),
    nccl_buffsize=st.none() | st.integers(1 << 16, 1 << 25),
    node_memory_gib=st.floats(64, 256),
)


@given(inputs, st.floats(0.05, 1.0))
@settings(max_examples=150, deadline=None)
def test_more_gmu_is_never_less_cache(i, other):
    low, high = sorted((i.gpu_memory_utilization, other))
    small, large = plan_memory(with_gmu(i, low)), plan_memory(with_gmu(i, high))
    for a, b in zip(small.accountings, large.accountings, strict=True):
        assert a.kv_blocks <= b.kv_blocks
        assert a.tokens <= b.tokens
        assert a.largest_model_len <= b.largest_model_len


@given(inputs)
@settings(max_examples=150, deadline=None)
def test_floor_is_below_ceiling_or_found(i):
    plan = plan_memory(i)
    found = {f.code for f in memory_findings(i, plan)}
    crossed = [a for a in plan.accountings if a.gmu_floor() > a.gmu_ceiling]
    assert not crossed or found & {"gmu-no-room", "gmu-no-room-engine", "nccl-channels"}
    if plan.gmu_recommended is not None:
        assert not crossed
        assert all(a.gmu_floor() <= plan.gmu_recommended <= a.gmu_ceiling for a in plan.accountings)


@given(inputs, st.integers(1, 8))
@settings(max_examples=150, deadline=None)
def test_the_floor_serves_and_the_ceiling_keeps_the_reserve(i, requests):
    for name in (REPORTED, ENGINE):
        floor, ceiling = gmu_floor(i, requests, name), gmu_ceiling(i, name)
        if floor <= 1:
            a = getattr(plan_memory(with_gmu(i, floor)), name)
            assert a.requests >= requests
            assert a.serves
        if ceiling > 0:
            a = getattr(plan_memory(with_gmu(i, ceiling)), name)
            assert a.headroom_gib >= i.memory_reserve_gib - 1e-6


@given(inputs)
@settings(max_examples=100, deadline=None)
def test_the_largest_length_serves_and_a_longer_one_does_not(i):
    for a in plan_memory(i).accountings:
        length = a.largest_model_len
        if length:
            assert getattr(plan_memory(replace(i, max_model_len=length)), a.name).serves
        if length < 1048576:
            assert not getattr(plan_memory(replace(i, max_model_len=length + 1)), a.name).serves


@given(inputs)
@settings(max_examples=100, deadline=None)
def test_auto_is_the_highest_that_keeps_the_reserve_and_stays_what_it_became(i):
    auto = with_auto(i)
    plan, explicit = plan_memory(auto), plan_memory(replace(auto, auto=False))
    assert plan.accountings == explicit.accountings
    assert plan.gmu_recommended == explicit.gmu_recommended
    found = {f.code for f in memory_findings(auto, plan)}
    assert (plan.gmu_recommended is None) == bool(
        found & {"gmu-auto-none", "nccl-channels"}
    ) or "nccl-channels" in found
    if plan.gmu_recommended is not None:
        assert auto.gpu_memory_utilization == plan.gmu_recommended
        above = plan_memory(with_gmu(i, min(1.0, auto.gpu_memory_utilization + 0.01)))
        assert any(a.headroom_gib < a.reserve_gib for a in above.accountings) or auto.gpu_memory_utilization == 1


def test_recommended_is_the_plans():
    for i in PROFILES.values():
        assert gmu_recommended(i) == plan_memory(i).gmu_recommended == 0.83
