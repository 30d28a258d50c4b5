"""From plan and facts to what runs: ranks with every detected value filled in, and why they must restart."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

from gb10 import fabric, rank_container
from gb10.environment import DETECTED
from gb10.plan import UNPINNED, plan_hash

# One rank container a node. [design]
CONTAINER = "gb10-rank"

LABEL_PROFILE = "gb10.profile"
LABEL_RANK = "gb10.rank"
LABEL_RUN = "gb10.run"
LABEL_PLAN = "gb10.plan-hash"
LABEL_IMAGE = "gb10.image"


def resolve(
    plan: Mapping[str, Any],
    detected: Mapping[str, Mapping[str, str]],
    images: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The deployment: ``{profile, head, plan_hash, ranks[]}``.

    ``images``: per node name, what its image store calls the plan's image (docs/images.md); that of the plan elsewhere.

    ``detected``: per node name, environment values only that node could tell (``NCCL_IB_HCA``, ``NCCL_SOCKET_IFNAME``,
    ...). A value the node could not tell removes the key: an empty string would be read as 0 by NCCL.
    """
    ranks = copy.deepcopy(list(plan["ranks"]))
    for rank in ranks:
        rank["image_digest"] = (images or {}).get(rank["node"], rank["image_digest"])
        known = detected.get(rank["node"], {})
        for key, value in list(rank["env"].items()):
            if value == DETECTED:
                if known.get(key):
                    rank["env"][key] = known[key]
                else:
                    del rank["env"][key]
    return {"profile": plan["profile"], "head": plan["head"], "plan_hash": plan_hash(ranks), "ranks": ranks}


def detected(
    ranks: Iterable[Mapping[str, Any]],
    facts: Mapping[str, Mapping[str, Any]],
    hosts: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, str]]:
    """What each rank's node tells by its facts, for ``resolve``. ``hosts``: per node its variables, which may pin."""
    found = {}
    for rank in ranks:
        name = rank["node"]
        if name in facts:
            host = hosts[name]
            pins = {key: host.get(key) for key in fabric.VARIABLES if host.get(key)}
            known = fabric.detect(facts[name], rank["address"], pins)
            found[name] = known.environment(str(host.get("nccl_transport")))
    return found


def container(deploy: Mapping[str, Any], rank: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Arguments of ``community.docker.docker_container`` for one rank, its name and network apart."""
    pinned = rank["image_digest"] != UNPINNED
    arguments: dict[str, Any] = {
        "image": rank["image_digest"] if pinned else rank["image"],
        "command": list(rank["argv"]),
        "env": dict(rank["env"]),
        "ulimits": [f"{name}:{limit}" for name, limit in sorted(rank["ulimits"].items())],
        "capabilities": list(rank["cap_add"]),
        "devices": [f"{path}:{path}:rwm" for path in rank["devices"]],
        "mounts": [dict(mount) for mount in rank["mounts"]],
        "shm_size": rank["shm_size"],
        "labels": {
            LABEL_PROFILE: str(deploy["profile"]),
            LABEL_RANK: str(rank["rank"]),
            LABEL_PLAN: str(deploy["plan_hash"]),
            LABEL_IMAGE: str(rank["image"]),
            LABEL_RUN: run_id,
        },
    }
    if rank["memory_limit"]:
        arguments["memory"] = rank["memory_limit"]
    if rank["gpus"]:
        count = -1 if rank["gpus"] == "all" else int(rank["gpus"])
        arguments["device_requests"] = [{"driver": "nvidia", "count": count, "capabilities": [["gpu"]]}]
    return arguments


def containers(deploy: Mapping[str, Any], run_id: str) -> dict[str, dict[str, Any]]:
    """``container`` of every rank, by node."""
    return {rank["node"]: container(deploy, rank, run_id) for rank in deploy["ranks"]}


def node_record(deploy: Mapping[str, Any], node: str) -> str:
    """What a node keeps of the last deployment, as JSON text: the same deployment gives the same text."""
    rank = next(rank for rank in deploy["ranks"] if rank["node"] == node)
    record = {key: rank[key] for key in ("rank", "image", "image_digest")}
    record |= {key: deploy[key] for key in ("profile", "head", "plan_hash")}
    return json.dumps(record, indent=2, sort_keys=True) + "\n"


def restart_reasons(deploy: Mapping[str, Any], states: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Why the ranks must be stopped and started, one line a node; empty when all run what is planned.

    ``states``: per node of the inventory its rank container as ``gb10_rank`` reads it (``None`` or ``exists: false``:
    no container). One wrong rank restarts all: ranks of two boots never meet.
    """
    planned = {rank["node"]: rank for rank in deploy["ranks"]}
    reasons = []
    for node in sorted(set(planned) | set(states)):
        state = states.get(node) or {}
        if not state.get("exists"):
            if node in planned:
                reasons.append(f"{node}: no rank container")
            continue
        labels = state.get("labels") or {}
        if node not in planned:
            reasons.append(f"{node}: a rank runs that the profile does not have")
        elif labels.get(LABEL_PLAN) != deploy["plan_hash"]:
            was = labels.get(LABEL_PROFILE, "something started by hand")
            reasons.append(f"{node}: the plan changed (runs {was}, plan {str(labels.get(LABEL_PLAN, 'none'))[:12]})")
        elif deploy.get("launcher") not in (None, rank_container.launcher(labels)):
            reasons.append(f"{node}: {rank_container.launcher(labels)} started it, and another launcher is asked for")
        elif labels.get(LABEL_RANK) != str(planned[node]["rank"]):
            reasons.append(f"{node}: rank {labels.get(LABEL_RANK)} runs where rank {planned[node]['rank']} belongs")
        elif planned[node]["image_digest"] not in (UNPINNED, state.get("image_id")):
            reasons.append(f"{node}: another image runs ({str(state.get('image_id'))[:19]})")
        elif state.get("key_differs"):
            reasons.append(f"{node}: the API key changed")
        elif state.get("status") == rank_container.ASLEEP:
            reasons.append(f"{node}: {rank_container.NO_ENGINE}")
        elif not state.get("running"):
            reasons.append(f"{node}: the rank exited with code {state.get('exit_code')}")
    return reasons
