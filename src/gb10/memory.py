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
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from gb10 import engram, nccl_memory
from gb10.data import load
from gb10.kv_cache import KvLayout, full_attention, largest_length, layout, pool_blocks

GIB = 1 << 30
Kind = Literal["measured", "reported", "derived", "given"]
REPORTED, ENGINE = "reported", "engine"


def _constant(name: str) -> Any:
    return field(default_factory=lambda: float(load("memory")[name]))


@dataclass(frozen=True)
class MemoryInput:
    """What the plan is made from. GiB are of one node; ``None`` for NCCL means the variable is not set."""

    tensor_parallel: int
    gpu_memory_utilization: float
    max_model_len: int
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 8192
    block_size: int = 128
    num_speculative_tokens: int = 5
    engram: str = "memory"
    """``memory``, ``disk`` or ``none``."""
    kv_layout: str = "sm12x-64-state"
    """``sm12x-64-state``, ``stock``, or ``full-attention`` (needs ``model``)."""
    flashinfer_autotune: bool = False
    nccl_max_nchannels: int | None = None
    nccl_buffsize: int | None = None
    nccl_ll128_buffsize: int | None = None
    nccl_communicators: int = 2
    node_memory_gib: float = _constant("node_memory_gib")
    memory_reserve_gib: float = _constant("memory_reserve_gib")
    host_gib: float = _constant("host_gib")
    """Outside the budget while serving, NCCL apart: operating system, CUDA context."""
    mem_available_gib: float | None = None
    """MemAvailable of a real node before the start; without it the start-up check is an estimate."""
    weights_gib: float | None = None
    """Weights of one rank, Engram apart, in place of both accountings' figures."""
    kv_cache_memory_bytes: int | None = None
    """vLLM then ignores GMU and skips profiling."""
    model: Mapping[str, Any] | None = None
    """Another model than DeepSeek-V4.1-Flash: ``name``, ``weights_gib``, ``layers``, ``kv_heads``, ``head_size``,
    ``dtype_bytes``; optional ``max_model_len`` and ``accelerator`` (``gpu``, or ``cpu`` for an engine without GPU)."""

    @property
    def on_gpu(self) -> bool:
        """Whether NCCL, CUDA graphs and the shared memory of GB10 play a part."""
        return self.model is None or self.model.get("accelerator", "gpu") == "gpu"

    @property
    def model_limit(self) -> int | None:
        """The checkpoint's own longest context in tokens, where known."""
        limit = load("model_v41")["max_model_len"] if self.model is None else self.model.get("max_model_len")
        return None if limit is None else int(limit)

    def shape(self) -> KvLayout:
        """The KV layout in force."""
        if self.kv_layout != "full-attention":
            if self.model is not None:
                raise ValueError(f"kv_layout {self.kv_layout} is DeepSeek-V4.1's, another model needs full-attention")
            return layout(self.kv_layout)
        if self.model is None:
            raise ValueError("kv_layout full-attention needs a model")
        return full_attention(
            layers=int(self.model["layers"]),
            kv_heads=int(self.model["kv_heads"]),
            head_size=int(self.model["head_size"]),
            dtype_bytes=int(self.model["dtype_bytes"]),
            block_size=self.block_size,
            tensor_parallel=self.tensor_parallel,
        )


@dataclass(frozen=True)
class Component:
    """One line of an accounting, with where its figure comes from."""

    name: str
    gib: float
    kind: Kind
    source: str


@dataclass(frozen=True)
class Accounting:
    """One way to add it up. ``kv_bytes`` is the pool; ``unexplained_gib`` is what is left beyond the reported pool."""

    name: str
    total_gib: float
    budget_gib: float
    components: tuple[Component, ...]
    outside: tuple[Component, ...]
    unexplained_gib: float
    kv_bytes: int
    kv_published_gib: float | None
    """The pool the source itself gives for exactly these settings."""
    reserve_gib: float
    shape: KvLayout
    blocks_per_request: int
    max_model_len: int
    max_num_seqs: int
    largest_model_len: int
    """The longest context this accounting holds once, were max_model_len set to it."""
    estimated_model_len: int
    """vLLM's own estimate from the present pool, at most max_model_len."""
    pinned_pool: bool
    """The pool is given in bytes, not by GMU."""

    @property
    def used_gib(self) -> float:
        """Inside the budget, without the pool."""
        return sum(c.gib for c in self.components)

    @property
    def left_gib(self) -> float:
        """What the sum leaves for the pool."""
        return self.budget_gib - self.used_gib

    @property
    def outside_gib(self) -> float:
        """Taken from the node beside the budget."""
        return sum(c.gib for c in self.outside)

    @property
    def kv_gib(self) -> float:
        """The pool in GiB."""
        return self.kv_bytes / GIB

    @property
    def kv_blocks(self) -> int:
        """num_gpu_blocks, the null block included."""
        return pool_blocks(self.kv_bytes, self.shape)

    @property
    def requests(self) -> float:
        """Requests of full length at once; vLLM's "Maximum concurrency"."""
        return self.kv_blocks / self.blocks_per_request

    @property
    def tokens(self) -> int:
        """vLLM's "KV cache size"."""
        return int(self.requests * self.max_model_len)

    @property
    def serves(self) -> bool:
        """Whether one request of full length and the null block fit."""
        return self.kv_blocks > self.blocks_per_request

    @property
    def headroom_gib(self) -> float:
        """What stays with the operating system once the budget is used up."""
        taken = self.used_gib + self.kv_gib if self.pinned_pool else self.budget_gib
        return self.total_gib - self.outside_gib - taken

    def gmu_floor(self, requests: int = 1) -> float:
        """Smallest GMU whose pool holds ``requests`` of full length (rounded up to 0.0001); above 1 when none does."""
        pool = (requests * self.blocks_per_request + 1) * self.shape.bytes_per_block / GIB
        return math.ceil((self.used_gib + self.unexplained_gib + pool) / self.total_gib * 1e4 + 1e-6) / 1e4

    @property
    def gmu_ceiling(self) -> float:
        """Largest GMU that keeps the reserve (rounded down to 0.0001); 0 when none does."""
        share = (self.total_gib - self.outside_gib - self.reserve_gib) / self.total_gib
        return min(1.0, max(0.0, math.floor(share * 1e4 + 1e-6) / 1e4))

    def prints(self, device: str) -> list[str]:
        """What vLLM will log, or refuse with, were this accounting right."""
        lines = [f"Available KV cache memory: {round(self.kv_bytes / GIB, 2)} GiB"]
        pool = self.kv_bytes - self.shape.bytes_per_block
        if self.serves:
            return [
                *lines,
                f"{device} KV cache size: {self.tokens:,} tokens, "
                f"Maximum concurrency for {self.max_model_len:,} tokens per request: {self.requests:.2f}x",
            ]
        if pool <= 0:
            return [*lines, "No available memory for the cache blocks."]
        need = self.blocks_per_request * self.shape.bytes_per_block
        text = (
            f"To serve at least one request with the model's max seq len ({self.max_model_len}), "
            f"({round(need / GIB, 2)} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({round(pool / GIB, 2)} GiB)."
        )
        if self.estimated_model_len:
            text += f" Based on the available memory, the estimated maximum model length is {self.estimated_model_len}."
        return [*lines, text]

    def as_dict(self, device: str) -> dict[str, Any]:
        """JSON form, GiB to four digits."""
        return {
            "total_gib": _round(self.total_gib),
            "budget_gib": _round(self.budget_gib),
            "components": [{**asdict(c), "gib": _round(c.gib)} for c in self.components],
            "outside": [{**asdict(c), "gib": _round(c.gib)} for c in self.outside],
            "used_gib": _round(self.used_gib),
            "left_gib": _round(self.left_gib),
            "unexplained_gib": _round(self.unexplained_gib),
            "kv_gib": _round(self.kv_gib),
            "kv_published_gib": self.kv_published_gib,
            "kv_blocks": self.kv_blocks,
            "kv_tokens": self.tokens,
            "requests": _round(self.requests),
            "largest_model_len": self.largest_model_len,
            "headroom_gib": _round(self.headroom_gib),
            "gmu_floor": self.gmu_floor(),
            "gmu_floor_all": self.gmu_floor(self.max_num_seqs),
            "gmu_ceiling": self.gmu_ceiling,
            "prints": self.prints(device),
        }


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

    reported: Accounting
    engine: Accounting
    published: bool
    """Whether the report, or the published boot it is compared with, covers this tensor parallel and Engram place."""
    request_gib: float
    gmu_recommended: float | None
    disagreements: tuple[Disagreement, ...]
    engram_shards: tuple[engram.EngramShard, ...]
    nccl_pinned_gib: float
    dev_shm_bytes: int
    device: str

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
        return {
            REPORTED: self.reported.as_dict(self.device),
            ENGINE: self.engine.as_dict(self.device),
            "deciding": self.deciding.name,
            "kv_layout": self.reported.shape.name,
            "bytes_per_block": self.reported.shape.bytes_per_block,
            "blocks_per_request": self.reported.blocks_per_request,
            "request_gib": _round(self.request_gib),
            "gmu_recommended": self.gmu_recommended,
            "nccl_pinned_gib": _round(self.nccl_pinned_gib),
            "dev_shm_bytes": self.dev_shm_bytes,
            "engram_rows": [shard.as_dict() for shard in self.engram_shards],
            "disagreements": [
                {**asdict(d), "reported": _round(d.reported), "evidence": _round(d.evidence)}
                for d in self.disagreements
            ],
        }


def plan_memory(i: MemoryInput) -> MemoryPlan:
    """Both accountings for checked input (memory_findings.input_findings says what is wrong with unchecked input).

    Raises ValueError for an unknown layout, a missing model, or speculation deeper than the layout's ring.
    """
    row = _reported_row(i)
    reported, engine = _reported(i, row), _engine(i)
    shards = tuple(engram.engram_split(i.tensor_parallel)) if engram_splits(i) else ()
    return MemoryPlan(
        reported=reported,
        engine=engine,
        published=row is not None,
        request_gib=engine.blocks_per_request * engine.shape.bytes_per_block / GIB,
        gmu_recommended=_recommended(reported, engine) if i.on_gpu else None,
        disagreements=tuple(_disagreements(i, row, reported, engine)),
        engram_shards=shards,
        nccl_pinned_gib=nccl_memory.nccl_host_bytes(*_nccl(i)) / GIB if i.on_gpu else 0.0,
        dev_shm_bytes=nccl_memory.dev_shm_bytes(i.nccl_communicators) if i.on_gpu and i.tensor_parallel > 1 else 0,
        device="GPU" if i.on_gpu else "CPU",
    )


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
    if i.model is not None or i.weights_gib is not None:
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
    same = (
        i.gpu_memory_utilization == row["gpu_memory_utilization"]
        and i.max_model_len == row["max_model_len"]
        and i.flashinfer_autotune == row["flashinfer_autotune"]
        and i.nccl_max_nchannels == 8
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
    components = [_weights(i), *_engram(i)]
    outside = []
    if i.on_gpu:
        components += [_graphs(i), _profiling(i)]
        lost = nccl_memory.available_loss_bytes(*_nccl(i)) + nccl_memory.gpu_bytes(
            i.nccl_max_nchannels, i.nccl_communicators if i.tensor_parallel > 1 else 0
        )
        outside = [
            Component("nccl", lost / GIB, "derived", "measured formula, published MemAvailable of eight Sparks"),
            Component("host-and-context", i.host_gib, "derived", "MemAvailable of a serving 8-Spark site"),
        ]
    return _account(i, ENGINE, total, requested, components, outside, 0.0, None, _growth(i) if i.on_gpu else 0.0)


def _weights(i: MemoryInput) -> Component:
    if i.weights_gib is not None:
        return Component("weights", i.weights_gib, "given", "weights_gib")
    if i.model is not None:
        return Component("weights", float(i.model["weights_gib"]), "given", str(i.model.get("name", "model")))
    data = load("model_v41")["weights"]
    return _by_degree("weights", i.tensor_parallel, data["measured"], data["source"])


def _graphs(i: MemoryInput) -> Component:
    data = load("model_v41")["cuda_graphs"]
    measured = data["measured"]
    degree = _nearest(measured, i.tensor_parallel)
    kind: Kind = "measured" if degree == i.tensor_parallel and i.model is None else "derived"
    return Component("cuda-graphs", float(measured[degree]), kind, data["source"][degree])


def _engram(i: MemoryInput) -> list[Component]:
    if i.model is not None or i.engram != "memory":
        return []
    return [Component("engram", engram.engram_gib(i.tensor_parallel), "derived", "rows x 264 B of the largest rank")]


def _profiling(i: MemoryInput) -> Component:
    """Activation peak and workspaces; grows with the context, less so the more ranks share the indexer."""
    data = load("model_v41")["profiling"]
    points = data["autotune_on" if i.flashinfer_autotune else "autotune_off"]
    gib = points[_nearest(points, i.tensor_parallel)] + _growth(i) * max(0, i.max_model_len - data["growth"]["from"])
    return Component("profiling-peak", float(gib), "derived", data["source"])


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
    tokens = row["tokens"] if reported.kv_published_gib is not None and not reported.pinned_pool else None
    if tokens and abs(reported.tokens / tokens - 1) >= 0.01:
        size = tokens / i.max_model_len * reported.blocks_per_request * reported.shape.bytes_per_block / GIB
        note = f"the tokens are a pool of {size:.2f} GiB: each rank logs its own GiB, the smallest rank sets the tokens"
        found.append(Disagreement("kv-tokens", tokens, reported.tokens, "tokens", note))
    return found


def _nccl(i: MemoryInput) -> tuple[int | None, int, int | None, int | None, int]:
    return i.nccl_max_nchannels, i.tensor_parallel, i.nccl_buffsize, i.nccl_ll128_buffsize, i.nccl_communicators


def engram_splits(i: MemoryInput) -> bool:
    """Whether there is Engram and its heads can be split over the ranks."""
    heads = int(load("model_v41")["engram"]["heads"])
    part = -(-heads // i.tensor_parallel)
    return i.model is None and i.engram != "none" and (i.tensor_parallel - 1) * part < heads


def _bytes(gib: float) -> int:
    """Whole bytes, rounded first to 0.000001 GiB, so that 8.7 GiB is 8.7 and not 8.6999999."""
    return int(round(gib, 6) * GIB)


def _round(value: float) -> float:
    """Four digits, and never -0.0."""
    return round(value, 4) + 0.0
