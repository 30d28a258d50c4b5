"""An all-reduce over all ranks with the containers of the plan: what is started, and what its output says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gb10 import deploy
from gb10.findings import Finding, error
from gb10.node_memory import serving

Document = Mapping[str, Any]

NAME = "gb10-all-reduce"
SCRIPT = Path(__file__).with_name("all_reduce_worker.py")
BYTES, REPEATS = 1 << 26, 20


def refusals(plan: Document, facts: Mapping[str, Document], backend: str) -> list[Finding]:
    """Why it cannot run: no GPU in containers, a rank that runs, an image that is not there."""
    findings = []
    for rank in plan["ranks"]:
        node = str(rank["node"])
        if backend == "nccl" and not rank["gpus"]:
            message = "Containers get no GPU here (container_gpus is empty), and NCCL needs one."
            remedy = "-e fabric_all_reduce_backend=gloo does the same over the CPUs."
            findings.append(error("all-reduce-no-gpu", message, remedy, node))
        elif serving(facts[node]):
            message = "A rank of ours runs here and has the memory."
            findings.append(error("test-under-rank", message, "Stop the ranks (playbooks/stop.yml).", node))
        elif rank["image"] not in [tag for image in facts[node]["docker"]["images"] for tag in image["tags"]]:
            message = f"{rank['image']} is not on the node."
            findings.append(error("all-reduce-no-image", message, "Bring it: playbooks/images.yml.", node))
    return findings


def containers(
    plan: Document, run_id: str, backend: str, python: Sequence[str], limit: int, without: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """By node the arguments of its container: those of its rank, but for the command and what finds the others.

    ``limit``: seconds after which a container ends by itself. ``without``: sources of mounts it does not need, since
    they may not be there yet (weights). NCCL tells the transport it takes.
    """
    found = deploy.containers(plan, run_id)
    head = plan["ranks"][0]["address"]
    for rank in plan["ranks"]:
        one = found[rank["node"]]
        worker = [*python, "-c", SCRIPT.read_text(), backend, str(BYTES), str(REPEATS)]
        one["command"] = ["timeout", "--kill-after=5", str(limit), *worker]
        one["env"] = dict(rank["env"]) | {
            "RANK": str(rank["rank"]),
            "WORLD_SIZE": str(len(plan["ranks"])),
            "MASTER_ADDR": str(head),
            "MASTER_PORT": port_of(rank),
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET",
        }
        one["mounts"] = [mount for mount in one["mounts"] if mount["source"] not in without]
        one["labels"] = {}
    return found


def port_of(rank: Document) -> str:
    """The port the ranks meet at: that of the plan."""
    argv = list(rank["argv"])
    return str(argv[argv.index("--master-port") + 1])


def judge(plan: Document, outputs: Mapping[str, str], transport: str) -> tuple[str, list[Finding]]:
    """A line for the operator, and what went wrong. ``outputs``: what each node's container printed."""
    findings, speeds = [], []
    for rank in plan["ranks"]:
        node, text = str(rank["node"]), str(outputs.get(rank["node"]) or "")
        result = result_of(text)
        if result is None:
            lines = [line for line in text.splitlines() if line.strip()]
            message = f"Rank {rank['rank']} gave no result: {lines[-1][:200] if lines else 'it said nothing'}."
            findings.append(error("all-reduce-failed", message, "See the container's output above.", node))
            continue
        speeds.append(float(result["bus_gbps"]))
        if not result["right"]:
            message = "The sum is wrong."
            findings.append(error("all-reduce-wrong", message, "Do not serve from this node: look at its GPU.", node))
        if transport == "roce" and "NET/IB" not in text:
            message = "NCCL did not take RDMA (no NET/IB in its log), but silently TCP."
            remedy = "Check /dev/infiniband and memlock in the container, and NCCL_IB_HCA."
            findings.append(error("all-reduce-over-tcp", message, remedy, node))
    line = f"All-reduce of {BYTES >> 20} MiB over {len(plan['ranks'])} ranks: " + (
        f"bus bandwidth {min(speeds):.2f} Gb/s" if speeds else "no result"
    )
    return line, findings


def result_of(text: str) -> dict[str, Any] | None:
    """The worker's line in its output."""
    for line in text.splitlines():
        if line.startswith('{"rank"'):
            try:
                result: dict[str, Any] = json.loads(line)
            except ValueError:
                return None
            return result
    return None
