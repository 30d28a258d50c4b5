"""What the controller holds to bring to nodes: the checkpoint and its manifest (images: gb10.layout)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from gb10.data import load
from gb10.findings import Finding, error
from gb10.model_config import Checkpoint
from gb10.relay.problem import Problem
from gb10.weights_files import Entry, at_hand
from gb10.weights_manifest import INDEX, MANIFEST, read


class SourceError(Exception):
    """A source that cannot be used; ``finding`` says which and why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def manifest(folder: str) -> dict[str, int] | None:
    """Path to size in bytes of ``folder/manifest.json``; None for no folder. Raises SourceError as ``entries`` does."""
    return {path: size for path, size, _sha256 in entries(folder)} if folder else None


def entries(folder: str) -> list[Entry]:
    """Entries of ``folder/manifest.json``, none for no folder.

    The manifest may stand there without shards, for a checkpoint that comes from elsewhere. Raises SourceError, also
    when some shards are there and one of its files is not, has another size, or is a link to nothing.
    """
    if not folder:
        return []
    path = Path(folder) / MANIFEST
    remedy = "Make it with gb10 weights manifest, or empty weights_source if the nodes have the checkpoint."
    try:
        found = read(path)
        if holds_shards(folder, found):
            at_hand(Path(folder), found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as problem:
        raise SourceError(error("weights-source-unreadable", f"{path}: {shown(problem)}.", remedy)) from None
    except Problem as problem:
        raise SourceError(error("weights-source-unreadable", problem.text, "")) from None
    return found


def holds_shards(folder: str, found: Sequence[Entry]) -> bool:
    """Whether the controller has the weights and not their manifest alone."""
    names = [path for path, _size, _sha256 in found if path.endswith(".safetensors")] or [path for path, *_ in found]
    return any(os.path.lexists(Path(folder) / path) for path in names)


def engram_shards(folder: str) -> list[str]:
    """Shards that hold Engram tables by the index of ``folder``; none where it has no readable one."""
    pattern = re.compile(load("weights")["engram_tensor"])
    try:
        placed = json.loads((Path(folder) / INDEX).read_text())["weight_map"].items() if folder else ()
        return sorted({str(shard) for tensor, shard in placed if pattern.search(tensor)})
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return []  # all shards are then judged


def checkpoint(model_config: str, weights_source: str) -> Checkpoint | None:
    """The config.json that ``model_config`` names (the file, or its directory), else that of ``weights_source``.

    None where neither has one. The bytes of the weights are those of model.safetensors.index.json beside it, else of
    manifest.json, else unknown. Raises SourceError.
    """
    remedy = "Give the config.json of a checkpoint, or leave model_config empty for DeepSeek-V4.1-Flash."
    path = Path(model_config or weights_source).expanduser()
    try:
        path = path / "config.json" if path.is_dir() else path
        if not model_config and not (weights_source and path.name == "config.json" and path.is_file()):
            return None
        return Checkpoint(json.loads(path.read_text()), _weight_bytes(path.parent))
    except (OSError, ValueError, RecursionError) as problem:
        message = f"model_config: {path}: {shown(problem)}."
        raise SourceError(error("model-config-unreadable", message, remedy)) from None


def _weight_bytes(folder: Path) -> int | None:
    """Bytes of all weights, as the index or else the manifest beside a config.json says; None where they do not."""
    index, listed = folder / "model.safetensors.index.json", folder / "manifest.json"
    path = index if index.is_file() else listed
    if not path.is_file():
        return None
    try:
        held = json.loads(path.read_text())
        if path == index:
            return count(held["metadata"]["total_size"]) or None
        shards = [entry for entry in held["files"] if str(entry["path"]).endswith(".safetensors")]
        return sum(count(entry["size"]) for entry in shards) or None
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as problem:
        raise ValueError(f"{path.name} beside it: {shown(problem)}") from None


def digest(value: object) -> str:
    """A sha256 in hex."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError(f"{value!r} is no sha256")
    return value


def count(value: object) -> int:
    """A number of bytes."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no number of bytes")
    return value


def shown(problem: Exception) -> str:
    """A Python error in words."""
    if isinstance(problem, TypeError | AttributeError):
        return "it has not the form it should have"
    if isinstance(problem, KeyError):
        return f"no key {problem}"
    if isinstance(problem, OSError):
        return str(problem.strerror or problem)
    if isinstance(problem, RecursionError):
        return "it is nested too deeply"
    if isinstance(problem, UnicodeDecodeError):
        return "it is no UTF-8 text"
    if isinstance(problem, json.JSONDecodeError):
        where = f"line {problem.lineno}, column {problem.colno}"
        return f"it is no JSON ({where}: {problem.msg})" if problem.doc.strip() else "it is empty"
    return str(problem).rstrip(".")
