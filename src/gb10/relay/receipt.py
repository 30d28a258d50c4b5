"""Receipts: which files were read and found to have which sha256, so that they are not read again until they change."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .. import whole

# Shared with the module gb10_weights: {path: [size, mtime_ns, ctime_ns, inode, sha256]}.
RECEIPT = ".gb10-verified.json"

Receipts = dict[str, list[int | str]]


def mark(stat: os.stat_result) -> list[int | str]:
    """What changes when a file does."""
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def read_receipts(folder: Path) -> Receipts:
    """What was read before; empty when there is no readable receipt."""
    try:
        seen = json.loads((folder / RECEIPT).read_text())
    except (OSError, ValueError):
        return {}
    return seen if isinstance(seen, dict) else {}


def write_receipts(folder: Path, seen: Receipts) -> None:
    """Atomically."""
    whole.write(folder / RECEIPT, json.dumps(seen, sort_keys=True).encode())


def known(receipts: Receipts, path: str, stat: os.stat_result, sha256: str) -> bool:
    """Whether this very file was read before and had this sha256."""
    return receipts.get(path) == [*mark(stat), sha256]
