"""The memory model for playbooks: a mapping of MemoryInput's fields in, plain values out.

Numbers given as strings count as numbers, ``gpu_memory_utilization`` may be ``auto``, and ``model`` is a parsed
config.json (DeepSeek-V4.1-Flash without it). Every function raises ValueError with one line that names the variable,
its value and what would be right.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gb10 import nccl_memory as nccl
from gb10.accounting import ENGINE, REPORTED
from gb10.data import load
from gb10.findings import errors
from gb10.memory import gmu_ceiling, gmu_floor, nccl_lost_gib, plan_memory, with_auto
from gb10.memory_findings import memory_findings
from gb10.memory_input import MemoryInput, input_findings
from gb10.model_config import read_model
from gb10.settings import BadValue, flag, integer, number, plain, shown

GIB = 1 << 30
TYPES = {f.name: str(f.type) for f in fields(MemoryInput) if f.name not in ("auto", "calibrated")}
GMU = "gpu_memory_utilization"


def memory(values: Any) -> dict[str, Any]:
    """Both accountings of one rank, as the plan document has them, with the findings."""
    i = _read(values, "tensor_parallel", GMU, "max_model_len")
    plan = plan_memory(i)
    return {**plan.as_dict(), "findings": [f.as_dict() for f in memory_findings(i, plan)]}


def kv_blocks(values: Any) -> int:
    """Blocks one request of ``max_model_len`` needs at most."""
    i = _read(values, "tensor_parallel", "max_model_len")
    return i.shape().blocks(i.max_model_len, i.max_num_batched_tokens, i.num_speculative_tokens)


def kv_tokens(values: Any, accounting: Any = ENGINE) -> int:
    """Tokens the KV cache holds: vLLM's "KV cache size"."""
    plan = plan_memory(_read(values, "tensor_parallel", GMU, "max_model_len"))
    return (plan.reported if _accounting(accounting) == REPORTED else plan.engine).tokens


def floor(values: Any, requests: Any = 1, accounting: Any = ENGINE) -> float:
    """Smallest GMU whose pool holds ``requests`` of ``max_model_len``; above 1 when none does."""
    i = _read(values, "tensor_parallel", "max_model_len")
    try:
        many = integer(1, 1 << 16)(requests)
    except BadValue as bad:
        raise ValueError(f"requests is {shown(requests)} but must be {bad}.") from None
    return gmu_floor(i, many, _accounting(accounting))


def ceiling(values: Any, accounting: Any = ENGINE) -> float:
    """Largest GMU that keeps the reserve; 0 when none does."""
    return gmu_ceiling(_read(values, "tensor_parallel", "max_model_len"), _accounting(accounting))


def nccl_memory(values: Any) -> dict[str, Any]:
    """What NCCL takes of one rank: by the measured formula and as the report says (from TP8 on, else null)."""
    i = _read(values, "tensor_parallel")
    pinned = nccl.nccl_host_bytes(
        i.nccl_max_nchannels, i.tensor_parallel, i.nccl_buffsize, i.nccl_ll128_buffsize, i.nccl_communicators
    )
    several = i.tensor_parallel > 1
    reported = i.tensor_parallel >= load("nccl")["reported_ranks"]
    return {
        "pinned_bytes": pinned,
        "pinned_gib": round(pinned / GIB, 4),
        "lost_gib": round(nccl_lost_gib(i), 4),
        "dev_shm_bytes": nccl.dev_shm_bytes(i.nccl_communicators) if several else 0,
        "reported_gib": round(nccl.nccl_reported_gib(i.nccl_max_nchannels), 4) if reported else None,
    }


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(values: Any, *needed: str) -> MemoryInput:
    """Checked input. What a filter does not need stands at a number that plays no part in it."""
    if not isinstance(values, Mapping):
        raise ValueError(f"the input is {shown(values)} but must be a mapping, like {{tensor_parallel: 8}}.")
    unknown = sorted(str(name) for name in values if name not in TYPES)
    if unknown:
        near = difflib.get_close_matches(unknown[0], TYPES, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(TYPES)}."
        raise ValueError(f"{unknown[0]} is no input of the memory plan. {hint}")
    missing = [name for name in needed if values.get(name) is None]
    if missing:
        raise ValueError(f"{missing[0]} is not given, but must be: it has no default.")
    given: dict[str, Any] = {GMU: 1.0, "max_model_len": 1, "tensor_parallel": 1}
    given |= {name: _value(name, value) for name, value in values.items() if value is not None}
    auto = given[GMU] == "auto"
    i = MemoryInput(**given | ({GMU: 1.0, "auto": True} if auto else {}))
    wrong = errors(input_findings(i))
    if wrong:
        raise ValueError(f"{wrong[0].message} {wrong[0].remedy}")
    return with_auto(i) if auto else i


def _value(name: str, value: Any) -> Any:
    """The value in its field's type, as far as it makes sense; its range is input_findings'."""
    kind = TYPES[name]
    try:
        if kind == "bool":
            return flag(value)
        if kind == "str":
            return _word(value)
        if kind == "Model":
            model, findings = read_model(plain(value))
            if model is None:
                raise ValueError(findings[0].message.replace("model_config: ", "model: "))
            return model
        if isinstance(value, str) and not (name == GMU and value == "auto"):
            number_of = integer(0, 1 << 62) if kind.startswith("int") else number(float("-inf"), float("inf"))
            return number_of(value)
        return plain(value)
    except BadValue as bad:
        if kind in ("bool", "str", "Model") or not isinstance(value, str):
            raise ValueError(f"{name} is {shown(value)} but must be {bad}.") from None
    return str(value)


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise BadValue("a word")
    return str(value)


def _accounting(name: Any) -> str:
    if name not in (ENGINE, REPORTED):
        raise ValueError(f"accounting is {shown(name)} but must be {ENGINE} or {REPORTED}.")
    return str(name)
