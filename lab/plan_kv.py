"""Ask vLLM's own planner how it cuts a KV pool into blocks. Run by the engine's Python.

On stdin: a JSON list of cases {"model", "layout", "max_model_len", "max_num_batched_tokens", "num_speculative_tokens",
"pool" (bytes)}. A model is DeepSeek's {"ratios", "layers", "draft_layers", "window", "index_head_dim"} with layout
``sm12x-64-state`` or ``stock``, or a plain transformer's {"layers", "kv_heads", "head_size", "dtype_bytes"}, with the
heads of one rank. On stdout, in the same order: {"blocks", "bytes_per_block", "concurrency", "tokens"} where vLLM would
start, {"estimate"} (tokens, 0 for no message) where it refuses.
"""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity, get_kv_cache_configs
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
)

BLOCK = 128
# Caches as vllm/models/deepseek_v41 registers them, with fp8_ds_mla records of 584 bytes and pages ending on 576.
PACKED: dict[str, Any] = {"num_kv_heads": 1, "dtype": torch.uint8, "alignment": 576}
MAIN: dict[str, Any] = PACKED | {
    "head_size": 512,
    "state_content_bytes": 584,
    "cache_dtype_str": "fp8_ds_mla",
    "model_version": "deepseek_v4",
}


def deepseek(model: dict[str, Any], states: int | None, window_block: int, k: int) -> dict[str, KVCacheSpec]:
    """A DeepSeek-V4.1's caches; ``states`` a page where the image fixes them, else BLOCK tokens a page."""
    specs: dict[str, KVCacheSpec] = {}
    for layer, ratio in enumerate(model["ratios"]):
        size = {"block_size": states * ratio if states else BLOCK, "tokens_per_state": ratio}
        specs[f"{layer}.attn"] = MLAAttentionSpec(**MAIN, **size)
        scales = model["index_head_dim"] // 128 * 4
        specs[f"{layer}.indexer"] = MLAAttentionSpec(**PACKED, **size, head_size=model["index_head_dim"] + scales)
        if ratio > 1:
            rows = max(8, 1 << (k + 1).bit_length())
            specs[f"{layer}.state"] = CircularBufferSpec(
                block_size=rows, num_kv_heads=1, head_size=1024, head_size_v=0, dtype=torch.float32
            )
    for layer in range(model["layers"] + (model["draft_layers"] if k else 0)):
        specs[f"{layer}.swa"] = SlidingWindowMLASpec(
            **MAIN, block_size=window_block, sliding_window=model["window"], bounded_replay=True
        )
    return specs


def plain(model: dict[str, int]) -> dict[str, KVCacheSpec]:
    """Keys and values of every layer."""
    dtype = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32}[model["dtype_bytes"]]
    spec = FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=model["kv_heads"], head_size=model["head_size"], dtype=dtype
    )
    return {str(layer): spec for layer in range(model["layers"])}


def specs_of(case: dict[str, Any]) -> dict[str, KVCacheSpec]:
    """The caches of one rank."""
    model, k = case["model"], case["num_speculative_tokens"]
    if "kv_heads" in model:
        return plain(model)
    return {"sm12x-64-state": deepseek(model, 64, 64, k), "stock": deepseek(model, None, 32, k)}[case["layout"]]


def planned(config: Any, case: dict[str, Any]) -> dict[str, Any]:
    """What vLLM makes of one case."""
    k = case["num_speculative_tokens"]
    length = case["max_model_len"]
    config.model_config = SimpleNamespace(
        max_model_len=length, original_max_model_len=length, hf_config=SimpleNamespace(model_type="deepseek_v41")
    )
    config.scheduler_config.max_num_batched_tokens = case["max_num_batched_tokens"]
    draft = SimpleNamespace(
        method="dspark",
        num_speculative_tokens=k,
        use_eagle=lambda: True,
        use_eagle_block_drop=lambda: True,
        use_multi_module_mtp=lambda: False,
    )
    config.speculative_config = draft if k else None
    try:
        (cache,) = get_kv_cache_configs(config, [specs_of(case)], [case["pool"]])
    except ValueError as refusal:
        estimate = re.search(r"estimated maximum model length is (\d+)", str(refusal))
        return {"estimate": int(estimate[1]) if estimate else 0}
    tokens, concurrency = get_kv_cache_capacity(config, cache)
    return {
        "blocks": cache.num_blocks,
        "bytes_per_block": cache.kv_cache_tensors[0].size // cache.num_blocks,
        "concurrency": concurrency,
        "tokens": tokens,
    }


def main() -> None:
    config: Any = VllmConfig(
        cache_config=CacheConfig(block_size=BLOCK),
        scheduler_config=SchedulerConfig(max_model_len=4096, is_encoder_decoder=False),
        device_config=DeviceConfig(device="cpu"),
    )
    config.scheduler_config.async_scheduling = True  # the default on GPUs
    config.cache_config.kv_cache_layout = "BLHNC"  # pages of several layers side by side in a block
    print(json.dumps([planned(config, case) for case in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
