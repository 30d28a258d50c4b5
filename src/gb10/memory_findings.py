"""What the memory plan finds wrong, with the numbers it compared.

An error is where evidence says the start fails or the node freezes: the published sum does not hold, or a measured
node lacks the memory. What only the engine accounting says is a warning with both numbers, where there is a report to
disagree with; for other tensor parallel degrees and models the engine accounting alone decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gb10 import nccl_memory
from gb10.data import load
from gb10.findings import Finding, error, errors, warning
from gb10.memory import ENGINE, GIB, Accounting, MemoryInput, MemoryPlan, engram_splits

MODEL_KEYS = ("weights_gib", "layers", "kv_heads", "head_size", "dtype_bytes")


def input_findings(i: MemoryInput) -> list[Finding]:
    """Errors that make a plan impossible: absurd numbers, unknown layouts, speculation too deep."""
    findings = [f for f in (_number(i, *rule) for rule in _RULES) if f]
    if i.engram not in ("memory", "disk", "none"):
        findings.append(_invalid("engram", i.engram, "memory, disk or none"))
    if i.model is not None:
        findings += _model_findings(i.model)
    if findings:
        return findings
    try:
        i.shape().blocks(i.max_model_len, i.max_num_batched_tokens, i.num_speculative_tokens)
    except ValueError as bad:
        return [error("memory-input", f"{bad}.", "Correct kv_layout, the model or num_speculative_tokens.")]
    return []


def memory_findings(i: MemoryInput, plan: MemoryPlan, node: str = "") -> list[Finding]:
    """Every check of the memory plan, errors first. ``node`` names the node the input was measured on, if one was."""
    nccl = _nccl(i) if i.on_gpu else []
    found = [*_settings(i), *nccl]
    if not errors(nccl):  # too many channels are the cause; what they leave no room for would only distract
        found += [*_pool(i, plan), *_requests(plan), *(_room(plan) if i.on_gpu else []), *_disagreements(plan)]
    if i.on_gpu:
        found += [*_headroom(i, plan), *startup_findings(i)]
    named = [Finding(f.level, node, f.code, f.message, f.remedy) for f in found]
    return sorted(named, key=lambda f: f.level != "error")


def startup_findings(i: MemoryInput, node: str = "") -> list[Finding]:
    """Whether vLLM's first check passes: free memory after NCCL is up, against ceil(total x GMU).

    An error when ``mem_available_gib`` was measured on the node; without it an estimate, hence a warning.
    """
    if not i.on_gpu or i.kv_cache_memory_bytes is not None:
        return []
    many = i.nccl_communicators if i.tensor_parallel > 1 else 0
    args = (i.nccl_max_nchannels, i.tensor_parallel, i.nccl_buffsize, i.nccl_ll128_buffsize, many)
    lost = (nccl_memory.available_loss_bytes(*args) + nccl_memory.gpu_bytes(i.nccl_max_nchannels, many)) / GIB
    wanted = math.ceil(int(i.node_memory_gib * GIB) * i.gpu_memory_utilization) / GIB
    measured = i.mem_available_gib is not None
    if i.mem_available_gib is not None:
        before, context = i.mem_available_gib, float(load("memory")["cuda_context_gib"])
    else:
        before, context = i.node_memory_gib - i.host_gib, 0.0
    free = before - lost - context
    if free >= wanted:
        return []
    safe = max(0.0, math.floor(free / i.node_memory_gib * 1000) / 1000)
    message = (
        f"gpu_memory_utilization {i.gpu_memory_utilization:g} wants {wanted:.1f} of {i.node_memory_gib:.2f} GiB, "
        f"{before:.1f} GiB {'are available' if measured else 'are expected to be available'}, "
        f"{free:.1f} after NCCL and the CUDA context ({lost + context:.1f})."
    )
    remedy = f"Use at most {safe:.3f}, or free memory on the node."
    if measured:
        return [error("startup-memory", message, remedy, node)]
    return [warning("startup-memory-estimate", message, remedy, node)]


# --- input ------------------------------------------------------------------------------------------------------------

_RULES: tuple[tuple[str, type, float, float, bool], ...] = (
    # name, type, smallest, largest, may be None
    ("tensor_parallel", int, 1, 1024, False),
    ("gpu_memory_utilization", float, 0.01, 1.0, False),
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
    ("mem_available_gib", float, 0, 1 << 16, True),
    ("weights_gib", float, 0, 1 << 16, True),
    ("kv_cache_memory_bytes", int, 1, 1 << 46, True),
)


def _number(i: MemoryInput, name: str, kind: type, low: float, high: float, optional: bool) -> Finding | None:
    value = getattr(i, name)
    if value is None and optional:
        return None
    good = isinstance(value, int) if kind is int else isinstance(value, int | float)
    if good and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high:
        return None
    return _invalid(name, value, f"{'an integer' if kind is int else 'a number'} from {low:g} to {high:g}")


def _model_findings(model: Mapping[str, Any]) -> list[Finding]:
    findings = []
    for key in MODEL_KEYS:
        value = model.get(key)
        whole = key != "weights_gib"
        good = isinstance(value, int) if whole else isinstance(value, int | float)
        if value is None or not good or isinstance(value, bool) or not math.isfinite(value) or value < whole:
            findings.append(_invalid(f"model {key}", value, "a positive integer" if whole else "a number from 0"))
    limit = model.get("max_model_len")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        findings.append(_invalid("model max_model_len", limit, "a positive integer"))
    if model.get("accelerator", "gpu") not in ("gpu", "cpu"):
        findings.append(_invalid("model accelerator", model.get("accelerator"), "gpu or cpu"))
    return findings


def _invalid(name: str, value: Any, right: str) -> Finding:
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    return error("memory-input", f"{name} is {shown} but must be {right}.", "Correct the variable.")


# --- checks -----------------------------------------------------------------------------------------------------------


def _settings(i: MemoryInput) -> list[Finding]:
    """Settings the model does not run with."""
    findings = []
    size = load("model_v41")["block_size"]
    if i.model is None and i.block_size != size:
        findings.append(
            error(
                "block-size",
                f"block_size is {i.block_size}; this model's backends agree on {size} only.",
                f"Set block_size to {size}: others stop with 'No common block size'.",
            )
        )
    if i.model is None and i.engram != "none" and not engram_splits(i):
        heads = load("model_v41")["engram"]["heads"]
        findings.append(
            error(
                "engram-split",
                f"{heads} Engram heads cannot be split over {i.tensor_parallel} ranks: one would have none.",
                "Use 8, 4 or 2 ranks.",
            )
        )
    if i.model_limit is not None and i.max_model_len > i.model_limit:
        findings.append(
            error(
                "max-model-len-above-model",
                f"max_model_len {i.max_model_len:,} is above the model's own {i.model_limit:,}.",
                f"Set max_model_len to at most {i.model_limit}.",
            )
        )
    if i.on_gpu and i.kv_cache_memory_bytes is not None:
        findings.append(
            warning(
                "kv-cache-memory-bytes",
                f"kv_cache_memory_bytes {i.kv_cache_memory_bytes} makes vLLM ignore "
                f"gpu_memory_utilization {i.gpu_memory_utilization:g} and skip its own memory check.",
                "Leave it null unless the node's memory was measured.",
            )
        )
    return findings


def _pool(i: MemoryInput, plan: MemoryPlan) -> list[Finding]:
    """KV > 0, and one request of full length fits; else the largest length that does."""
    verdict = plan.deciding
    if not verdict.serves:
        return [_pool_finding(i, plan, verdict)]
    if plan.published and not plan.engine.serves:
        return [_pool_finding(i, plan, plan.engine)]
    return []


def _pool_finding(i: MemoryInput, plan: MemoryPlan, a: Accounting) -> Finding:
    firm = a is plan.deciding
    make, suffix = (error, "") if firm else (warning, "-engine")
    other = "" if firm or a.name != ENGINE else f" The reported sum leaves {plan.reported.kv_gib:.2f} GiB."
    floor, ceiling = a.gmu_floor(), a.gmu_ceiling
    if i.kv_cache_memory_bytes is not None:
        raise_it = "raise kv_cache_memory_bytes"
    elif floor <= ceiling:
        raise_it = f"raise gpu_memory_utilization to {floor:g} or more (at most {ceiling:g})"
    else:
        raise_it = "free memory: no gpu_memory_utilization holds it and keeps the reserve"
    if a.kv_blocks <= 1:
        spent = f"{a.used_gib + a.unexplained_gib:.2f} of the {a.budget_gib:.2f} GiB budget are used before it"
        return make(
            f"kv-pool-empty{suffix}",
            f"No memory is left for the KV cache ({a.kv_gib:.2f} GiB, {a.name} accounting): {spent}.{other}",
            f"{raise_it[0].upper()}{raise_it[1:]}.",
        )
    largest = a.largest_model_len
    shorter = f"Set max_model_len to at most {largest}, or {raise_it}." if largest else f"{raise_it.capitalize()}."
    return make(
        f"kv-pool-too-small{suffix}",
        f"One request of max_model_len {i.max_model_len:,} needs {_size(plan.request_gib)} of KV cache, "
        f"{_size(a.kv_gib)} are left ({a.name} accounting); the largest that fits is {largest:,}.{other}",
        shorter,
    )


def _size(gib: float, digits: int = 2) -> str:
    """GiB, or MiB where GiB would show nothing."""
    return f"{gib * 1024:.{digits}f} MiB" if abs(gib) < 0.1 else f"{gib:.{digits}f} GiB"


def _requests(plan: MemoryPlan) -> list[Finding]:
    """Whether max_num_seqs requests of full length fit at once."""
    short = [a for a in plan.accountings if a.serves and a.requests < a.max_num_seqs]
    if not short or not plan.deciding.serves:
        return []
    seqs = plan.reported.max_num_seqs
    sums = ", ".join(f"{_size(a.kv_gib)} hold {a.requests:.1f} ({a.name})" for a in plan.accountings)
    floor = max(a.gmu_floor(seqs) for a in plan.accountings)
    raise_it = f"or gpu_memory_utilization {floor:g} would hold them" if floor <= 1 else "no GMU holds all"
    return [
        warning(
            "requests-below-max-num-seqs",
            f"Fewer requests of full length fit at once than max_num_seqs {seqs}: {sums}, "
            f"each {_size(plan.request_gib, 4)}.",
            f"Longer ones wait or are preempted; fewer max_num_seqs, a shorter max_model_len, {raise_it}.",
        )
    ]


def _nccl(i: MemoryInput) -> list[Finding]:
    """Channel count and buffer size."""
    data = load("nccl")
    findings = []
    default = int(data["default_channels"])
    channels = default if i.nccl_max_nchannels is None else i.nccl_max_nchannels
    if i.tensor_parallel >= data["reported_ranks"] and channels >= default:
        given = "not set (64 channels by default)" if i.nccl_max_nchannels is None else str(channels)
        pinned = nccl_memory.nccl_host_bytes(
            channels, i.tensor_parallel, i.nccl_buffsize, i.nccl_ll128_buffsize, i.nccl_communicators
        )
        findings.append(
            error(
                "nccl-channels",
                f"NCCL_MAX_NCHANNELS is {given} at TP{i.tensor_parallel}: "
                f"{nccl_memory.nccl_reported_gib(channels):.0f} GiB a rank as reported "
                f"({nccl_memory.nccl_reported_gib(8):.0f} with 8 channels); "
                f"{pinned / GIB:.1f} GiB of pinned buffers by the measured formula.",
                'Set NCCL_MAX_NCHANNELS to "8".',
            )
        )
    if i.tensor_parallel > 1 and i.nccl_buffsize is not None and i.nccl_buffsize > data["buffsize"]:
        cost, usual = (
            nccl_memory.nccl_host_bytes(
                i.nccl_max_nchannels, i.tensor_parallel, size, i.nccl_ll128_buffsize, i.nccl_communicators
            )
            / GIB
            for size in (i.nccl_buffsize, 1 << 20)
        )
        findings.append(
            warning(
                "nccl-buffsize",
                f"NCCL_BUFFSIZE {i.nccl_buffsize} pins {cost:.2f} GiB a rank ({channels} channels, "
                f"{i.nccl_communicators} communicators); 1048576 pins {usual:.2f}.",
                'Set NCCL_BUFFSIZE to "1048576".',
            )
        )
    return findings


def _headroom(i: MemoryInput, plan: MemoryPlan) -> list[Finding]:
    """Whether the operating system keeps its reserve once the budget is used up."""
    a = plan.reported
    if a.headroom_gib < i.memory_reserve_gib - 1e-9:
        return [_headroom_finding(i, a, error, "host-headroom")]
    if plan.engine.headroom_gib < i.memory_reserve_gib - 1e-9:
        return [_headroom_finding(i, plan.engine, warning, "host-headroom-engine")]
    return []


def _headroom_finding(i: MemoryInput, a: Accounting, make: Any, code: str) -> Finding:
    outside = f", {a.outside_gib:.1f} outside the budget" if a.outside else ""
    result: Finding = make(
        code,
        f"{a.headroom_gib:.1f} GiB of {a.total_gib:.2f} are left to the operating system at gpu_memory_utilization "
        f"{i.gpu_memory_utilization:g}{outside} ({a.name} accounting); the reserve is {i.memory_reserve_gib:g}.",
        f"Use at most {a.gmu_ceiling:g}." if not a.pinned_pool else "Lower kv_cache_memory_bytes.",
    )
    return result


def _room(plan: MemoryPlan) -> list[Finding]:
    """A GMU must exist that both serves and keeps the reserve."""
    for a in plan.accountings:
        floor, ceiling = a.gmu_floor(), a.gmu_ceiling
        if floor > ceiling and not a.pinned_pool:
            make, suffix = (error, "") if a is plan.deciding else (warning, "-engine")
            return [
                make(
                    f"gmu-no-room{suffix}",
                    f"No gpu_memory_utilization both holds one request of full length (from {floor:g}) and keeps "
                    f"the reserve of {a.reserve_gib:g} GiB (up to {ceiling:g}), {a.name} accounting.",
                    "Shorten max_model_len, put Engram on disk, or use more nodes.",
                )
            ]
    return []


def _disagreements(plan: MemoryPlan) -> list[Finding]:
    """Where the report and the evidence give two numbers for the pool or the weights."""
    remedy = "Both are in the plan; trust what the node logs at the first start."
    texts = {
        "kv-pool": (
            "kv-accountings-disagree",
            "The KV pool is {0:.2f} GiB as reported, {1:.2f} by vLLM's own steps",
        ),
        "weights": ("weights-disagree", "Weights are {0:.2f} GiB a rank as reported and {1:.2f} as measured"),
    }
    return [
        warning(texts[d.what][0], f"{texts[d.what][1].format(d.reported, d.evidence)} ({d.note}).", remedy)
        for d in plan.disagreements
        if d.what in texts and not plan.reported.pinned_pool
    ]
