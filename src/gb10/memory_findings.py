"""What the memory plan finds wrong, with the numbers it compared.

An error is where evidence says the start fails or the node freezes: the published sum does not hold, or a measured
node lacks the memory. What only the engine accounting says is a warning with both numbers, where there is a report to
disagree with; for other tensor parallel degrees and models the engine accounting alone decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gb10 import engram, nccl_memory
from gb10.accounting import ENGINE, GIB, Accounting
from gb10.data import load
from gb10.findings import Finding, error, errors, warning
from gb10.memory import MemoryPlan, nccl_lost_gib
from gb10.memory_input import LEAST_GMU, MemoryInput
from gb10.model_config import Plain
from gb10.node_memory import NodeMemory, largest_gmu, node_findings


def memory_findings(i: MemoryInput, plan: MemoryPlan, nodes: Sequence[NodeMemory] = ()) -> list[Finding]:
    """Every check of the memory plan, errors first. ``nodes``: those that were measured, in place of an estimate."""
    nccl = _nccl(i) if i.on_gpu else []
    if i.auto and plan.gmu_recommended is None and i.kv_cache_memory_bytes is None and not errors(nccl):
        return [*_auto(i, plan), *nccl]
    found = [*_settings(i), *nccl]
    if not errors(nccl):  # too many channels are the cause; what they leave no room for would only distract
        found += [*_pool(i, plan), *_requests(plan), *(_room(i, plan) if i.on_gpu else []), *_disagreements(plan)]
    if i.on_gpu:
        found += _headroom(i, plan)
    if plan.start and nodes:
        found += [finding for node in nodes for finding in node_findings(plan.start, node)]
    else:
        found += startup_findings(i)
    return sorted(found, key=lambda f: f.level != "error")


def startup_findings(i: MemoryInput) -> list[Finding]:
    """Whether vLLM's first check is expected to pass: free memory after NCCL is up, against ceil(total x GMU)."""
    if not i.on_gpu or i.kv_cache_memory_bytes is not None:
        return []
    lost = nccl_lost_gib(i)
    total = int(i.node_memory_gib * GIB)
    wanted = math.ceil(total * i.gpu_memory_utilization) / GIB
    before = i.node_memory_gib - i.host_gib
    free = before - lost
    if free >= wanted:
        return []
    safe = largest_gmu(total, int(free * GIB))
    return [
        warning(
            "startup-memory-estimate",
            f"gpu_memory_utilization {i.gpu_memory_utilization:g} wants {wanted:.1f} of {i.node_memory_gib:.2f} GiB, "
            f"{before:.1f} GiB are expected to be available, {free:.1f} after NCCL ({lost:.1f}).",
            f"Use at most {safe:.2f}, or free memory on the node." if safe else "Correct node_memory_gib.",
        )
    ]


# --- checks -----------------------------------------------------------------------------------------------------------


def _settings(i: MemoryInput) -> list[Finding]:
    """Settings the model does not run with."""
    findings = []
    size = load("model_v41")["block_size"]
    if not isinstance(i.model, Plain) and i.block_size != size:
        findings.append(
            error(
                "block-size",
                f"block_size is {i.block_size}; this model's backends agree on {size} only.",
                f"Set block_size to {size}: others stop with 'No common block size'.",
            )
        )
    ranks, heads, kv_heads = (
        i.tensor_parallel,
        i.model.heads,
        i.model.kv_heads if isinstance(i.model, Plain) else i.tensor_parallel,
    )
    if heads % ranks or max(kv_heads, ranks) % min(kv_heads, ranks):
        own = f" and {kv_heads} key-value heads" if isinstance(i.model, Plain) else ""
        findings.append(
            error(
                "heads-split",
                f"{i.model.name} has {heads} attention heads{own}, which {ranks} ranks cannot share evenly.",
                "Choose a tensor_parallel that divides them.",
            )
        )
    elif i.tables is not None and not engram.splits(i.tables, i.tensor_parallel):
        findings.append(
            error(
                "engram-split",
                f"{i.tables.heads} Engram heads cannot be split over {i.tensor_parallel} ranks: one would have none.",
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
    if a.pinned_pool:
        raise_it = f"raise kv_cache_memory_bytes to {a.pool_bytes(1)} or more"
    elif floor <= ceiling:
        raise_it = f"raise gpu_memory_utilization to {floor:g} or more (at most {ceiling:g})"
    else:
        raise_it = f"{_other_ways(i, a)} (no gpu_memory_utilization holds it and keeps the reserve)"
    raised = _sentence(raise_it)
    if a.kv_blocks <= 1:
        used = f"{a.used_gib + a.unexplained_gib:.2f} of the {a.budget_gib:.2f} GiB budget are used before it"
        pinned = f"kv_cache_memory_bytes {a.kv_bytes} is below two blocks of {a.shape.bytes_per_block}, one held back"
        return make(
            f"kv-pool-empty{suffix}",
            f"No memory is left for the KV cache ({_size(a.kv_gib)}, {a.name} accounting): "
            f"{pinned if a.pinned_pool else used}.{other}",
            raised,
        )
    largest = a.largest_model_len
    shorter = f"Set max_model_len to at most {largest}, or {raise_it}." if largest else raised
    if largest and not a.pinned_pool and floor > ceiling:
        shorter = f"Set max_model_len to at most {largest}: no GMU holds {i.max_model_len} and keeps the reserve."
    return make(
        f"kv-pool-too-small{suffix}",
        f"One request of max_model_len {i.max_model_len:,} needs {_size(plan.request_gib)} of KV cache, "
        f"{_size(a.kv_gib)} are left ({a.name} accounting); the largest that fits is {largest:,}.{other}",
        shorter,
    )


def _other_ways(i: MemoryInput, a: Accounting) -> str:
    """What makes room where no GMU does."""
    ways = []
    if a.gmu_ceiling * a.total_gib - a.used_gib - a.unexplained_gib > 0:  # some length fits
        ways.append("shorten max_model_len")
    if i.tables and i.engram == "memory":
        ways.append("put Engram on disk")
    if i.memory_reserve_gib > load("memory")["memory_reserve_gib"]:
        ways.append("lower memory_reserve_gib")
    return ", or ".join([*filter(None, [", ".join(ways)]), "use more nodes"])


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _size(gib: float, digits: int = 2) -> str:
    """GiB, or MiB where GiB would show nothing."""
    return f"{gib * 1024:.{digits}f} MiB" if 0 < abs(gib) < 0.1 else f"{gib:.{digits}f} GiB"


def _requests(plan: MemoryPlan) -> list[Finding]:
    """Whether max_num_seqs requests of full length fit at once."""
    short = [a for a in plan.accountings if a.serves and a.requests < a.max_num_seqs]
    if not short or not plan.deciding.serves:
        return []
    seqs = plan.reported.max_num_seqs
    sums = ", ".join(f"{_size(a.kv_gib)} hold {a.requests:.1f} ({a.name})" for a in plan.accountings)
    floor = max(a.gmu_floor(seqs) for a in plan.accountings)
    raise_it = f"or gpu_memory_utilization {floor:g} would hold them" if floor <= 1 else "no GMU holds all"
    if plan.deciding.pinned_pool:
        raise_it = f"or kv_cache_memory_bytes {plan.deciding.pool_bytes(seqs)} would hold them"
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
    least, most = LEAST_GMU, a.gmu_ceiling
    name, value = "gpu_memory_utilization", f"{i.gpu_memory_utilization:g}"
    if a.pinned_pool:
        most = a.kv_bytes - math.ceil((a.reserve_gib - a.headroom_gib) * GIB)
        name, value, least = "kv_cache_memory_bytes", str(a.kv_bytes), 1
    result: Finding = make(
        code,
        f"{a.headroom_gib:.1f} GiB of {a.total_gib:.2f} are left to the operating system at {name} "
        f"{value}{outside} ({a.name} accounting); the reserve is {i.memory_reserve_gib:g}.",
        f"Use at most {most if a.pinned_pool else format(most, 'g')}."
        if most >= least
        else "No number keeps it: lower memory_reserve_gib, or correct node_memory_gib.",
    )
    return result


def _auto(i: MemoryInput, plan: MemoryPlan) -> list[Finding]:
    """No GMU for ``auto`` to become."""
    sums = ", ".join(f"from {a.gmu_floor():g} to {a.gmu_ceiling:g} ({a.name})" for a in plan.accountings)
    reserve = plan.reported.reserve_gib
    return [
        error(
            "gmu-auto-none",
            "gpu_memory_utilization is auto, but no number holds one request of full length and keeps the reserve of "
            f"{reserve:g} GiB: {sums}.",
            _sentence(f"{_other_ways(i, plan.engine)}; or give the number yourself"),
        )
    ]


def _room(i: MemoryInput, plan: MemoryPlan) -> list[Finding]:
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
                    _sentence(_other_ways(i, a)),
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
