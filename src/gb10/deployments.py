"""What should run, as the nodes keep it; and what to go back to, as the ledger has it.

Every node holds one record (``/var/lib/gb10/wanted.json``): ``{schema, want, run, time, operator, controller,
deployment}``. ``want`` is ``serving`` or ``stopped``; ``deployment`` is the whole document of ``deploy.resolve`` that
the containers are made from. It is written before the first rank is touched, so that whatever happens then, what was
meant is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gb10.answer import endpoint_fault
from gb10.environment import SOCKETS
from gb10.fabric import device
from gb10.findings import Finding, error
from gb10.kept_key import LEAVE
from gb10.plan import UNPINNED, plan_hash
from gb10.rank_container import DOCKER
from gb10.runs import Run, deployments

Document = Mapping[str, Any]

SCHEMA = 1
SERVING, STOPPED = "serving", "stopped"

# Keys of a rank's environment that name what its node must have.
HCAS, ADDRESS = "NCCL_IB_HCA", "VLLM_HOST_IP"
NAMED = (*SOCKETS, HCAS, ADDRESS)


def record(want: str, claim: Document, deployment: Document | None = None) -> str:
    """A node's record as it is kept. ``claim``: of the run's lock (lock.py)."""
    made = {"schema": SCHEMA, "want": want, **{key: claim[key] for key in ("run", "time", "operator", "controller")}}
    return json.dumps({**made, "deployment": deployment and dict(deployment)}, sort_keys=True) + "\n"


def wanted(deployment: Document | None, claim: Document) -> str:
    """The record of that a deployment should serve, or that nothing should run."""
    return record(STOPPED if deployment is None else SERVING, claim, deployment)


def read(kept: str) -> dict[str, Any] | None:
    """A record; None where there is none, or none that can be read: a deployment must give its own hash."""
    try:
        found = json.loads(kept)
        whole = found["schema"] == SCHEMA and found["want"] in (SERVING, STOPPED) and isinstance(found["run"], str)
        if not whole or (found["want"] == SERVING and not is_whole(found["deployment"])):
            return None
    except (ValueError, KeyError, TypeError):
        return None
    return dict(found)


def is_whole(deployment: Any) -> bool:
    """Whether a deployment is what it was when it was kept."""
    try:
        ranks = deployment["ranks"]
        names = bool(ranks) and all(rank["node"] and rank["argv"] for rank in ranks) and bool(deployment["head"])
        return names and plan_hash(ranks) == deployment["plan_hash"]
    except (KeyError, TypeError):
        return False


def newest(kept: Mapping[str, str | None]) -> dict[str, Any] | None:
    """Of what the nodes keep, the record of the last run (run ids sort by time); None where no node has one."""
    found = [held for held in (read(one or "") for one in kept.values()) if held is not None]
    return max(found, key=lambda held: held["run"], default=None)


def on_record(deployment: Document, kept: str) -> bool:
    """Whether a node has it on record that this deployment should serve."""
    held = read(kept)
    serving = held is not None and held["want"] == SERVING
    return bool(serving and held and held["deployment"]["plan_hash"] == deployment["plan_hash"])


def image_of(deployment: Document, node: str) -> str:
    """What a node's store calls the image of its rank; empty for a node without one."""
    for rank in deployment["ranks"]:
        if rank["node"] == node:
            return str(rank["image"] if rank["image_digest"] == UNPINNED else rank["image_digest"])
    return ""


def needs(deployment: Document, node: str) -> dict[str, list[str]]:
    """What a node's rank was told to use: ``{interfaces, hcas, addresses}``; all empty for a node without one."""
    env: Document = next((rank["env"] for rank in deployment["ranks"] if rank["node"] == node), {})
    named = {key: [one.strip() for one in str(env.get(key, "")).split(",")] for key in NAMED}
    return {
        "interfaces": sorted({one for key in SOCKETS for one in named[key]} - {""}),
        "hcas": sorted({device(one) for one in named[HCAS]} - {""}),
        "addresses": sorted({*named[ADDRESS]} - {""}),
    }


def lacking(
    deployment: Document, readings: Mapping[str, Document], restart: bool, key_act: str, check: bool
) -> list[Finding]:
    """What stands on its nodes against a deployment, found before any rank is touched.

    ``readings``: per node what ``gb10_rank`` returned, with ``image_held``, ``lacks``, ``key_file``; ``restart``:
    whether ranks are to be made; ``key_act``: what becomes of the API key (kept_key.py); ``check``: in check mode an
    image that would have been brought is not there.
    """
    takes_key = deployment["head"] if deployment.get("launcher", DOCKER) == DOCKER else None
    found = []
    for node, said in sorted(readings.items()):
        if not said.get("image_held", True) and not check:
            message = f"It holds no image {image_of(deployment, node)}. No rank was touched."
            found.append(error("image-absent", message, "Bring it with playbooks/images.yml.", node))
        if restart and said.get("lacks"):
            message = (
                f"The deployment on record needs what the node does not have: {'; '.join(said['lacks'])}. "
                "No rank was touched."
            )
            remedy = "Deploy by profile, site.yml -e profile=P: that looks at the nodes anew."
            found.append(error("device-gone", message, remedy, node))
        if said.get("key_file") and key_act == LEAVE and node != takes_key:
            message = (
                "An API key is kept here, and this deployment cannot take it: its head is another node, or sparkrun "
                "starts it. No rank was touched."
            )
            remedy = "Deploy by profile, with the key or with serve_api_key_remove: true."
            found.append(error("api-key-missing", message, remedy, node))
    return found


def previous(held: Iterable[Run], now: str) -> Run | None:
    """The newest run of the ledger that deployed well with another plan than ``now`` (a plan hash)."""
    found = [run for run in deployments(held) if run.begin.get("plan_hash") != now]
    return found[-1] if found else None


def endpoint(deployment: Document) -> dict[str, str]:
    """Where a deployment answers and under which name: ``{url, model}``, as its head's command line says."""
    head = next(rank for rank in deployment["ranks"] if rank["rank"] == 0)
    argv = head["argv"]
    port, model = (argv[argv.index(option) + 1] for option in ("--port", "--served-model-name"))
    return {"url": f"http://{head['address']}:{port}", "model": str(model)}


def fault(deployment: Document, asked: dict[str, Any]) -> str:
    """Why the endpoint does not answer right, by what its head said when it was asked (empty: it said nothing)."""
    if not asked or asked.get("unreachable"):
        return f"{deployment['head']} does not answer"
    return endpoint_fault(asked, endpoint(deployment)["model"])
