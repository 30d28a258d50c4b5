"""What the memory plan of one rank is made from, and which figures it cannot be made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gb10.data import load
from gb10.engram import EngramTables
from gb10.findings import Finding, error
from gb10.kv_cache import KvLayout, full_attention, layout
from gb10.model_config import Deepseek, Model, builtin
from gb10.settings import shown


def _constant(name: str) -> Any:
    return field(default_factory=lambda: float(load("memory")[name]))


@dataclass(frozen=True)
class MemoryInput:
    """What the plan is made from. GiB are of one node; ``None`` for NCCL means the variable is not set."""

    tensor_parallel: int
    gpu_memory_utilization: float
    max_model_len: int
    auto: bool = False
    """GMU was given as ``auto``; the number is what it became."""
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 8192
    block_size: int = 128
    num_speculative_tokens: int = 5
    engram: str = "memory"
    """``memory``, ``disk`` or ``none``."""
    kv_layout: str = "sm12x-64-state"
    """``sm12x-64-state`` or ``stock``, of a DeepSeek model; a plain transformer has one layout only."""
    flashinfer_autotune: bool = False
    nccl_max_nchannels: int | None = None
    nccl_buffsize: int | None = None
    nccl_ll128_buffsize: int | None = None
    nccl_communicators: int = 2
    node_memory_gib: float = _constant("node_memory_gib")
    memory_reserve_gib: float = _constant("memory_reserve_gib")
    host_gib: float = _constant("host_gib")
    """Outside the budget while serving, NCCL apart: operating system, CUDA context."""
    weights_gib: float | None = None
    """Weights of one rank, Engram apart, in place of both accountings' figures."""
    weight_bytes: int | None = None
    """Bytes of the whole checkpoint, for a model nobody measured."""
    kv_cache_memory_bytes: int | None = None
    """vLLM then ignores GMU and skips profiling."""
    accelerator: str = "gpu"
    """``gpu``, or ``cpu`` for an engine without GPU."""
    model: Model = field(default_factory=builtin)
    calibrated: Mapping[str, Any] = field(default_factory=dict)
    """What a boot of this very cluster measured, in place of the engine accounting's figures (calibration.py)."""
    allow_long: bool = False
    """VLLM_ALLOW_LONG_MAX_MODEL_LEN: the model's own limit does not hold."""

    @property
    def on_gpu(self) -> bool:
        """Whether NCCL, CUDA graphs and the shared memory of GB10 play a part."""
        return self.accelerator == "gpu"

    @property
    def measured(self) -> bool:
        """Whether this is the model that the report and the published boots are about."""
        return self.model == builtin()

    @property
    def model_limit(self) -> int | None:
        """The checkpoint's own longest context in tokens, where it binds."""
        return None if self.allow_long else self.model.max_model_len

    @property
    def tables(self) -> EngramTables | None:
        """The model's Engram tables, unless the deployment goes without."""
        return self.model.engram if isinstance(self.model, Deepseek) and self.engram != "none" else None

    def shape(self) -> KvLayout:
        """The KV layout in force. Raises ValueError for an unknown one."""
        if isinstance(self.model, Deepseek):
            return layout(self.kv_layout, self.model)
        return full_attention(
            layers=self.model.layers,
            kv_heads=self.model.kv_heads,
            head_size=self.model.head_size,
            dtype_bytes=self.model.dtype_bytes,
            block_size=self.block_size,
            tensor_parallel=self.tensor_parallel,
        )


def input_findings(i: MemoryInput) -> list[Finding]:
    """Errors that make a plan impossible: absurd numbers, unknown layouts, speculation too deep, unknown weights."""
    findings = [f for f in (_number(i, *rule) for rule in _RULES) if f]
    for name, words in (("engram", ("memory", "disk", "none")), ("accelerator", ("gpu", "cpu"))):
        if getattr(i, name) not in words:
            findings.append(_invalid(name, getattr(i, name), f"one of {', '.join(words)}"))
    if findings:
        return findings
    try:
        i.shape().blocks(i.max_model_len, i.max_num_batched_tokens, i.num_speculative_tokens)
    except ValueError as bad:
        return [error("memory-input", f"{bad}.", "Correct kv_layout, the model or num_speculative_tokens.")]
    if not i.measured and i.weights_gib is None and i.weight_bytes is None:
        return [
            error(
                "weights-unknown",
                f"Nobody measured what a rank loads of {i.model.name}, and the size of its checkpoint is not known.",
                "Set model_weights_gib (of the filters: weights_gib) to the GiB a rank loads, or put "
                "model.safetensors.index.json beside config.json.",
            )
        ]
    return []


LEAST_GMU = 0.01  # of the setting

_RULES: tuple[tuple[str, type, float, float, bool], ...] = (
    # name, type, smallest, largest, may be None
    ("tensor_parallel", int, 1, 1024, False),
    ("gpu_memory_utilization", float, LEAST_GMU, 1, False),
    ("max_model_len", int, 1, 1 << 24, False),
    ("max_num_seqs", int, 1, 1 << 16, False),
    ("max_num_batched_tokens", int, 1, 1 << 24, False),
    ("block_size", int, 1, 1 << 16, False),
    ("num_speculative_tokens", int, 0, 64, False),
    ("nccl_max_nchannels", int, 1, 64, True),
    ("nccl_buffsize", int, 1, 1 << 32, True),
    ("nccl_ll128_buffsize", int, 1, 1 << 32, True),
    ("nccl_communicators", int, 1, 64, False),
    ("node_memory_gib", float, 1, 1 << 16, False),
    ("memory_reserve_gib", float, 0, 1 << 16, False),
    ("host_gib", float, 0, 1 << 16, False),
    ("weights_gib", float, 0, 1 << 16, True),
    ("weight_bytes", int, 0, 1 << 50, True),
    ("kv_cache_memory_bytes", int, 1, 1 << 46, True),
)
# Of the ranks' environment, which is written in capitals.
ENVIRONMENT = ("nccl_max_nchannels", "nccl_buffsize", "nccl_ll128_buffsize")


def _number(i: MemoryInput, name: str, kind: type, low: float, high: float, optional: bool) -> Finding | None:
    value = getattr(i, name)
    if value is None and optional:
        return None
    good = isinstance(value, int) if kind is int else isinstance(value, int | float)
    if good and not isinstance(value, bool) and low <= value <= high:  # neither holds for NaN
        return None
    name = name.upper() if name in ENVIRONMENT else name
    return _invalid(name, value, f"{'an integer' if kind is int else 'a number'} from {low} to {high}")


def _invalid(name: str, value: Any, right: str) -> Finding:
    return error("memory-input", f"{name} is {shown(value)} but must be {right}.", "Correct the variable.")
