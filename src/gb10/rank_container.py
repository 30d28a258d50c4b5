"""Which container is a rank, whoever started it; for modules of Ansible on nodes: the standard library alone.

Our own start makes ``gb10-rank``. sparkrun names its containers itself, ``sparkrun_<16 hex>_<12 hex>_node_<rank>``, and
refuses a job that is called otherwise (sparkrun 0.4.2, core/ownership.py): there our labels tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

DOCKER, SPARKRUN = "docker", "sparkrun"
JOB_LABEL, RANK_LABEL, MODEL_LABEL = "sparkrun.cluster_id", "sparkrun.rank", "sparkrun.model"
OUR_RANK_LABEL, PLAN_LABEL = "gb10.rank", "gb10.plan-hash"
SPARKRUN_NAME = re.compile(r"sparkrun_[0-9a-f]{16}_[0-9a-f]{12}_node_\d+")
# The script that sparkrun runs the engine by; what a container without it is called.
ENGINE, ASLEEP, NO_ENGINE = "sparkrun_serve.sh", "asleep", "no engine runs in its container"
LISTED = "/containers/json?all=true"  # the list of Docker's API that names() reads


def is_rank(found: str, held: Mapping[str, str] | None, name: str) -> bool:
    """Whether a container of this name and these labels is a rank; ``name``: of those we make ourselves."""
    return found == name or (bool(SPARKRUN_NAME.fullmatch(found)) and PLAN_LABEL in (held or {}))


def labels(held: Mapping[str, str] | None) -> dict[str, str]:
    """A container's labels with the rank under our own name: our labels through sparkrun are the same on all nodes."""
    given = dict(held or {})
    if JOB_LABEL in given and RANK_LABEL in given:
        given.setdefault(OUR_RANK_LABEL, given[RANK_LABEL])
    return given


def launcher(held: Mapping[str, str] | None) -> str:
    """Who started a container, by its labels."""
    return SPARKRUN if JOB_LABEL in (held or {}) else DOCKER


def asleep(held: Mapping[str, str] | None, top: Callable[[], Any]) -> bool:
    """Whether a running container has no engine in it: sparkrun's containers sleep, and the engine is put into them.

    ``top``: asks Docker for the container's processes.
    """
    if launcher(held) != SPARKRUN:
        return False
    rows = (top() or {}).get("Processes") or []
    return not any(ENGINE in word for row in rows for word in row)


def names(listed: Iterable[Mapping[str, Any]], name: str) -> list[str]:
    """Names of the rank containers in a list of Docker's API: running ones first, ``name`` before others."""
    found = [
        (item.get("State") != "running", one != name, one)
        for item in listed
        for one in (given.removeprefix("/") for given in item.get("Names") or [])
        if is_rank(one, item.get("Labels"), name)
    ]
    return [one for _stopped, _other, one in sorted(found)]
