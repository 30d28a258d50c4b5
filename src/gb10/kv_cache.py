"""KV-cache blocks and tokens, by the arithmetic of vLLM's own planner (v1/core, checked on a grid of N and B).

A pool of ``available`` bytes has ``available // bytes_per_block`` blocks on every rank; the pool is cut to the smallest
rank, and tensor parallelism does not divide DeepSeek's compressed cache. One block is held back (the null block).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from gb10.data import load
from gb10.model_config import Deepseek, builtin

DSPARK_TOKENS = 5
BATCHES_IN_FLIGHT = 2  # async scheduling without pipeline parallelism (VllmConfig.max_concurrent_batches)


@dataclass(frozen=True)
class KvLayout:
    """How one model's KV cache is cut into blocks of one shared pool."""

    name: str
    bytes_per_block: int
    full: tuple[int, ...]
    """Tokens per block of each group that keeps the whole context."""
    window: int = 0
    window_block: int = 1
    window_groups: int = 0
    window_groups_without_draft: int = 0
    state_layers: int = 0
    state_row_bytes: int = 1

    def blocks(self, tokens: int, max_num_batched_tokens: int, speculative_tokens: int = DSPARK_TOKENS) -> int:
        """Blocks one request of ``tokens`` needs at most, the null block apart."""
        total = sum(_ceil(tokens, size) for size in self.full)
        groups = self.window_groups if speculative_tokens else self.window_groups_without_draft
        if groups:
            held = min(self.window - 1 + BATCHES_IN_FLIGHT * max_num_batched_tokens, tokens)
            total += groups * (_ceil(held, self.window_block) + 1)
        return total + self._state_blocks(speculative_tokens)

    def _state_blocks(self, speculative_tokens: int) -> int:
        """Blocks of the compressor's ring: one per group, as many layers a group as fit into a block."""
        if not self.state_layers:
            return 0
        page = self.state_row_bytes * max(8, 1 << (speculative_tokens + 1).bit_length())
        if page > self.bytes_per_block:
            raise ValueError(f"num_speculative_tokens {speculative_tokens} does not fit the {self.name} layout")
        return _ceil(self.state_layers, self.bytes_per_block // page)


def layout(name: str, model: Deepseek | None = None) -> KvLayout:
    """DeepSeek's layout ``sm12x-64-state`` (the report's images) or ``stock`` (released vLLM) for ``model``.

    Without a model for DeepSeek-V4.1-Flash. Raises ValueError for an unknown name.
    """
    return _deepseek_layout(name, model or builtin())


@cache
def _deepseek_layout(name: str, model: Deepseek) -> KvLayout:
    """Layers that own a compressed cache, every layer's window, and the compressors' rings, in blocks of one pool."""
    data = load("model_v41")
    if name not in data["layouts"]:
        raise ValueError(f"kv_layout {name!r} is unknown; it is one of {', '.join(data['layouts'])}")
    cut, sizes = data["layouts"][name], data["kv_bytes"]
    index = model.index_head_dim + model.index_head_dim // 128 * 4

    def page(states: int, width: int) -> int:
        return _ceil(states * width, sizes["alignment"]) * int(sizes["alignment"])

    buckets: dict[int, list[Pages]] = {}
    for ratio in sorted(set(model.ratios)):
        states = cut["states"] or data["block_size"] // ratio
        pages = Pages(page(states, sizes["record"]) + page(states, index), model.ratios.count(ratio))
        buckets.setdefault(states * ratio, []).append(pages)
    window = page(cut["window_block"], sizes["record"])
    rings = sum(1 for ratio in model.ratios if ratio > 1)
    target, both = (
        _grouped(buckets, Pages(window, layers), rings) for layers in (model.layers, model.layers + model.draft_layers)
    )
    if target[1] != both[1]:
        raise ValueError(f"kv_layout {name} has blocks of other sizes with and without speculation for {model.name}")
    return KvLayout(
        name=name,
        bytes_per_block=both[1],
        full=both[0],
        window=model.window,
        window_block=cut["window_block"],
        window_groups=both[2],
        window_groups_without_draft=target[2],
        state_layers=rings,
        state_row_bytes=sizes["state_row"],
    )


@dataclass(frozen=True)
class Pages:
    """Layers with pages alike: what one of them takes of a block."""

    bytes: int
    layers: int


def _grouped(buckets: Mapping[int, list[Pages]], window: Pages, rings: int) -> tuple[tuple[int, ...], int, int]:
    """Tokens a block of every full group, bytes of a block, number of window groups.

    ``buckets``: the compressed caches by tokens a block. As vLLM's planner groups them (kv_cache_utils,
    _get_packed_kv_cache_groups): layers of a bucket that repeat one pattern of pages are split into groups of as many
    repeats as wastes least over all buckets, others stay whole.
    """
    # A bucket repeats a pattern when every kind of page is there as often: then that often, else 0.
    repeats = {tokens: kinds[0].layers * (len({k.layers for k in kinds}) == 1) for tokens, kinds in buckets.items()}
    most = max(repeats.values(), default=0)
    size = _least_padding([*filter(None, repeats.values()), window.layers, *filter(None, [rings])], most) if most else 0
    full: list[int] = []
    widest = 0
    for tokens, kinds in sorted(buckets.items(), reverse=True):
        groups = _ceil(repeats[tokens], size) if repeats[tokens] else 1
        full += [tokens] * groups
        widest = max(widest, sum(_ceil(kind.layers, groups) * kind.bytes for kind in kinds))
    if size:
        groups = _ceil(window.layers, size)
        return tuple(full), max(widest, _ceil(window.layers, groups) * window.bytes), groups
    widest = max(widest, window.bytes)
    return tuple(full), widest, _ceil(window.layers, widest // window.bytes)


def _least_padding(counts: list[int], least: int) -> int:
    """The size of a group, from ``least`` on, that pads the counts least; the largest of those (_approximate_gcd)."""
    return min(range(least, max(*counts, least) + 1), key=lambda size: (sum(-n % size for n in counts), -size))


def full_attention(
    layers: int, kv_heads: int, head_size: int, dtype_bytes: int, block_size: int, tensor_parallel: int
) -> KvLayout:
    """A plain transformer: keys and values of every layer in one group; a rank has its share of heads, or one."""
    heads = max(1, kv_heads // tensor_parallel)
    size = layers * 2 * block_size * heads * head_size * dtype_bytes
    return KvLayout("full-attention", size, (block_size,))


def kv_blocks(
    tokens: int, max_num_batched_tokens: int, kv_layout: str | KvLayout, speculative_tokens: int = DSPARK_TOKENS
) -> int:
    """Blocks one request of ``tokens`` needs at most."""
    return _layout(kv_layout).blocks(tokens, max_num_batched_tokens, speculative_tokens)


def kv_bytes(
    tokens: int, max_num_batched_tokens: int, kv_layout: str | KvLayout, speculative_tokens: int = DSPARK_TOKENS
) -> int:
    """Bytes one request of ``tokens`` needs at most: what vLLM prints as "GiB KV cache is needed"."""
    shape = _layout(kv_layout)
    return shape.blocks(tokens, max_num_batched_tokens, speculative_tokens) * shape.bytes_per_block


def pool_blocks(available_bytes: int, kv_layout: str | KvLayout) -> int:
    """Blocks in a pool (``num_gpu_blocks``), the null block included."""
    return max(0, available_bytes) // _layout(kv_layout).bytes_per_block


def kv_concurrency(
    available_bytes: int,
    max_model_len: int,
    max_num_batched_tokens: int,
    kv_layout: str | KvLayout,
    speculative_tokens: int = DSPARK_TOKENS,
) -> float:
    """vLLM's "Maximum concurrency": requests of ``max_model_len`` the pool holds at once."""
    shape = _layout(kv_layout)
    return pool_blocks(available_bytes, shape) / shape.blocks(max_model_len, max_num_batched_tokens, speculative_tokens)


def kv_tokens(
    available_bytes: int,
    max_model_len: int,
    max_num_batched_tokens: int,
    kv_layout: str | KvLayout,
    speculative_tokens: int = DSPARK_TOKENS,
) -> int:
    """vLLM's "KV cache size" in tokens: not bytes over a constant, it depends on the length and the batch."""
    return int(
        kv_concurrency(available_bytes, max_model_len, max_num_batched_tokens, kv_layout, speculative_tokens)
        * max_model_len
    )


def fits(
    available_bytes: int,
    tokens: int,
    max_num_batched_tokens: int,
    kv_layout: str | KvLayout,
    speculative_tokens: int = DSPARK_TOKENS,
) -> bool:
    """Whether vLLM starts: one request of ``tokens`` and the null block fit into the pool."""
    shape = _layout(kv_layout)
    return pool_blocks(available_bytes, shape) > shape.blocks(tokens, max_num_batched_tokens, speculative_tokens)


def max_model_len_that_fits(
    available_bytes: int,
    max_num_batched_tokens: int,
    kv_layout: str | KvLayout,
    limit: int,
    speculative_tokens: int = DSPARK_TOKENS,
) -> int:
    """The largest ``max_model_len`` up to ``limit`` that vLLM would start with; 0 when not even one token fits."""
    shape = _layout(kv_layout)
    return largest_length(
        limit, lambda tokens: fits(available_bytes, tokens, max_num_batched_tokens, shape, speculative_tokens)
    )


def largest_length(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest length up to ``limit`` that ``holds``, else 0. No length holds where a shorter one does not."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _layout(kv_layout: str | KvLayout) -> KvLayout:
    return layout(kv_layout) if isinstance(kv_layout, str) else kv_layout


def _ceil(value: int, by: int) -> int:
    return -(-value // by)
