"""The exact argument list of every rank."""

from __future__ import annotations

import json
from typing import Any

from gb10.nodes import Node
from gb10.settings import Settings


def capture_sizes(max_num_seqs: int, num_speculative_tokens: int) -> list[int]:
    """n * k and n * (k+1) tokens for every n up to ``max_num_seqs`` sequences.

    Decode steps of a speculating batch come in these sizes only; a padded batch can hang sparse MLA on SM12x
    (FlashInfer issue 5015). Source: the public TP4 report, whose list for k=5 and 8 sequences this gives.
    """
    k = num_speculative_tokens
    return sorted({n * tokens for n in range(1, max_num_seqs + 1) for tokens in (k, k + 1)})


# Options that argv() gives, or that stand for one of them. engine_extra_args must not give them again: vLLM takes the
# last one, and the plan would be untrue.
_OWNED = """
    --model --served-model-name --host --port --headless --tensor-parallel-size -tp --distributed-executor-backend
    --nnodes -n --node-rank -r --master-addr --master-port --gpu-memory-utilization --kv-cache-memory-bytes
    --max-model-len --max-num-seqs --max-num-batched-tokens --block-size --speculative-config -sc --compilation-config
    -cc --cudagraph-capture-sizes --engram-config --limit-mm-per-prompt --default-chat-template-kwargs
    --enable-flashinfer-autotune --no-enable-flashinfer-autotune --tool-call-parser --enable-auto-tool-choice
    --reasoning-parser --pipeline-parallel-size -pp --data-parallel-size -dp --api-key
"""
OWNED = frozenset(_OWNED.split())


def options(args: list[str]) -> set[str]:
    """The options in an argument list as vLLM reads them: without value, ``_`` as ``-``, ``-cc.x`` as ``-cc``."""
    return {word.split("=")[0].split(".")[0].replace("_", "-") for word in args if word.startswith("-")}


def speculative_tokens(settings: Settings) -> int:
    """k of the speculative config, 0 without one."""
    value = (settings.speculative_config or {}).get("num_speculative_tokens", 0)
    return value if isinstance(value, int) else 0


def compilation_config(settings: Settings) -> dict[str, Any] | None:
    """CUDA graph mode and sizes as vLLM's --compilation-config takes them."""
    if settings.cudagraph_mode is None:
        return None
    config: dict[str, Any] = {"cudagraph_mode": settings.cudagraph_mode}
    sizes = settings.cudagraph_capture_sizes
    if isinstance(sizes, list):
        config["cudagraph_capture_sizes"] = sizes
    elif speculative_tokens(settings):
        config["cudagraph_capture_sizes"] = capture_sizes(settings.max_num_seqs, speculative_tokens(settings))
    return config


def argv(settings: Settings, node: Node, head: Node, nnodes: int) -> list[str]:
    """The container's whole command. Rank 0 serves the API; every other rank is headless."""
    args = ["vllm", "serve", settings.weights_path, "--served-model-name", settings.served_model_name]
    if node.rank == 0:
        args += ["--host", settings.api_host] if settings.api_host else []
        args += ["--port", str(settings.api_port)]
    else:
        args += ["--headless"]
    args += ["--tensor-parallel-size", str(settings.tensor_parallel)]
    if nnodes > 1:
        args += ["--distributed-executor-backend", settings.distributed_executor_backend]
        args += ["--nnodes", str(nnodes), "--node-rank", str(node.rank)]
        args += ["--master-addr", head.address, "--master-port", str(settings.master_port)]
    args += ["--gpu-memory-utilization", f"{settings.gpu_memory_utilization:g}"]
    if settings.kv_cache_memory_bytes is not None:
        args += ["--kv-cache-memory-bytes", str(settings.kv_cache_memory_bytes)]
    args += ["--max-model-len", str(settings.max_model_len)]
    args += ["--max-num-seqs", str(settings.max_num_seqs)]
    args += ["--max-num-batched-tokens", str(settings.max_num_batched_tokens)]
    args += ["--block-size", str(settings.block_size)]
    for option, value in (
        ("--speculative-config", settings.speculative_config),
        ("--compilation-config", compilation_config(settings)),
        ("--engram-config", settings.engram_config),
        ("--limit-mm-per-prompt", settings.limit_mm_per_prompt),
        ("--default-chat-template-kwargs", settings.default_chat_template_kwargs),
    ):
        if value is not None:
            args += [option, json.dumps(value, separators=(",", ":"))]
    if not settings.flashinfer_autotune:
        args += ["--no-enable-flashinfer-autotune"]
    if settings.tool_call_parser:
        args += ["--tool-call-parser", settings.tool_call_parser, "--enable-auto-tool-choice"]
    if settings.reasoning_parser:
        args += ["--reasoning-parser", settings.reasoning_parser]
    return args + settings.engine_extra_args
