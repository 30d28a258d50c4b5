"""A small checkpoint as tests need it: files, their manifest, and ways to damage one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

SHARD = "model-00002-of-00002.safetensors"
FILES = {
    "model-00001-of-00002.safetensors": b"a" * 4096,
    SHARD: b"b" * 4096,
    "config.json": b"{}",
    "sub/tokenizer.json": b"[]",
}


def write(folder: Path, files: dict[str, bytes] | None = None) -> list[dict[str, Any]]:
    """The files under ``folder``, and their manifest."""
    for name, content in (files or FILES).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return manifest(files or FILES)


def manifest(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [
        {"path": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in sorted(files.items())
    ]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a directory but receipts, links by what they hold."""
    found = {}
    for base, _folders, names in os.walk(folder):
        for name in names:
            path = Path(base) / name
            if name != ".gb10-verified.json":
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def farm(folder: Path, blobs: Path, files: dict[str, bytes]) -> None:
    """A snapshot in the hub's cache: links to blobs, each blob named by its etag."""
    blobs.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        blob = blobs / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(os.path.relpath(blob, (folder / name).parent))
