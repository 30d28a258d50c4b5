"""What differs between the ranks of a plan and those that run, field by field.

A *rank* is one of ``plan["ranks"]``, with ``profile`` beside. Ranks that run come from an earlier plan, or from what
``gb10_facts`` reads of our container (``running_rank``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gb10 import deploy, images, rank_container, sparkrun
from gb10.layout import Image
from gb10.plan import UNPINNED, plan_hash

Document = Mapping[str, Any]
Rank = Mapping[str, Any]

# What gb10_facts shows in place of a secret: whether it changes cannot be told.
HIDDEN = "(set)"

UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class Change:
    """One field of one rank. ``None``: not there, on the running or on the planned side."""

    field: str
    running: str | None
    planned: str | None

    def __str__(self) -> str:
        return f"{self.field}: {word(self.running)} -> {word(self.planned)}"


def word(value: str | None) -> str:
    """One side of a change as printed."""
    return "none" if value is None else value or '""'


def fields(planned: Rank | None, running: Rank | None) -> list[Change]:
    """Every field in which two ranks of one node differ; ``None`` for no rank."""
    if planned is None or running is None:
        sides = [None if rank is None else str(rank["rank"]) for rank in (running, planned)]
        return [] if sides[0] == sides[1] else [Change("rank", *sides)]
    if running["argv"] is None:  # sparkrun's containers do not tell; their plan's hash does
        running = {**running, "argv": planned["argv"]}
    before, after = flat(running), flat(planned)
    if running.get("env_of_image", {}) is None:  # what else is set there may be the image's
        before = {key: value for key, value in before.items() if key in after or not key.startswith("env ")}
    if "env_of_image" in running:  # a limit the plan does not name is Docker's own default (daemon.json)
        before = {key: value for key, value in before.items() if key in after or not key.startswith("ulimit ")}
    for key, value in (running.get("env_of_image") or {}).items():
        if f"env {key}" in after:
            before.setdefault(f"env {key}", value)
    if "env_of_image" in running and planned["image_digest"] == UNPINNED:
        after.pop("image digest", None)
        before.pop("image digest", None)
    keys = [*after, *(key for key in before if key not in after)]
    pairs = [(key, before.get(key), after.get(key)) for key in keys]
    return [Change(*pair) for pair in pairs if pair[1] != pair[2] and not (HIDDEN in (pair[1] or "") and pair[2])]


def flat(rank: Rank) -> dict[str, str]:
    """A rank as field to text; what is not there has no key."""
    found: dict[str, str] = {
        "profile": str(rank.get("profile") or ""),
        "rank": str(rank["rank"]),
        "image": str(rank["image"]),
        "image digest": str(rank["image_digest"]),
    }
    found |= {f"argv {option}": value for option, value in options(rank["argv"]).items()}
    found |= {f"env {key}": str(value) for key, value in rank["env"].items()}
    found |= {f"ulimit {name}": limit(str(value)) for name, value in sorted(rank["ulimits"].items())}
    found |= {f"capability {name}": "added" for name in sorted(rank["cap_add"])}
    found |= {f"device {path}": "given" for path in sorted(rank["devices"])}
    found |= {f"mount {m['target']}": mount(m) for m in sorted(rank["mounts"], key=lambda m: str(m["target"]))}
    found |= {"gpus": str(rank["gpus"]), "memory limit": size(rank["memory_limit"]), "shm size": size(rank["shm_size"])}
    return {key: value for key, value in found.items() if value or key.startswith(("argv ", "env "))}


def options(argv: Iterable[str]) -> dict[str, str]:
    """An argument list as option to its values; of JSON values every key by itself. What comes first is ``command``."""
    found: dict[str, list[str]] = {}
    option = "command"
    for word_ in argv:
        if re.match(r"-{1,2}[A-Za-z]", word_):
            option, equals, value = word_.partition("=")
            found.setdefault(option, []).extend([value] if equals else [])
        else:
            found.setdefault(option, []).append(word_)
    flattened: dict[str, str] = {}
    for option, values in found.items():
        try:
            inside = json.loads(values[0]) if len(values) == 1 else None
        except ValueError:
            inside = None
        if isinstance(inside, dict):
            flattened |= {f"{option}.{key}": json.dumps(value) for key, value in inside.items()}
        else:
            flattened[option] = " ".join(values)
    return flattened


def limit(text: str) -> str:
    """``soft:hard``; one number stands for both."""
    return text if ":" in text else f"{text}:{text}"


def mount(item: Mapping[str, Any]) -> str:
    """A mount by what is mounted there."""
    return f"{item['source']} ({'read-only' if item.get('read_only') else 'writable'})"


def size(value: Any) -> str:
    """A size as Docker takes it (``112g``) or in bytes, in one spelling; empty for none."""
    found = re.fullmatch(r"([\d.]+)([bkmg]?)", str(value).lower())
    number = float(found[1]) * UNITS[found[2] or "b"] if found else 0
    if not number:
        return ""
    unit = next(u for u in "gmkb" if number % UNITS[u] == 0 or u == "b")
    return f"{number / UNITS[unit]:.0f}{unit.strip('b')}"


def running_rank(facts: Document) -> Rank | None:
    """The rank that a node's facts show, ``None`` without our container; its values as the plan spells them."""
    container = own_container(facts)
    if container is None:
        return None
    made, labels = container.get("made_from") or {}, container.get("labels") or {}
    lists = ("argv", "cap_add", "devices", "mounts")
    rank: dict[str, Any] = {
        **{name: made.get(name) or [] for name in lists},
        "env": made.get("env") or {},
        "env_of_image": made.get("env_of_image"),
        "ulimits": made.get("ulimits") or {},
        "gpus": made.get("gpus") or "",
        "memory_limit": made.get("memory_bytes") or 0,
        "shm_size": made.get("shm_bytes") or 0,
        "profile": labels.get(deploy.LABEL_PROFILE, ""),
        "rank": labels.get(deploy.LABEL_RANK, "without a number"),
        "image": labels.get(deploy.LABEL_IMAGE) or container.get("image"),
        "image_digest": container.get("image_id"),
    }
    if rank_container.launcher(labels) == rank_container.SPARKRUN:
        return sparkrun.as_planned(rank, labels.get(rank_container.MODEL_LABEL, ""))
    return rank


def own_container(facts: Document) -> Document | None:
    """Our container in a node's facts."""
    containers = (facts.get("docker") or {}).get("containers") or []
    return next((c for c in containers if c.get("ours")), None)


def state(facts: Document) -> dict[str, Any]:
    """Our container as ``gb10_rank`` tells it, which is what ``deploy.restart_reasons`` reads."""
    container = own_container(facts)
    if container is None:
        return {"exists": False}
    same = {key: container.get(key) for key in ("image_id", "labels", "exit_code", "key_differs")}
    return {"exists": True, "running": container.get("state") == "running", **same}


@dataclass(frozen=True)
class Difference:
    """What a deploy changes: per node its changes, and why the ranks restart (empty: they do not)."""

    changes: Mapping[str, list[Change]]
    reasons: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        nodes = {node: [asdict(change) for change in found] for node, found in self.changes.items()}
        return {"nodes": nodes, "restart": list(self.reasons)}


def against_plan(plan: Document, earlier: Document) -> Difference:
    """The plan against an earlier one."""
    before, after = ranks(earlier), ranks(plan)
    changes = by_node(after, before)
    hashes = [plan_hash(document["ranks"]) for document in (earlier, plan)]
    if hashes[0] == hashes[1] and not changes:
        return Difference({}, ())
    return Difference(changes, (f"the plan changed ({hashes[0][:12]} -> {hashes[1][:12]})",))


def against_facts(
    plan: Document,
    facts: Mapping[str, Document],
    hosts: Mapping[str, Mapping[str, Any]],
    source: Mapping[str, Image],
) -> Difference:
    """The plan against what runs. ``facts``, ``hosts`` (the plan's variables) by node; ``source``: images by name."""
    known = images.ids_on(plan["ranks"], facts, source)
    resolved = deploy.resolve(plan, deploy.detected(plan["ranks"], facts, hosts), known)
    running = {name: running_rank(document) for name, document in facts.items()}
    before = {name: rank for name, rank in running.items() if rank is not None}
    reasons = deploy.restart_reasons(resolved, {name: state(document) for name, document in facts.items()})
    return Difference(by_node(ranks(resolved), before), tuple(reasons))


def ranks(plan: Document) -> dict[str, Rank]:
    """A plan's ranks by node, each with its profile."""
    return {rank["node"]: {**rank, "profile": plan["profile"]} for rank in plan["ranks"]}


def by_node(planned: Mapping[str, Rank], running: Mapping[str, Rank]) -> dict[str, list[Change]]:
    """Changes of every node that has any, planned ranks first."""
    names = [*planned, *(name for name in running if name not in planned)]
    found = {name: fields(planned.get(name), running.get(name)) for name in names}
    return {name: changes for name, changes in found.items() if changes}


def text(difference: Difference) -> str:
    """As printed: nodes with the same changes together, then what happens to the ranks."""
    alike: dict[tuple[Change, ...], list[str]] = {}
    for node, found in difference.changes.items():
        alike.setdefault(tuple(found), []).append(node)
    parts = []
    for same, nodes in alike.items():
        parts.append("\n".join([f"{', '.join(nodes)}:", *(f"  {change}" for change in same)]))
    if difference.reasons:
        parts.append("\n".join(["A deploy stops and starts every rank:", *(f"  {r}" for r in difference.reasons)]))
    elif difference.changes:
        parts.append(
            "A deploy leaves this as it is: the ranks carry this plan's hash, so they were changed by hand. Stop them "
            "(playbooks/stop.yml) and deploy."
        )
    else:
        parts.append("Nothing would change.")
    return "\n\n".join(parts)
