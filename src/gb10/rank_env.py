"""The environment of a node's rank as a file on the node, for tests by hand with the same settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gb10.managed import HEADER, File, directories, keep_files, to_write

Document = Mapping[str, Any]


def text(env: Mapping[str, str]) -> str:
    """One KEY=value a line, sorted, as `docker run --env-file` takes it."""
    return HEADER + "".join(f"{key}={value}\n" for key, value in sorted(env.items()))


def nccl_todo(facts: Document, rank: Document | None, path: str) -> dict[str, Any]:
    """``keep``, ``directories`` and ``files`` of one node; all empty where it has no rank or the file is right."""
    files = to_write([File(path, text(rank["env"]))] if rank else [], facts)
    folders = directories(files, facts)
    return {
        "keep": keep_files(files, folders),
        "directories": folders,
        "files": [file.as_task() for file in files],
    }
