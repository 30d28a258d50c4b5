"""The memory of a plan: from settings, environment, checkpoint and facts to both accountings and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gb10 import command
from gb10.calibration import measurement_key
from gb10.findings import Finding, error
from gb10.memory import MemoryPlan, plan_memory, with_auto
from gb10.memory_findings import memory_findings
from gb10.memory_input import MemoryInput, input_findings
from gb10.model_config import Checkpoint, Model, builtin, read_model
from gb10.node_memory import NodeMemory, measure, total_gib
from gb10.nodes import Node
from gb10.settings import Settings

Facts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Planned:
    """``memory`` is None where the findings say why; ``nodes`` are the measured ones, in rank order."""

    memory: MemoryPlan | None
    nodes: tuple[NodeMemory, ...]
    findings: list[Finding]

    def as_dict(self) -> dict[str, Any]:
        """The ``memory`` of the plan document."""
        if self.memory is None:
            return {"reported": {}, "engine": {}}
        return self.memory.as_dict() | {"nodes": [node.as_dict() for node in self.nodes]}


def plan_for(
    settings: Settings,
    env: Mapping[str, str],
    nodes: Iterable[Node],
    facts: Facts | None = None,
    checkpoint: Checkpoint | None = None,
    calibrated: Mapping[str, Any] | None = None,
) -> Planned:
    """Both accountings for ``settings``, with GMU resolved where it is ``auto``.

    With ``facts`` the smallest node's MemTotal stands for node_memory_gib, and every node is judged by its own.
    """
    model, findings = read_model(checkpoint.config) if checkpoint else (builtin(), [])
    if model is None:
        return Planned(None, (), findings)
    names = [node.name for node in nodes]
    known = {} if facts is None else {name: facts.get(name) for name in names}
    sizes = {name: total_gib(document) for name, document in known.items()}
    findings = [_missing(name) for name, size in sizes.items() if size is None]
    smallest = min((size for size in sizes.values() if size is not None), default=settings.node_memory_gib)
    given = memory_input(settings, env, model, smallest, checkpoint.weight_bytes if checkpoint else None)
    given = with_calibration(given, calibrated or {})
    wrong = input_findings(given)
    if wrong:
        return Planned(None, (), findings + wrong)
    memory = plan_memory(with_auto(given) if given.auto else given)
    found = [measure(memory.start, name, known[name]) for name in known] if memory.start else []
    measured = tuple(node for node in found if node is not None)
    return Planned(memory, measured, findings + memory_findings(memory.input, memory, measured))


def with_calibration(i: MemoryInput, calibrated: Mapping[str, Any]) -> MemoryInput:
    """The input with what this cluster measured of this model, degree and place of Engram (calibration.py)."""
    found = calibrated.get(measurement_key(i.model.name, i.tensor_parallel, i.engram if i.tables else "none"))
    return replace(i, calibrated=found) if found else i


def memory_input(
    settings: Settings, env: Mapping[str, str], model: Model, node_memory_gib: float, weight_bytes: int | None
) -> MemoryInput:
    """What the memory model needs. ``auto`` stands as GMU 1 with ``auto`` set, for ``with_auto`` to resolve."""
    share = settings.gpu_memory_utilization
    return MemoryInput(
        tensor_parallel=settings.tensor_parallel,
        gpu_memory_utilization=1.0 if isinstance(share, str) else share,
        auto=isinstance(share, str),
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        num_speculative_tokens=command.speculative_tokens(settings),
        engram=settings.engram,
        kv_layout=settings.kv_layout,
        flashinfer_autotune=settings.flashinfer_autotune,
        nccl_max_nchannels=_whole(env, "NCCL_MAX_NCHANNELS"),
        nccl_buffsize=_whole(env, "NCCL_BUFFSIZE"),
        nccl_ll128_buffsize=_whole(env, "NCCL_LL128_BUFFSIZE"),
        nccl_communicators=settings.nccl_communicators,
        node_memory_gib=node_memory_gib,
        memory_reserve_gib=settings.memory_reserve_gib,
        weights_gib=settings.model_weights_gib,
        weight_bytes=weight_bytes,
        kv_cache_memory_bytes=settings.kv_cache_memory_bytes,
        accelerator=settings.accelerator,
        model=model,
        allow_long=env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").strip().lower() in ("1", "true"),
    )


def _whole(env: Mapping[str, str], key: str) -> int | None:
    """A number of the ranks' environment; None where it is not set or none (environment.py refuses that)."""
    value = env.get(key, "").strip()
    return int(value.lstrip("0")[:20] or 0) if value.isascii() and value.isdigit() else None


def _missing(name: str) -> Finding:
    return error(
        "facts-missing",
        "Its facts have no memory.total_kib and memory.available_kib that a node can have.",
        "Read them anew: playbooks/preflight.yml -e facts_file=FILE.",
        name,
    )
