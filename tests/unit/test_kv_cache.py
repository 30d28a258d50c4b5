"""KV blocks and tokens: published boots, vLLM's planner, and what must hold for every input."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gb10.kv_cache import (
    fits,
    full_attention,
    kv_blocks,
    kv_bytes,
    kv_concurrency,
    kv_tokens,
    layout,
    max_model_len_that_fits,
    pool_blocks,
)

GIB = 1 << 30
REPORT, STOCK = "sm12x-64-state", "stock"
LAYOUTS = (REPORT, STOCK)


@pytest.mark.parametrize(
    ("boot", "gib", "length", "printed", "ours", "within"),
    [
        ("4 Sparks, boot 9", 4.84, 300000, 1032963, 1032963, 0.0),
        ("8 Sparks", 31.95, 300000, 6819463, 6818886, 0.0002),
        ("4 Sparks, EXL3", 15.5, 300000, 3304863, 3308078, 0.002),
        ("8 Sparks, Engram in memory, smallest rank", 14.96, 300000, 3193029, 3192810, 0.0002),
        ("8 Sparks, Engram in memory, head", 17.18, 300000, 3193029, 3666633, 0.149),
        ("4 Sparks, boot 10", 5.15, 300000, 1070168, 1099129, 0.028),
        ("report tp8-300k", 8.7, 300000, 1460000, 1856768, 0.272),
    ],
)
def test_published_boots(boot, gib, length, printed, ours, within):
    """``ours`` is exact; ``within`` is its error: a rank logs its own GiB, the smallest rank sets the tokens."""
    tokens = kv_tokens(int(gib * GIB), length, 8192, REPORT)
    assert tokens == ours, boot
    assert abs(tokens / printed - 1) <= within, boot


def test_report_tp8_1m():
    assert kv_tokens(int(30 * GIB), 1048576, 8192, REPORT) == 8584603
    assert kv_concurrency(int(30 * GIB), 1048576, 8192, REPORT) == pytest.approx(8.187, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "length", "batch", "gib"),
    [
        (REPORT, 300000, 8192, 1.4056),
        (REPORT, 1048576, 8192, 3.6644),
        (REPORT, 300000, 2048, 1.035),
        (REPORT, 1048576, 2048, 3.294),
        (REPORT, 300000, 16384, 1.900),
        (REPORT, 1048576, 16384, 4.159),
        (STOCK, 300000, 8192, 0.947),
        (STOCK, 1048576, 8192, 2.202),
    ],
)
def test_bytes_of_one_request(name, length, batch, gib):
    digits = 4 if batch == 8192 and name == REPORT else 3
    assert round(kv_bytes(length, batch, name) / GIB, digits) == gib


@pytest.mark.parametrize(
    ("k", "report", "stock"),
    # printed by vLLM 0.32.0's planner with the model's cache specs, 300,000 tokens, B = 8192
    [(1, 10918, 4413), (5, 10918, 4413), (6, 10918, 4413), (7, 10919, 4413), (10, 10919, 4413), (15, 10920, 4415)],
)
def test_speculation_depth(k, report, stock):
    assert kv_blocks(300000, 8192, REPORT, k) == report
    assert kv_blocks(300000, 8192, STOCK, k) == stock


def test_no_speculation_has_fewer_window_groups():
    assert kv_blocks(300000, 8192, REPORT, 0) == 10659
    assert kv_blocks(300000, 8192, STOCK, 0) == 4413


def test_speculation_too_deep():
    with pytest.raises(ValueError, match="num_speculative_tokens 31 does not fit the sm12x-64-state layout"):
        kv_blocks(300000, 8192, REPORT, 31)


def test_unknown_layout():
    with pytest.raises(ValueError, match="kv_layout 'x' is unknown; it is one of sm12x-64-state, stock"):
        layout("x")


def test_small_llama_of_the_lab():
    """2 layers, 8 KV heads of 32, bf16, block 128, TP8: 32,768 bytes a block, 512 blocks in 16 MiB (vLLM 0.32.0)."""
    small = full_attention(2, 8, 32, 2, 128, 8)
    assert small.bytes_per_block == 32768
    assert pool_blocks(16777216, small) == 512
    assert small.blocks(1024, 2048) == 8
    assert kv_tokens(16777216, 1024, 2048, small) == 65536


@pytest.mark.parametrize(("ranks", "size"), [(1, 262144), (2, 131072), (8, 32768), (16, 32768)])
def test_heads_are_split_but_never_below_one(ranks, size):
    assert full_attention(2, 8, 32, 2, 128, ranks).bytes_per_block == size


def test_the_null_block_is_held_back():
    exact = kv_bytes(300000, 8192, REPORT)
    block = layout(REPORT).bytes_per_block
    assert not fits(exact, 300000, 8192, REPORT)
    assert not fits(exact + block - 1, 300000, 8192, REPORT)
    assert fits(exact + block, 300000, 8192, REPORT)


@pytest.mark.parametrize("name", LAYOUTS)
def test_nothing_fits_into_nothing(name):
    for available in (-(1 << 40), 0, 1):
        assert pool_blocks(available, name) == 0
        assert kv_tokens(available, 300000, 8192, name) == 0
        assert max_model_len_that_fits(available, 8192, name, 1048576) == 0


lengths = st.integers(1, 1 << 21)
batches = st.integers(1, 1 << 16)
pools = st.integers(0, 64 * GIB)
names = st.sampled_from(LAYOUTS)


@given(lengths, lengths, batches, batches, names)
@settings(max_examples=300, deadline=None)
def test_blocks_grow_with_length_and_batch(n, m, b, c, name):
    low, high = sorted((n, m))
    small, large = sorted((b, c))
    assert kv_blocks(low, small, name) <= kv_blocks(high, small, name) <= kv_blocks(high, large, name)


@given(pools, batches, names)
@settings(max_examples=200, deadline=None)
def test_the_largest_length_fits_and_the_next_does_not(available, batch, name):
    limit = 1048576
    largest = max_model_len_that_fits(available, batch, name, limit)
    if largest:
        assert fits(available, largest, batch, name)
    if largest < limit:
        assert not fits(available, largest + 1, batch, name)


@given(pools, pools, lengths, batches, names)
@settings(max_examples=200, deadline=None)
def test_more_memory_is_never_fewer_tokens(a, b, length, batch, name):
    low, high = sorted((a, b))
    assert kv_tokens(low, length, batch, name) <= kv_tokens(high, length, batch, name)
