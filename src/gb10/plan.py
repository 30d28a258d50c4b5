"""The plan: from settings and inventory to one JSON document, before any node is contacted."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gb10 import command, environment
from gb10.findings import Finding, error, errors, warning
from gb10.memory import MemoryPlan
from gb10.memory_input import MemoryInput
from gb10.model_config import Checkpoint
from gb10.nodes import Node, read_nodes
from gb10.planned import Facts, plan_for
from gb10.settings import NAMES, BadValue, Settings, integer, read, shown

Document = dict[str, Any]

UNPINNED = "unpinned"


def canonical(value: Any) -> str:
    """One text per value: sorted keys, no spaces. What is hashed and chained."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def plan_hash(ranks: Iterable[Mapping[str, Any]]) -> str:
    """sha256 over everything a container is made from. Another hash means: restart the ranks."""
    return hashlib.sha256(canonical(list(ranks)).encode()).hexdigest()


def build(
    profile: str,
    hosts: Mapping[str, Mapping[str, Any]],
    image_ids: Mapping[str, str] | None = None,
    facts: Facts | None = None,
    checkpoint: Checkpoint | None = None,
    calibrated: Mapping[str, Any] | None = None,
) -> Document:
    """The plan document (docs/plan.md has the contract).

    ``hosts``: every host of group gb10 with its variables. ``image_ids``: tag to image id (``sha256:<hex>``), as far as
    the controller holds the images; ``None`` when it holds none. ``facts``: ``gb10`` documents by node, to plan with
    the nodes' own memory. ``checkpoint``: the model, where it is not the built-in one. ``calibrated``: what this
    cluster measured.
    """
    shared, findings = _shared_variables(hosts)
    settings, bad = read(shared)
    findings += bad
    nodes, bad = read_nodes(hosts, _subset(shared), _tensor_parallel(shared))
    findings += bad
    document: Document = {
        "schema": 1,
        "profile": profile,
        "head": nodes[0].name if nodes and nodes[0].rank == 0 else "",
        "ranks": [],
        "memory": {"reported": {}, "engine": {}},
    }
    if settings is not None:
        env, unread = environment.shared_environment(settings)
        findings += unread + environment.environment_warnings(env, settings) + _setting_findings(settings, env)
        findings += _image_findings(settings, image_ids)
        if not unread:  # what NCCL takes would be that of variables left out
            planned = plan_for(settings, env, nodes, facts, checkpoint, calibrated)
            findings += planned.findings
            document["memory"] = planned.as_dict()
            if planned.memory is not None:  # `auto` is a number from here on
                share = planned.memory.input.gpu_memory_utilization
                settings = replace(settings, gpu_memory_utilization=share)
        if not errors(findings):
            digest = (image_ids or {}).get(settings.container_image, UNPINNED)
            document["ranks"] = [_rank(settings, env, node, nodes, digest) for node in nodes]
    document["findings"] = [f.as_dict() for f in findings]
    return document


def planned_memory(
    hosts: Mapping[str, Mapping[str, Any]],
    facts: Facts | None = None,
    checkpoint: Checkpoint | None = None,
    calibrated: Mapping[str, Any] | None = None,
) -> tuple[MemoryInput, MemoryPlan] | None:
    """The memory model's input and result for what ``build`` would plan; None where the settings allow none."""
    shared, _ = _shared_variables(hosts)
    settings, _ = read(shared)
    if settings is None:
        return None
    nodes, _ = read_nodes(hosts, _subset(shared), _tensor_parallel(shared))
    env, unread = environment.shared_environment(settings)
    if unread:
        return None
    memory = plan_for(settings, env, nodes, facts, checkpoint, calibrated).memory
    return None if memory is None else (memory.input, memory)


def _shared_variables(hosts: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], list[Finding]]:
    """The cluster-wide variables, which must be the same on every host; those of most hosts where they are not."""
    shared: dict[str, Any] = {}
    findings = []
    for name in NAMES:
        given = {host: repr(variables[name]) for host, variables in hosts.items() if name in variables}
        if not given:
            continue
        usual = Counter(given.values()).most_common(1)[0][0]
        first = next(host for host, value in given.items() if value == usual)
        shared[name] = hosts[first][name]
        for host in hosts:
            if given.get(host) != usual:
                here = shown(hosts[host][name]) if host in given else "not set"
                findings.append(
                    error(
                        "setting-differs",
                        f"{name} is {here} here and {shown(shared[name])} on {first}.",
                        "It holds for the whole cluster: set it for the group.",
                        host,
                    )
                )
    return shared, findings


def _tensor_parallel(shared: Mapping[str, Any]) -> int:
    try:
        return int(integer(1, 64)(shared.get("tensor_parallel")))
    except BadValue:
        return 1


def _subset(shared: Mapping[str, Any]) -> Mapping[str, Any]:
    subset = shared.get("serve_nodes")
    return subset if isinstance(subset, Mapping) else {}


def _setting_findings(settings: Settings, env: Mapping[str, str]) -> list[Finding]:
    """Settings that contradict each other."""
    findings = []
    if settings.api_port == settings.master_port:
        findings.append(
            error(
                "ports-equal",
                f"api_port and master_port are both {settings.api_port}.",
                "Give one of them another port: 8000 and 29501 are the usual ones.",
            )
        )
    if settings.max_num_batched_tokens < settings.max_num_seqs:
        findings.append(
            error(
                "batch-below-seqs",
                f"max_num_batched_tokens {settings.max_num_batched_tokens} is below max_num_seqs "
                f"{settings.max_num_seqs}: vLLM refuses that.",
                "Correct one of them; 8192 and 8 are the usual ones.",
            )
        )
    on_disk = environment_flag(env.get("DSV41_ENGRAM_DISK", "0"))
    if on_disk != (settings.engram == "disk"):
        findings.append(
            error(
                "engram-crossed",
                f"engram is {settings.engram} but DSV41_ENGRAM_DISK is {env.get('DSV41_ENGRAM_DISK', 'not set')}.",
                'engram: disk goes with DSV41_ENGRAM_DISK: "1", engram: memory without it.',
            )
        )
    stock = settings.images_stock_files.get(settings.container_image)
    if stock is not None and ("engram.py" in stock) != (settings.engram == "memory"):
        has = "stock (memory)" if "engram.py" in stock else "patched (disk)"
        findings.append(
            error(
                "image-crossed",
                f"engram is {settings.engram} but {settings.container_image} carries the {has} Engram files.",
                "engram: memory needs the engram-mem image, engram: disk needs latest.",
            )
        )
    owned = sorted(command.options(settings.engine_extra_args) & command.OWNED)
    if owned:
        findings.append(
            error(
                "engine-arg-owned",
                f"engine_extra_args gives {', '.join(owned)}, which the plan sets.",
                "Use the setting of that name: the memory plan and the ranks follow it.",
            )
        )
    config = settings.speculative_config
    if config is not None:
        tokens = config.get("num_speculative_tokens")
        try:
            integer(1, 64)(tokens)
        except BadValue as bad:
            findings.append(
                error(
                    "setting-invalid",
                    f"speculative_config.num_speculative_tokens is {shown(tokens)} but must be {bad}.",
                    "Correct it, or set speculative_config to null for none.",
                )
            )
    return findings


def environment_flag(value: str) -> bool:
    """How vLLM's patch reads DSV41_ENGRAM_DISK: 1 is on."""
    return value.strip() == "1"


def _image_findings(settings: Settings, image_ids: Mapping[str, str] | None) -> list[Finding]:
    if image_ids is None:
        return [
            warning(
                "image-unpinned",
                f"{settings.container_image} is known by its tag only.",
                "Set images_source to a directory with images.json, so that every node runs the same bytes.",
            )
        ]
    if settings.container_image not in image_ids:
        held = ", ".join(sorted(image_ids)) or "none"
        return [
            error(
                "image-unknown",
                f"images_source holds no {settings.container_image} (it holds: {held}).",
                "Add the image to images_source, or correct container_image.",
            )
        ]
    return []


def _rank(settings: Settings, env: Mapping[str, str], node: Node, nodes: list[Node], digest: str) -> Document:
    mounts = [{"type": "bind", "source": settings.weights_path, "target": settings.weights_path, "read_only": True}]
    if settings.storage_cache_path:
        mounts.append(
            {"type": "bind", "source": settings.storage_cache_path, "target": "/root/.cache", "read_only": False}
        )
    for mount in settings.container_mounts:
        mounts.append({"type": "bind", **mount})
    return {
        "rank": node.rank,
        "node": node.name,
        "address": node.address,
        "image": settings.container_image,
        "image_digest": digest,
        "argv": command.argv(settings, node, nodes[0], len(nodes)),
        "env": environment.rank_environment(env, settings, node),
        "ulimits": dict(settings.container_ulimits),
        "cap_add": list(settings.container_cap_add),
        "devices": list(settings.container_devices),
        "gpus": settings.container_gpus,
        "mounts": mounts,
        "memory_limit": settings.container_memory_limit or "",
        "shm_size": settings.container_shm_size,
    }
