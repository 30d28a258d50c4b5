"""What runs against what should, field by field; and what of the nodes' preparation is not as declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gb10 import deploy, diff

Document = Mapping[str, Any]

SCHEMA = 1
# Of what a role has to do these only follow from the rest, or are looked at in any case.
FOLLOWING = ("keep", "made", "notify", "directories", "reach", "space", "restart", "probe")


def drift(
    wanted: Document | None,
    facts: Mapping[str, Document],
    todos: Mapping[str, Mapping[str, Document]],
    missing: list[str],
    fault: str | None,
) -> dict[str, Any]:
    """The document. ``wanted``: the deployment that should run, None for none; ``todos``: per node and role what is
    left to do; ``missing``: nodes that could not be read; ``fault``: of the endpoint, None where it was not asked.
    """
    running = {name: diff.running_rank(document) for name, document in facts.items()}
    before = {name: rank for name, rank in running.items() if rank is not None}
    planned = {} if wanted is None else diff.ranks(wanted)
    changes = diff.by_node({n: r for n, r in planned.items() if n not in missing}, before)
    if wanted is None:
        reasons = [f"{name}: a rank is there though all should be stopped" for name in before]
    else:
        states = {name: diff.state(document) for name, document in facts.items()}
        found = deploy.restart_reasons(wanted, states)
        reasons = [reason for reason in found if reason.split(":")[0] not in missing]
    prepared = {name: unprepared(roles) for name, roles in todos.items()}
    document = {
        "schema": SCHEMA,
        "unread": missing,
        "ranks": {node: [asdict(change) for change in found] for node, found in changes.items()},
        "restart": reasons,
        "prepared": {node: found for node, found in prepared.items() if found},
        "endpoint_fault": fault,
    }
    differs = any(document[key] for key in ("unread", "ranks", "restart", "prepared", "endpoint_fault"))
    return document | {"drift": differs}


def unprepared(roles: Mapping[str, Document]) -> list[str]:
    """What the roles would still do on a node, one line a thing."""
    found = []
    for role, todo in roles.items():
        for key, value in todo.items():
            if value and key not in FOLLOWING:
                found.append(f"{role}: {key} {named(value)}")
    return found


def named(value: Any) -> str:
    """What a thing to do is about, shortly."""
    if isinstance(value, Mapping):
        return str(value.get("path") or ", ".join(map(str, value)))[:120]
    if isinstance(value, list | tuple):
        return ", ".join(named(one) for one in value)[:200]
    return str(value).splitlines()[0][:120] if str(value) else ""


def text(document: Document) -> str:
    """As printed."""
    lines = [f"{node}: could not be read" for node in document["unread"]]
    for node, changes in document["ranks"].items():
        lines += [f"{node}: {diff.Change(**change)}" for change in changes]
    lines += document["restart"]
    for node, found in document["prepared"].items():
        lines += [f"{node}: {one}" for one in found]
    if document["endpoint_fault"]:
        lines.append(f"the endpoint: {document['endpoint_fault']}")
    return "\n".join(lines) if lines else "All is as it should be."
