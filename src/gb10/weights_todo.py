"""What a run has to do about weights: which node has them, who gets what from where, which rows a rank stages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gb10 import data
from gb10.engram import EngramTables, engram_split
from gb10.findings import Finding, error, warning
from gb10.model_config import Checkpoint, Deepseek, builtin, read_model

Document = dict[str, Any]
Looks = Mapping[str, Mapping[str, str]]  # by node: why a path must be brought again

NOBODY = "Set weights_import or weights_repository, complete weights_source, or bring it to the node yourself."


def tables_of(checkpoint: Checkpoint | None) -> EngramTables | None:
    """The Engram tables of a checkpoint, of DeepSeek-V4.1-Flash where none is given; None where it has none."""
    model = read_model(checkpoint.config)[0] if checkpoint else builtin()
    return model.engram if isinstance(model, Deepseek) else None


def stages(
    ranks: Sequence[Mapping[str, Any]], tensor_parallel: int, tables: EngramTables | None
) -> tuple[dict[str, Document], list[Finding]]:
    """By node: rank, rows by layer and bytes of what ``weights_engram_stage`` stages there."""
    if tables is None:
        message = "weights_engram_stage is set, but the checkpoint has no Engram tables."
        return {}, [error("engram-stage-impossible", message, "Set weights_engram_stage: false.")]
    if tensor_parallel != len(ranks):
        message = f"tensor_parallel is {tensor_parallel}, but there are {len(ranks)} ranks: rows are a rank's own."
        return {}, [error("engram-stage-impossible", message, "Set weights_engram_stage: false.")]
    try:
        shards = engram_split(tables, tensor_parallel)
    except ValueError as problem:
        return {}, [error("engram-stage-impossible", f"{problem}.", "Set weights_engram_stage: false.")]
    pattern = data.load("weights")["engram_tensor"]
    found = {}
    for rank in ranks:
        own = shards[rank["rank"]].as_dict()
        about = {"rank": own["rank"], "tensor_parallel": tensor_parallel, "rows": own["rows"], "bytes": own["bytes"]}
        found[str(rank["node"])] = about | {"pattern": pattern}
    return found, []


def route(looks: Looks, order: Sequence[str], files: Sequence[Document], given: Mapping[str, Any]) -> Document:
    """How what is missing comes to every node.

    ``looks``: every node's, ``order``: nodes by rank; ``given``: ``node`` (weights_source_node), ``folder`` (what of
    the checkpoint the controller holds, else empty), ``directory`` (weights_import), ``repository``.

    Returns ``source`` (the node all others get it from; empty where nothing is missing), ``files`` (the union of what
    anybody lacks), ``obtain`` (paths the source must get first), ``by`` (controller, directory or repository) and
    ``wants`` (by node, what spread is to bring). Any node that has everything is the source, weights_source_node and
    then the head first; only where there is none one of the three is asked. Every lacking node gets the same list, for
    one line of nodes serves it; files that are right there are not fetched again. ``findings`` say why it cannot be.
    """
    lacking = {node: dict(looks[node]) for node in order if looks.get(node)}
    none: Document = {"source": "", "files": [], "obtain": [], "by": "", "wants": {}, "findings": []}
    named = str(given.get("node") or "")
    if named and named not in order:
        message = f"weights_source_node is {named}, no node of group gb10."
        return none | {"findings": [error("weights-source-node", message, f"Name one of {', '.join(order)}.")]}
    if not lacking:
        return none
    first = [named, *order] if named else [*order]
    whole = [node for node in first if node not in lacking]
    union = {path for reasons in lacking.values() for path in reasons}
    source, obtain, by = (whole[0], [], "") if whole else (first[0], sorted(lacking[first[0]]), way(given))
    findings = []
    if obtain and not by:
        reasons = "; ".join(f"{path} is {lacking[source][path]}" for path in obtain[:3])
        more = f" and {len(obtain) - 3} more" if len(obtain) > 3 else ""
        message = f"{reasons}{more} there, no other node has all files, and there is no source."
        findings = [error("weights-not-at-hand", message, NOBODY, source)]
    wants = {node: sorted(union) for node in lacking if node != source}
    return {
        "source": source,
        "files": [entry for entry in files if entry["path"] in union],
        "obtain": obtain,
        "by": by,
        "wants": wants,
        "findings": findings,
    }


def way(given: Mapping[str, Any]) -> str:
    """Where the source gets it from; empty where nothing is given."""
    return next((name for key, name in WAYS if given.get(key)), "")


WAYS = (("folder", "controller"), ("directory", "directory"), ("repository", "repository"))


def still_wrong(looks: Looks) -> list[Finding]:
    """What differs from the manifest after all was brought."""
    found = []
    for node, reasons in looks.items():
        for path, why in sorted(reasons.items()):
            message = f"{path} is {why} after the transfer."
            found.append(error("weights-wrong", message, "Look at the node's disk, and run again.", node))
    return found


def prune_findings(found: Mapping[str, Sequence[str]], mounted: Mapping[str, str]) -> tuple[list[str], list[Finding]]:
    """Nodes on which what no manifest names may go, and a warning for each on which a container has it mounted.

    ``mounted``: by node the container that runs with the checkpoint's directory in it.
    """
    findings = []
    for node, paths in found.items():
        if paths and node in mounted:
            message = f"{len(paths)} files no manifest names stay, for {mounted[node]} has their directory mounted."
            findings.append(
                warning("weights-in-use", message, "Stop the ranks (playbooks/stop.yml) to remove them.", node)
            )
    return [node for node, paths in found.items() if paths and node not in mounted], findings


def mounting(facts: Mapping[str, Any], path: str) -> str:
    """Name of a running container of ours that has ``path``, what is in it or what it is in, mounted; else empty."""
    own = path.rstrip("/") + "/"
    for container in (facts.get("docker") or {}).get("containers") or []:
        mounts = (container.get("made_from") or {}).get("mounts") or []
        places = [str(mount.get("source") or "").rstrip("/") + "/" for mount in mounts]
        if container.get("state") in ("running", "paused", "restarting") and any(
            own.startswith(place) or place.startswith(own) for place in places
        ):
            return str(container.get("name"))
    return ""
