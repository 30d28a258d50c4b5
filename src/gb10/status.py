"""The state of a cluster in one table: what runs on every node, what should, and whether the endpoint answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gb10 import deploy, deployments, lock
from gb10.report import table

Document = Mapping[str, Any]

SCHEMA = 1
READY = "ready"
GIB = 1 << 20  # KiB


def node_status(name: str, reading: Document | None) -> dict[str, Any]:
    """One node. ``reading``: what ``gb10_rank`` brought back with ``node``; None where it could not be asked."""
    made: dict[str, Any] = {"node": name, "reachable": reading is not None}
    rank = (reading or {}).get("rank") or {}
    labels = rank.get("labels") or {}
    facts = (reading or {}).get("node") or {}
    return made | {
        "rank": labels.get(deploy.LABEL_RANK),
        "container": container(reading, rank),
        "phase": rank.get("phase") or None,
        "started_at": rank.get("started_at"),
        "image_digest": rank.get("image_id"),
        "image": labels.get(deploy.LABEL_IMAGE),
        "profile": labels.get(deploy.LABEL_PROFILE),
        "plan_hash": labels.get(deploy.LABEL_PLAN),
        "key_differs": rank.get("key_differs"),
        "memory_available_kib": facts.get("available_kib"),
        "memory_total_kib": facts.get("total_kib"),
        "clocks": facts.get("gpus") or [],
        "last_error": last_error(reading, rank),
    }


def container(reading: Document | None, rank: Document) -> str:
    """The container's state in a word or two."""
    if reading is None:
        return "unreachable"
    if rank.get("problem"):
        return "no Docker"
    if not rank.get("exists"):
        return "none"
    return "running" if rank.get("running") else f"exited {rank.get('exit_code')}"


def last_error(reading: Document | None, rank: Document) -> str:
    """The worst that is known, in one line; empty where there is none."""
    if reading is None:
        return "the node does not answer"
    if rank.get("problem"):
        return str(rank["problem"])
    fault = rank.get("fault") or {}
    if fault:
        return f"[{fault['code']}] {fault['line']}"
    return "" if rank.get("running") or not rank.get("exists") else str(rank.get("cause") or rank.get("error") or "")


def status(
    readings: Mapping[str, Document | None], wanted: Document | None, held: Document | None, fault: str | None
) -> dict[str, Any]:
    """The document. ``readings`` by node; ``wanted``: the newest record; ``held``: ``{held, age}`` of the lock.

    ``fault``: why the endpoint does not answer right, empty where it does, None where nobody asked it.
    """
    nodes = [node_status(name, reading) for name, reading in readings.items()]
    if fault == "":  # only the head's log says so, and not for ever
        nodes = [one | {"phase": READY} if one["container"] == "running" else one for one in nodes]
    should = None
    if wanted is not None:
        should = {key: wanted[key] for key in ("want", "run", "time", "operator", "controller")}
        made = wanted["deployment"] or {}
        should |= {key: made.get(key) for key in ("profile", "plan_hash", "head")}
    locked = None
    if held and held.get("held") is not None:
        locked = {"age_s": round(float(held.get("age") or 0)), **held["held"]}
    document = {"schema": SCHEMA, "nodes": nodes, "wanted": should, "lock": locked, "endpoint_fault": fault}
    return document | {"troubles": troubles(document, wanted)}


def troubles(document: Document, wanted: Document | None) -> list[str]:
    """What is not as it should be, one line each; empty when what should run runs and answers."""
    found = [f"{one['node']} does not answer" for one in document["nodes"] if not one["reachable"]]
    if wanted is None:
        return [*found, "no node has on record what should run"]
    states = {one["node"]: state(one) for one in document["nodes"] if one["reachable"]}
    if wanted["want"] == deployments.STOPPED:
        return found + [f"{node}: a rank is there though all should be stopped" for node in left(states)]
    names = {rank["node"] for rank in wanted["deployment"]["ranks"]}
    gone = {one["node"] for one in document["nodes"]} & names - set(states)
    reasons = deploy.restart_reasons(wanted["deployment"], states)
    found += [reason for reason in reasons if reason.split(":")[0] not in gone]
    if document["endpoint_fault"]:
        found.append(f"the endpoint: {document['endpoint_fault']}")
    return found


def left(states: Mapping[str, Document]) -> list[str]:
    """Nodes with a rank container."""
    return [node for node, one in states.items() if one["exists"]]


def state(one: Document) -> dict[str, Any]:
    """A node's status in the words of ``deploy.restart_reasons``."""
    labels = {deploy.LABEL_RANK: "rank", deploy.LABEL_PROFILE: "profile", deploy.LABEL_PLAN: "plan_hash"}
    return {
        "exists": one["container"] not in ("none", "no Docker", "unreachable"),
        "running": one["container"] == "running",
        "exit_code": one["container"].rpartition(" ")[2],
        "image_id": one["image_digest"],
        "key_differs": one["key_differs"],
        "labels": {label: one[key] for label, key in labels.items() if one[key] is not None},
    }


def text(document: Document) -> str:
    """As printed: one line a node, what should run, the lock, what is wrong."""
    header = ("node", "rank", "container", "phase", "image", "profile", "plan", "free GiB", "clock MHz", "last error")
    parts = [table(header, [row(one) for one in document["nodes"]])]
    should = document["wanted"]
    if should is None:
        parts.append("Nothing is on record.")
    else:
        what = f"{should['profile']} (plan {str(should['plan_hash'])[:12]})" if should["profile"] else "nothing"
        who = f"{should['operator']} on {should['controller']}, run {should['run']}"
        parts.append(f"Should run: {what}, since {should['time']} by {who}.")
    if document["lock"]:
        parts.append(f"Locked: {lock.told(document['lock'], document['lock']['age_s'])}.")
    if document["endpoint_fault"] == "":
        parts.append("The endpoint answers right.")
    parts += [f"Not as it should be: {one}." for one in document["troubles"]]
    return "\n".join(parts)


def row(one: Document) -> tuple[str, ...]:
    """One line of the table."""
    free, total = one["memory_available_kib"], one["memory_total_kib"]
    memory = f"{free / GIB:.1f} of {total / GIB:.1f}" if free and total else "-"
    clocks = ", ".join(f"{c['sm_mhz']} of {c['max_mhz']}" for c in one["clocks"]) or "-"
    digest = str(one["image_digest"] or "-").partition(":")[2][:12] or "-"
    words = (one["node"], one["rank"] or "-", one["container"], one["phase"] or "-", digest, one["profile"] or "-")
    return (*map(str, words), str(one["plan_hash"] or "-")[:12], memory, clocks, (one["last_error"] or "-")[:90])
