"""gb10.kv_cache against vLLM's own planner (the lab's engine brings it), number for number over a grid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from lab_run import engine_says

from gb10.kv_cache import (
    KvLayout,
    fits,
    full_attention,
    kv_bytes,
    kv_concurrency,
    kv_tokens,
    layout,
    max_model_len_that_fits,
    pool_blocks,
)
from gb10.model_config import builtin

GIB = 1 << 30
LENGTHS = (1, 100, 127, 128, 129, 4096, 16511, 16512, 65536, 300000, 524288, 1048576)
BATCHES = (256, 2048, 8192, 16384)
DRAFTS = (0, 1, 5, 6, 7, 15)
POOLS = (1, int(0.5 * GIB), int(4.84 * GIB), int(31.95 * GIB))
LAYOUTS = ("sm12x-64-state", "stock")
# Checkpoints another config.json could give, which group otherwise: more sources of one ratio than of the other, of one
# ratio only, other numbers of layers, windows and index keys.
MODELS = [
    builtin(),
    replace(builtin(), ratios=(2, 2, 2, 2, 1, 1), layers=61, draft_layers=1),
    replace(builtin(), ratios=(2, 2, 1, 1), layers=30, window=512),
    replace(builtin(), ratios=(1,), layers=9, draft_layers=2),
    replace(builtin(), ratios=(2, 2, 2, 2, 2), layers=64, index_head_dim=256),
    replace(builtin(), ratios=(1, 1, 1), layers=6),
]
PLAIN = {"layers": 2, "kv_heads": 8, "head_size": 32, "dtype_bytes": 2}
RANKS = (1, 8)

Case = tuple[KvLayout, dict[str, Any]]


def around(shape: KvLayout, model: dict[str, Any], k: int, lengths: tuple[int, ...]) -> Iterator[Case]:
    """Every length and batch, each with fixed pools and those around what one request needs."""
    for length, batch in product(lengths, BATCHES):
        enough = kv_bytes(length, batch, shape, k) + shape.bytes_per_block
        given = {"max_model_len": length, "max_num_batched_tokens": batch, "num_speculative_tokens": k}
        for pool in (*POOLS, enough - 1, enough):
            yield shape, {"model": model, "layout": shape.name, **given, "pool": pool}


def cases() -> Iterator[Case]:
    """The model of the report in full, other checkpoints at two lengths, and the lab's plain transformer."""
    for model, name in product(MODELS, LAYOUTS):
        lengths, drafts = (LENGTHS, DRAFTS) if model == builtin() else ((129, 300000), (0, 5))
        for k in drafts:
            yield from around(layout(name, model), asdict(model), k, lengths)
    for ranks in RANKS:
        shape = full_attention(tensor_parallel=ranks, block_size=128, **PLAIN)
        yield from around(shape, PLAIN | {"kv_heads": PLAIN["kv_heads"] // ranks}, 0, LENGTHS)


def ours(shape: KvLayout, case: dict[str, Any]) -> dict[str, Any]:
    """What the model says, in the planner's form."""
    length, batch, k, pool = (
        case[key] for key in ("max_model_len", "max_num_batched_tokens", "num_speculative_tokens", "pool")
    )
    if not fits(pool, length, batch, shape, k):
        return {"estimate": max_model_len_that_fits(pool, batch, shape, length, k)}
    return {
        "blocks": pool_blocks(pool, shape),
        "bytes_per_block": shape.bytes_per_block,
        "concurrency": kv_concurrency(pool, length, batch, shape, k),
        "tokens": kv_tokens(pool, length, batch, shape, k),
    }


def test_the_model_agrees_with_vllms_planner_on_the_whole_grid() -> None:
    """The pools around one request pin its blocks: one byte less is refused, and there the length is one too long."""
    grid = list(cases())
    theirs = json.loads(engine_says("plan_kv.py", json.dumps([case for _, case in grid])))
    assert len(theirs) == len(grid)
    wrong = [
        (case, ours(shape, case), said)
        for (shape, case), said in zip(grid, theirs, strict=True)
        if ours(shape, case) != said
    ]
    assert wrong == [], f"{len(wrong)} of {len(grid)} differ (case, ours, vLLM's); the first: {wrong[0]}"
    assert {tuple(said) for said in theirs} == {("estimate",), ("blocks", "bytes_per_block", "concurrency", "tokens")}
