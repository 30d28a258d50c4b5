"""What each node lacks, from its facts: roles act on this and on nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gb10.plan import UNPINNED
from gb10.settings import flag, plain

# community.docker's modules need it; from the distribution, never from pip into the system's Python.
REQUESTS_PACKAGE = "python3-requests"


def merged_daemon_json(current: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> str | None:
    """The new text of daemon.json with ``wanted`` merged key by key, or ``None`` when it already holds it.

    Keys of others stay; a mapping under one of our keys is merged too.
    """
    result = _merge(current or {}, wanted)
    return None if result == (current or {}) else json.dumps(result, indent=4) + "\n"


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        held = result.get(key)
        result[key] = _merge(held, value) if isinstance(held, Mapping) and isinstance(value, Mapping) else value
    return result


def has_image(facts: Mapping[str, Any], tag: str, image_id: str) -> bool:
    """Whether the node holds the very image: its id under its tag where it is pinned, else just the tag."""
    for image in facts["docker"]["images"]:
        if image_id == UNPINNED and tag in image["tags"]:
            return True
        if image["id"] == image_id and tag in image["tags"]:
            return True
    return False


def docker_todo(
    facts: Mapping[str, Any], packages: list[str], daemon: Mapping[str, Any], restart_under_rank: object
) -> dict[str, Any]:
    """What the docker role does on one node.

    Keys of the result: ``packages`` to install, ``daemon_json`` (new text or None), ``refused`` (Docker would have to
    restart under a running rank), ``start``.
    """
    docker = facts["docker"]
    missing = [] if docker["installed"] else [str(name) for name in packages]
    if not facts["python"]["requests"]:
        missing.append(REQUESTS_PACKAGE)
    daemon_json = merged_daemon_json(docker["daemon_json"]["parsed"], plain(daemon))
    runs = any(c["ours"] and c["state"] == "running" for c in docker["containers"])
    return {
        "packages": missing,
        "daemon_json": daemon_json,
        "refused": bool(daemon_json) and runs and not flag(restart_under_rank),
        "start": not docker["reachable"],
    }


def images_to_bring(
    ranks: Iterable[Mapping[str, Any]], facts: Mapping[str, Mapping[str, Any]], archives: Mapping[str, str]
) -> dict[str, str]:
    """Node name to the archive it needs, for every node that lacks its rank's image."""
    return {
        rank["node"]: archives.get(rank["image"], "")
        for rank in ranks
        if not has_image(facts[rank["node"]], rank["image"], rank["image_digest"])
    }
