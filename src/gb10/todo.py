"""What each node lacks, from its facts: roles act on this and on nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gb10.plan import UNPINNED

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
    """Whether the node holds the very image: the id where it is pinned, else the tag. A tag alone never proves content."""
    for image in facts["docker"]["images"]:
        if image_id == UNPINNED and tag in image["tags"]:
            return True
        if image["id"] == image_id and tag in image["tags"]:
            return True
    return False


def node_todo(
    facts: Mapping[str, Any],
    image: tuple[str, str, str] | None,
    docker_packages: list[str],
    docker_daemon: Mapping[str, Any],
    restart_under_rank: bool,
) -> dict[str, Any]:
    """One node's list.

    ``image``: (tag, id or ``unpinned``, archive name or empty) where the node has a rank. Keys of the result:
    ``packages`` to install, ``daemon_json`` (text or None), ``docker_restart_refused``, ``start_docker``,
    ``image_archive`` to bring (empty: none).
    """
    docker = facts["docker"]
    packages = [] if docker["installed"] else list(docker_packages)
    if not facts["python"]["requests"]:
        packages.append(REQUESTS_PACKAGE)
    daemon_json = merged_daemon_json(docker["daemon_json"]["parsed"], docker_daemon)
    runs = any(c["ours"] and c["state"] == "running" for c in docker["containers"])
    lacks = image is not None and not has_image(facts, image[0], image[1])
    return {
        "packages": packages,
        "daemon_json": daemon_json,
        "docker_restart_refused": bool(daemon_json) and runs and not restart_under_rank,
        "start_docker": not docker["reachable"],
        "image_archive": image[2] if image is not None and lacks else "",
    }
