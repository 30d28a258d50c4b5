"""The documents an operator gets and gives back: plans, and the facts of nodes. Reads and writes files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gb10.findings import error
from gb10.settings import BadValue, maybe_text, plain
from gb10.sources import SourceError, shown

Document = dict[str, Any]

# Of a facts file, and of each node's facts in it (docs/facts.md); of a plan (docs/plan.md).
SCHEMA = 1
RANK = {"rank": int, "node": str, "image": str, "image_digest": str, "argv": list, "env": dict, "ulimits": dict}
RANK |= {"cap_add": list, "devices": list, "gpus": str, "mounts": list, "memory_limit": str, "shm_size": str}
WRITE = "Give a file that can be written, in a directory that exists."
FORM = "Write it with playbooks/preflight.yml -e facts_file=FILE."


def text(document: object) -> str:
    """A document as it is written: the same document gives the same bytes."""
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def write_plan(target: object, document: object) -> None:
    """A plan (or what is made of plans) as JSON. Raises SourceError."""
    try:
        Path(maybe_text(target)).expanduser().write_text(text(document))
    except (OSError, RuntimeError, BadValue) as problem:
        message = f"plan_file {target}: {shown(problem)}."
        raise SourceError(error("plan-file-unwritable", message, WRITE)) from None


def registered(hostvars: Mapping[str, Any], names: Iterable[str], variable: str) -> dict[str, Document]:
    """Facts by node, of the nodes that registered ``gb10_facts`` as ``variable``."""
    held = {str(name): hostvars[name].get(variable) for name in names}
    return {name: plain(given["gb10"]) for name, given in held.items() if given and "gb10" in given}


def write_facts(target: object, nodes: Mapping[str, Any]) -> None:
    """Facts by node, for the operator's eyes only (mode 0600): environments tell much. Raises SourceError."""
    try:
        path = Path(maybe_text(target)).expanduser()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            os.fchmod(descriptor, 0o600)  # the file may have been there
            stream.write(text({"schema": SCHEMA, "nodes": nodes}))
    except (OSError, RuntimeError, BadValue) as problem:
        message = f"facts_file {target}: {shown(problem)}."
        raise SourceError(error("facts-file-unwritable", message, WRITE)) from None


def read(path: str) -> Document:
    """A JSON object of schema 1: facts (``nodes``) or a plan (``ranks``). Raises SourceError."""
    try:
        document = json.loads(Path(path).expanduser().read_text())
    except (OSError, ValueError, RuntimeError) as problem:
        raise unusable(path, shown(problem)) from None
    if not isinstance(document, dict) or not {"nodes", "ranks"} & set(document):
        raise unusable(path, "it holds neither facts nor a plan")
    if document.get("schema") != SCHEMA:
        raise unusable(path, f"its schema is {document.get('schema')!r}, {SCHEMA} is read here")
    return document


def ranks_of(path: str, document: Document) -> list[Document]:
    """The ranks in a plan that was read, each with every key. Raises SourceError."""
    ranks = document.get("ranks")
    if not isinstance(ranks, list) or not all(
        isinstance(rank, dict) and all(isinstance(rank.get(key), kind) for key, kind in RANK.items()) for rank in ranks
    ):
        raise unusable(path, "its ranks have not the form they should have", "Write it with gb10 plan -o FILE.")
    if not ranks:
        raise unusable(path, "the plan in it has errors and no ranks", "Give a plan without errors.")
    return ranks


def facts_of(path: str, document: Document) -> dict[str, Document]:
    """The facts by node in a facts file that was read. Raises SourceError."""
    nodes = document.get("nodes")
    if not isinstance(nodes, dict):
        raise unusable(path, "it is no file of facts")
    for name, facts in nodes.items():
        if not isinstance(facts, dict) or facts.get("schema") != SCHEMA or not isinstance(facts.get("memory"), dict):
            raise unusable(path, f"the facts of {name} are not of schema {SCHEMA}")
    return nodes


def require(path: str, nodes: Mapping[str, Document], names: Iterable[str]) -> None:
    """Refuses (SourceError) facts that lack one of the nodes ``names``."""
    missing = sorted(set(names) - set(nodes))
    if missing:
        raise unusable(path, f"it has no facts of {', '.join(missing)}", "Ask all nodes again. " + FORM)


def unusable(path: str, why: str, remedy: str = FORM) -> SourceError:
    """A file that was given and cannot be used."""
    return SourceError(error("facts-file-unusable", f"{path}: {why}.", remedy))
