"""The memory plan of one rank, in two accountings: what the report adds up, and what vLLM does.

``reported``: budget = GMU x whole GiB of the node; inside it weights, Engram, NCCL, CUDA graphs and the AutoTune peak,
as the deployment report sums them. What the report's own sum leaves beyond the KV pool it reports is ``unexplained``.

``engine``: vLLM takes its snapshot after NCCL is up, so NCCL and the context lie outside; requested = ceil(total x
GMU); the pool is what weights, Engram, CUDA graphs and the profiling peak leave of it. On GB10 pinned host memory is
device memory. The figures reproduce published boots and are those of the smallest rank, which decides for all.

GiB = 2^30 bytes, everywhere. Judgements are in memory_findings.py, the printed form in memory_table.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gb10 import nccl_memory
from gb10.accounting import ENGINE, GIB, REPORTED, Accounting, Component, Kind, rounded
from gb10.data import load
from gb10.engram import EngramShard, engram_gib, engram_split, splits
from gb10.kv_cache import largest_length, pool_blocks
from gb10.memory_input import MemoryInput
from gb10.model_config import Deepseek, builtin
from gb10.node_memory import Start


@dataclass(frozen=True)
class Disagreement:
    """A place where the report and the evidence give two numbers."""

    what: str
    reported: float
    evidence: float
    unit: str
    note: str


@dataclass(frozen=True)
class MemoryPlan:
    """Both accountings of one rank and what follows from them."""

    input: MemoryInput
    reported: Accounting
    engine: Accounting
    published: bool
    """Whether the report, or the published boot it is compared with, covers this tensor parallel and Engram place."""
    request_gib: float
    gmu_recommended: float | None
    disagreements: tuple[Disagreement, ...]
    engram_shards: tuple[EngramShard, ...]
    nccl_pinned_gib: float
    dev_shm_bytes: int
    start: Start | None
    """What a start asks of every node; None where vLLM checks nothing (no GPU, or the pool given in bytes)."""

    @property
    def device(self) -> str:
        """As vLLM's log names it."""
        return "GPU" if self.input.on_gpu else "CPU"

    @property
    def accountings(self) -> tuple[Accounting, Accounting]:
        """Reported first."""
        return self.reported, self.engine

    @property
    def deciding(self) -> Accounting:
        """The accounting whose verdict is an error: the reported one where there is a report."""
        return self.reported if self.published else self.engine

    def as_dict(self) -> dict[str, Any]:
        """JSON form; the same input gives the same bytes."""
        i = self.input
        return {
            "model": i.model.name,
            "accelerator": i.accelerator,
            "tensor_parallel": i.tensor_parallel,
            "max_model_len": i.max_model_len,
            "max_num_seqs": i.max_num_seqs,
            "max_num_batched_tokens": i.max_num_batched_tokens,
            "engram": i.engram if i.tables else "none",
            "memory_reserve_gib": i.memory_reserve_gib,
            "kv_cache_memory_bytes": i.kv_cache_memory_bytes,
            "gpu_memory_utilization": i.gpu_memory_utilization,
            "gpu_memory_utilization_given": "auto" if i.auto else i.gpu_memory_utilization,
            REPORTED: self.reported.as_dict(self.device),
            ENGINE: self.engine.as_dict(self.device),
            "deciding": self.deciding.name,
            "kv_layout": self.reported.shape.name,
            "bytes_per_block": self.reported.shape.bytes_per_block,
            "blocks_per_request": self.reported.blocks_per_request,
            "request_gib": rounded(self.request_gib),
            "gmu_recommended": self.gmu_recommended,
            "nccl_pinned_gib": rounded(self.nccl_pinned_gib),
            "dev_shm_bytes": self.dev_shm_bytes,
            "engram_rows": [shard.as_dict() for shard in self.engram_shards],
            "start": asdict(self.start) if self.start else None,
            "nodes": [],
            "disagreements": [
                {**asdict(d), "reported": rounded(d.reported), "evidence": rounded(d.evidence)}
                for d in self.disagreements
            ],
        }


def plan_memory(i: MemoryInput) -> MemoryPlan:
    """Both accountings for checked input (memory_findings.input_findings says what is wrong with unchecked input).

    Raises ValueError for an unknown layout, or speculation deeper than the layout's ring.
    """
    row = _reported_row(i)
    reported, engine = _reported(i, row), _engine(i)
    tables = i.tables
    split = tables is not None and splits(tables, i.tensor_parallel)
    return MemoryPlan(
        input=i,
        reported=reported,
        engine=engine,
        published=row is not None,
        request_gib=engine.blocks_per_request * engine.shape.bytes_per_block / GIB,
        gmu_recommended=_recommended(reported, engine) if i.kv_cache_memory_bytes is None else None,
        disagreements=tuple(_disagreements(i, row, reported, engine)),
        engram_shards=tuple(engram_split(tables, i.tensor_parallel)) if tables and split else (),
        nccl_pinned_gib=nccl_memory.nccl_host_bytes(*_nccl(i)) / GIB if i.on_gpu else 0.0,
        dev_shm_bytes=nccl_memory.dev_shm_bytes(i.nccl_communicators) if i.on_gpu and i.tensor_parallel > 1 else 0,
        start=start(i),
    )


def start(i: MemoryInput) -> Start | None:
    """What a start asks of every node: GMU x its memory, once NCCL and the CUDA context are there."""
    if not i.on_gpu or i.kv_cache_memory_bytes is not None:
        return None
    before = nccl_lost_gib(i) + float(load("memory")["cuda_context_gib"])
    return Start(i.gpu_memory_utilization, round(before, 4), i.memory_reserve_gib)


def nccl_lost_gib(i: MemoryInput) -> float:
    """What the node loses to NCCL, host and GPU side."""
    many = i.nccl_communicators if i.tensor_parallel > 1 else 0
    lost = nccl_memory.available_loss_bytes(*_nccl(i)) + nccl_memory.gpu_bytes(i.nccl_max_nchannels, many)
    return lost / GIB


def gmu_floor(i: MemoryInput, requests: int = 1, accounting: str = ENGINE) -> float:
    """Smallest GMU whose pool holds ``requests`` of ``max_model_len``; above 1 when none does."""
    return _accounting(i, accounting).gmu_floor(requests)


def gmu_ceiling(i: MemoryInput, accounting: str = ENGINE) -> float:
    """Largest GMU that keeps the reserve."""
    return _accounting(i, accounting).gmu_ceiling


def gmu_recommended(i: MemoryInput) -> float | None:
    """The highest GMU that serves and keeps the reserve in both accountings, in steps of 0.01 if possible; or None."""
    return _recommended(_accounting(i, REPORTED), _accounting(i, ENGINE))


def with_gmu(i: MemoryInput, gmu: float) -> MemoryInput:
    """The same input at another GMU."""
    return replace(i, gpu_memory_utilization=gmu)


def with_auto(i: MemoryInput) -> MemoryInput:
    """The same input at the recommended GMU; at the highest that keeps the reserve where none also serves."""
    best = gmu_recommended(i)
    if best is None:
        best = max(0.01, min(gmu_ceiling(i, name) for name in (REPORTED, ENGINE)))
    return replace(i, gpu_memory_utilization=best, auto=True)


def _accounting(i: MemoryInput, name: str) -> Accounting:
    if name not in (REPORTED, ENGINE):
        raise ValueError(f"accounting is {REPORTED} or {ENGINE}, not {name!r}")
    return _reported(i, _reported_row(i)) if name == REPORTED else _engine(i)


def _recommended(reported: Accounting, engine: Accounting) -> float | None:
    floor = max(reported.gmu_floor(), engine.gmu_floor())
    ceiling = min(reported.gmu_ceiling, engine.gmu_ceiling)
    if floor > ceiling:
        return None
    step = math.floor(ceiling * 100 + 1e-6) / 100
    return step if step >= floor else ceiling


# --- reported ---------------------------------------------------------------------------------------------------------


def _reported_row(i: MemoryInput) -> Mapping[str, Any] | None:
    """The published sum for this tensor parallel and place of Engram."""
    if not i.measured or not i.on_gpu or i.weights_gib is not None:
        return None
    for row in load("model_v41")["reported"]:
        if row["tensor_parallel"] == i.tensor_parallel and row["engram"] == i.engram:
            return dict(row)
    return None


def _reported(i: MemoryInput, row: Mapping[str, Any] | None) -> Accounting:
    total = float(math.floor(i.node_memory_gib)) if i.on_gpu else i.node_memory_gib
    if row is None:
        components = [_weights(i), *_engram(i)]
        if i.on_gpu:
            components += [*_nccl_as_reported(i), _graphs(i), *_autotune(i)]
        return _account(i, REPORTED, total, i.gpu_memory_utilization * total, components, [], 0.0, None)
    components = _row_components(i, row)
    own = replace(i, nccl_max_nchannels=8, flashinfer_autotune=row["flashinfer_autotune"])
    node = float(math.floor(load("memory")["node_memory_gib"]))
    left = row["gpu_memory_utilization"] * node - sum(c.gib for c in _row_components(own, row))
    # Of exactly these settings the row has the pool itself; those it does not name are MemoryInput's defaults.
    settings = ("gpu_memory_utilization", "max_model_len", "flashinfer_autotune")
    usual = ("max_num_seqs", "max_num_batched_tokens", "num_speculative_tokens", "kv_layout")
    same = (
        all(getattr(i, name) == row[name] for name in settings)
        and all(getattr(i, name) == getattr(MemoryInput, name) for name in usual)
        and i.nccl_max_nchannels == 8
        and i.kv_cache_memory_bytes is None
        and total == node
    )
    unexplained = round(left - row["kv"], 6)
    budget = i.gpu_memory_utilization * total
    return _account(i, REPORTED, total, budget, components, [], unexplained, row["kv"] if same else None)


def _row_components(i: MemoryInput, row: Mapping[str, Any]) -> list[Component]:
    kind: Kind = "reported" if row["nccl"] else "measured"
    components = [Component("weights", float(row["weights"]), kind, row["source"])]
    if row["engram_gib"]:
        components.append(Component("engram", float(row["engram_gib"]), kind, row["source"]))
    if row["nccl"]:
        components += [*_nccl_as_reported(i), *_autotune(i)]
    return [*components, Component("cuda-graphs", float(row["cuda_graphs"]), kind, row["source"])]


def _nccl_as_reported(i: MemoryInput) -> list[Component]:
    data = load("nccl")
    if i.tensor_parallel < data["reported_ranks"]:
        return []
    points = {point["channels"] for point in data["reported"]}
    channels = data["default_channels"] if i.nccl_max_nchannels is None else i.nccl_max_nchannels
    kind: Kind = "reported" if channels in points else "derived"
    return [Component("nccl", nccl_memory.nccl_reported_gib(channels), kind, f"report 4.1, {channels} channels")]


def _autotune(i: MemoryInput) -> list[Component]:
    if not i.flashinfer_autotune:
        return []
    return [Component("autotune-peak", float(load("model_v41")["autotune_peak"]), "reported", "report 6.2")]


# --- engine -----------------------------------------------------------------------------------------------------------


def _engine(i: MemoryInput) -> Accounting:
    total = i.node_memory_gib
    requested = math.ceil(int(total * GIB) * i.gpu_memory_utilization) / GIB
    components = [_calibrated(i, "weights") or _weights(i), *_engram(i)]
    outside = []
    if i.on_gpu:
        components.append(_calibrated(i, "cuda-graphs") or _graphs(i))
        components.append(_calibrated(i, "profiling-peak") or _profiling(i))
        outside = [
            Component("nccl", nccl_lost_gib(i), "derived", "measured formula, published MemAvailable of eight Sparks"),
            Component("host-and-context", i.host_gib, "derived", "MemAvailable of a serving 8-Spark site"),
        ]
    return _account(i, ENGINE, total, requested, components, outside, 0.0, None, _growth(i) if i.on_gpu else 0.0)


def _calibrated(i: MemoryInput, name: str) -> Component | None:
    """What this cluster measured itself; a given figure of weights still wins."""
    measured = i.calibrated.get("components") or {}
    if name not in measured or (name == "weights" and i.weights_gib is not None):
        return None
    gib = float(measured[name])
    if name == "profiling-peak":  # it was measured at another context
        start = load("model_v41")["profiling"]["growth"]["from"]
        then = int(i.calibrated.get("max_model_len") or 0)
        gib = max(0.0, gib + _growth(i) * (max(0, i.max_model_len - start) - max(0, then - start)))
    return Component(name, gib, "measured", f"this cluster's own boot, run {i.calibrated.get('run')}")


def _weights(i: MemoryInput) -> Component:
    if i.weights_gib is not None:
        return Component("weights", i.weights_gib, "given", "model_weights_gib")
    if not i.measured:
        return Component("weights", _stored(i) / i.tensor_parallel / GIB, "derived", "bytes of the checkpoint / ranks")
    data = load("model_v41")["weights"]
    return _by_degree("weights", i.tensor_parallel, data["measured"], data["source"])


def _stored(i: MemoryInput) -> int:
    """Bytes of the checkpoint without the Engram tables, which are counted apart."""
    tables = i.model.engram if isinstance(i.model, Deepseek) else None
    apart = engram_split(tables, 1)[0].bytes if tables else 0
    return max(0, (i.weight_bytes or 0) - apart)


def _graphs(i: MemoryInput) -> Component:
    data = load("model_v41")["cuda_graphs"]
    measured = data["measured"]
    degree = _nearest(measured, i.tensor_parallel)
    kind: Kind = "measured" if degree == i.tensor_parallel and i.measured else "derived"
    return Component("cuda-graphs", float(measured[degree]), kind, _as_flash(i, data["source"][degree]))


def _engram(i: MemoryInput) -> list[Component]:
    tables = i.tables
    if tables is None or i.engram != "memory":
        return []
    gib = engram_gib(tables, i.tensor_parallel)
    return [Component("engram", gib, "derived", f"rows x {tables.row_bytes} B of the largest rank")]


def _profiling(i: MemoryInput) -> Component:
    """Activation peak and workspaces; grows with the context, less so the more ranks share the indexer."""
    data = load("model_v41")["profiling"]
    points = data["autotune_on" if i.flashinfer_autotune else "autotune_off"]
    gib = points[_nearest(points, i.tensor_parallel)] + _growth(i) * max(0, i.max_model_len - data["growth"]["from"])
    return Component("profiling-peak", float(gib), "derived", _as_flash(i, data["source"]))


def _as_flash(i: MemoryInput, source: str) -> str:
    """The source of a figure that only DeepSeek-V4.1-Flash has, and that stands in for another model's."""
    return source if i.measured else f"that of {builtin().name}: {source}"


def _growth(i: MemoryInput) -> float:
    """GiB the profiling peak grows per token of max_model_len beyond the shortest measured one."""
    grow = load("model_v41")["profiling"]["growth"]
    return float(grow["gib"] / (grow["to"] - grow["from"]) * grow["tensor_parallel"] / i.tensor_parallel)


def _by_degree(name: str, degree: int, measured: Mapping[int, float], source: Mapping[int, str]) -> Component:
    """Measured where it is; else from the two measured degrees: sharded / TP + replicated."""
    if degree in measured:
        return Component(name, float(measured[degree]), "measured", source[degree])
    a, b = sorted(measured)
    sharded = (measured[a] - measured[b]) / (1 / a - 1 / b)
    gib = sharded / degree + measured[b] - sharded / b
    return Component(name, gib, "derived", f"from the measured {name} at TP{a} and TP{b}")


def _nearest(points: Mapping[int, Any], degree: int) -> int:
    return min(points, key=lambda known: (abs(known - degree), known))


# --- both -------------------------------------------------------------------------------------------------------------


def _account(
    i: MemoryInput,
    name: str,
    total: float,
    budget: float,
    components: list[Component],
    outside: list[Component],
    unexplained: float,
    published: float | None,
    growth: float = 0.0,
) -> Accounting:
    shape = i.shape()
    k = i.num_speculative_tokens
    left = budget - sum(c.gib for c in components) - unexplained
    pinned = i.kv_cache_memory_bytes is not None
    kv = _bytes(left) if i.kv_cache_memory_bytes is None else i.kv_cache_memory_bytes
    limit = i.model_limit or max(i.max_model_len, 1 << 24)
    start = load("model_v41")["profiling"]["growth"]["from"]

    def holds(tokens: int, pool: int) -> bool:
        return pool_blocks(pool, shape) > shape.blocks(tokens, i.max_num_batched_tokens, k)

    def pool_at(tokens: int) -> int:
        return kv if pinned else _bytes(left + growth * (max(0, i.max_model_len - start) - max(0, tokens - start)))

    return Accounting(
        name=name,
        total_gib=total,
        budget_gib=budget,
        components=tuple(components),
        outside=tuple(outside),
        unexplained_gib=unexplained,
        kv_bytes=kv,
        kv_published_gib=published,
        reserve_gib=i.memory_reserve_gib,
        shape=shape,
        blocks_per_request=shape.blocks(i.max_model_len, i.max_num_batched_tokens, k),
        max_model_len=i.max_model_len,
        max_num_seqs=i.max_num_seqs,
        largest_model_len=largest_length(limit, lambda tokens: holds(tokens, pool_at(tokens))),
        estimated_model_len=largest_length(i.max_model_len, lambda tokens: holds(tokens, kv)),
        pinned_pool=pinned,
    )


def _disagreements(
    i: MemoryInput, row: Mapping[str, Any] | None, reported: Accounting, engine: Accounting
) -> list[Disagreement]:
    """Every pair of numbers that should be one, where there is a report."""
    if row is None:
        return []
    found = []
    if reported.kv_published_gib is not None and abs(reported.unexplained_gib) >= 0.01:
        note = "the KV pool as published, and what the published sum leaves for it"
        found.append(Disagreement("kv-sum", reported.kv_published_gib, reported.left_gib, "GiB", note))
    for name in ("weights", "nccl", "cuda-graphs"):
        mine = {c.name: c for c in (*engine.components, *engine.outside)}.get(name)
        theirs = {c.name: c for c in reported.components}.get(name)
        if mine and theirs and abs(mine.gib - theirs.gib) >= 0.5:
            note = f"{mine.kind}: {mine.source}"
            if name == "nccl":
                note += "; lies outside the budget, and the report's figure holds 7.5 to 9 GiB that is not NCCL's"
            found.append(Disagreement(name, theirs.gib, mine.gib, "GiB", note))
    if abs(reported.kv_gib - engine.kv_gib) >= 0.5:
        note = "what vLLM should find on its smallest rank, by published boots"
        found.append(Disagreement("kv-pool", reported.kv_gib, engine.kv_gib, "GiB", note))
    tokens = row["tokens"] if reported.kv_published_gib is not None else None
    if tokens and abs(reported.tokens / tokens - 1) >= 0.01:
        size = tokens / i.max_model_len * reported.blocks_per_request * reported.shape.bytes_per_block / GIB
        note = f"the tokens are a pool of {size:.2f} GiB: each rank logs its own GiB, the smallest rank sets the tokens"
        found.append(Disagreement("kv-tokens", tokens, reported.tokens, "tokens", note))
    return found


def _nccl(i: MemoryInput) -> tuple[int | None, int, int | None, int | None, int]:
    return i.nccl_max_nchannels, i.tensor_parallel, i.nccl_buffsize, i.nccl_ll128_buffsize, i.nccl_communicators


def _bytes(gib: float) -> int:
    """Whole bytes, rounded first to 0.000001 GiB, so that 8.7 GiB is 8.7 and not 8.6999999."""
    return int(round(gib, 6) * GIB)
