"""What must be done for what is on record to serve again: nothing, waiting, or all ranks anew; the least that helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gb10 import deploy, deployments
from gb10.findings import Finding, error
from gb10.status import READY

Document = Mapping[str, Any]
Readings = Mapping[str, Document | None]

# An engine's first line in its log comes this soon.
FIRST_WORDS_S = 120


@dataclass(frozen=True)
class Recovery:
    """``why`` all ranks are started anew (empty: they are not); ``booting``: they are on their way and waited for."""

    why: tuple[str, ...] = ()
    booting: bool = False
    said: str = ""
    """Why there is nothing to do."""
    fault: Finding | None = None
    """Why nothing can be done."""


def recovery(wanted: Document | None, readings: Readings, fault: str | None, longest: float) -> Recovery:
    """Decides. ``wanted``: the newest record; ``readings``: of ``gb10_rank`` by node, None where a node is silent.

    ``fault``: why the endpoint does not answer right, empty where it does; ``longest``: seconds a boot takes at most.
    """
    if wanted is None:
        message, remedy = "No node has on record what should run.", "Deploy: site.yml -e profile=P."
        return Recovery(fault=error("record-missing", message, remedy))
    if wanted["want"] == deployments.STOPPED:
        who = f"{wanted['operator']} on {wanted['controller']} at {wanted['time']} (run {wanted['run']})"
        return Recovery(said=f"The ranks were stopped on purpose by {who}: nothing is brought back.")
    deployment = wanted["deployment"]
    strange = sorted({rank["node"] for rank in deployment["ranks"]} - set(readings))
    if strange:
        message = f"The record has ranks on {', '.join(strange)}, which the inventory does not have."
        return Recovery(fault=error("record-strange", message, "Deploy anew: site.yml -e profile=P."))
    silent = [name for name, one in readings.items() if one is None]
    if silent:
        remedy = "All nodes must answer: ranks are one program."
        return Recovery(fault=error("node-missing", "It does not answer.", remedy, silent[0]))
    reasons = deploy.restart_reasons(deployment, {name: (one or {}).get("rank") for name, one in readings.items()})
    if reasons:
        return Recovery(tuple(reasons))
    if not fault:
        return Recovery(said="All ranks run as on record and the endpoint answers right: nothing to do.")
    if booting(deployment, readings, longest):
        return Recovery(booting=True)
    return Recovery((f"the endpoint: {fault}",))


def booting(deployment: Document, readings: Readings, longest: float) -> bool:
    """Whether the head is still on its way to serve, and not for longer than a boot takes.

    The log of one that has served for long no longer shows its boot.
    """
    head = ((readings.get(deployment["head"]) or {}).get("rank")) or {}
    age = float(head.get("age_s") or 0)
    on_its_way = head.get("phase") not in ("", None, READY) or (not head.get("phase") and age < FIRST_WORDS_S)
    return bool(head.get("running")) and on_its_way and age < longest and not head.get("fault")
