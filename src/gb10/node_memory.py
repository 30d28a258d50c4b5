"""What a start asks of a node's memory, against what the node has: the plan's check and preflight's, one arithmetic.

vLLM looks at free memory once NCCL and the CUDA context are there, and refuses to start with less than
ceil(total x GMU). Facts are ``gb10`` documents (docs/facts.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gb10.findings import Finding, error, warning

GIB = 1 << 30
KIB = 1 << 10


@dataclass(frozen=True)
class Start:
    """What a start asks of every node."""

    gpu_memory_utilization: float
    before_gib: float
    """Taken by NCCL and the CUDA context before vLLM looks."""
    reserve_gib: float


@dataclass(frozen=True)
class NodeMemory:
    """One node measured against a start, in GiB."""

    node: str
    mem_total_gib: float
    mem_available_gib: float
    wanted_gib: float
    free_gib: float
    """Available less what NCCL and the CUDA context take."""
    gmu_starts: float
    """The largest GMU, in steps of 0.01, that starts here; 0 for none."""
    gmu_keeps: float
    """The largest that also keeps the reserve."""
    serving: bool
    """A rank of ours runs: what it holds comes back when it is stopped, so nothing is found wrong."""

    def as_dict(self) -> dict[str, Any]:
        """JSON form, GiB to four digits."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}


def start_of(memory: Mapping[str, Any]) -> Start | None:
    """What the ``memory`` of a plan document asks; None where it checks nothing."""
    start = memory.get("start")
    return Start(**start) if start else None


def total_gib(facts: Mapping[str, Any] | None) -> float | None:
    """MemTotal of a node, None where its facts do not say."""
    sizes = _sizes(facts)
    return None if sizes is None else sizes[0] / GIB


def measure(start: Start, node: str, facts: Mapping[str, Any] | None) -> NodeMemory | None:
    """The node against the start; None where its facts do not say."""
    sizes = _sizes(facts)
    if facts is None or sizes is None:
        return None
    total, available = sizes
    free = available - int(start.before_gib * GIB)
    reserve = int(start.reserve_gib * GIB)
    return NodeMemory(
        node=node,
        mem_total_gib=total / GIB,
        mem_available_gib=available / GIB,
        wanted_gib=math.ceil(total * start.gpu_memory_utilization) / GIB,
        free_gib=free / GIB,
        gmu_starts=largest_gmu(total, free),
        gmu_keeps=largest_gmu(total, free - reserve),
        serving=serving(facts),
    )


def node_findings(start: Start, measured: NodeMemory) -> list[Finding]:
    """An error where the start fails, a warning where it leaves less than the reserve."""
    left = measured.free_gib - measured.wanted_gib
    if measured.serving or left >= start.reserve_gib:
        return []
    share, total, available = start.gpu_memory_utilization, measured.mem_total_gib, measured.mem_available_gib
    after = f" ({measured.free_gib:.1f} once NCCL and the CUDA context have theirs)" if start.before_gib else ""
    if left < 0:
        return [
            error(
                "memory-not-available",
                f"gpu_memory_utilization {share:g} of {total:.2f} GiB wants {measured.wanted_gib:.1f} GiB, "
                f"but {available:.1f} GiB are available{after}.",
                _remedy(start, measured),
                measured.node,
            )
        ]
    return [
        warning(
            "memory-reserve-low",
            f"gpu_memory_utilization {share:g} of {total:.2f} GiB leaves {left:.1f} GiB of {available:.1f} "
            f"available{after}; {start.reserve_gib:g} are to stay free.",
            f"{_remedy(start, measured)} A GB10 out of memory freezes whole.",
            measured.node,
        )
    ]


def _remedy(start: Start, measured: NodeMemory) -> str:
    """What to do about too little memory, with the largest GMU, as far as there is one."""
    if not measured.gmu_starts:
        return "Free memory on the node: no gpu_memory_utilization starts here."
    keeps = f"{measured.gmu_keeps:.2f} the largest that also" if measured.gmu_keeps else "none"
    return (
        f"Free memory on the node, or lower gpu_memory_utilization: {measured.gmu_starts:.2f} is the largest that "
        f"starts here, {keeps} keeps {start.reserve_gib:g} GiB."
    )


def largest_gmu(total: int, free: int) -> float:
    """The largest GMU, to two decimals, that takes no more than ``free`` of ``total`` bytes; 0 for none."""
    hundredths = max(0, min(100, free * 100 // total))
    while hundredths and math.ceil(total * (hundredths / 100)) > free:
        hundredths -= 1
    return hundredths / 100


def serving(facts: Mapping[str, Any]) -> bool:
    """Whether a rank of ours runs on the node."""
    docker = facts.get("docker")
    containers = docker.get("containers") if isinstance(docker, Mapping) else None
    return any(isinstance(c, Mapping) and c.get("ours") and c.get("state") == "running" for c in containers or [])


def _sizes(facts: Mapping[str, Any] | None) -> tuple[int, int] | None:
    """MemTotal and MemAvailable in bytes; None where they are no sizes a node can have."""
    memory = facts.get("memory") if isinstance(facts, Mapping) else None
    if not isinstance(memory, Mapping):
        return None
    total, available = memory.get("total_kib"), memory.get("available_kib")
    if type(total) is not int or type(available) is not int:
        return None
    return (total * KIB, available * KIB) if GIB <= total * KIB <= 1 << 46 and 0 <= available <= total else None
