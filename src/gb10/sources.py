"""What the controller holds to bring to nodes: the index of images, the manifest of the checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gb10.findings import Finding, error


class SourceError(Exception):
    """A source that cannot be used; ``finding`` says which and why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def image_index(folder: str) -> dict[str, dict[str, Any]]:
    """Tag to ``{archive, archive_sha256, image_id, size}`` of ``folder/images.json``; empty for no folder.

    Raises SourceError.
    """
    if not folder:
        return {}
    path = Path(folder) / "images.json"
    remedy = "See docs/operations.md for its form, or empty images_source if the nodes have the images."
    try:
        images: dict[str, dict[str, Any]] = {
            str(tag): {
                "archive": str(entry["archive"]),
                "archive_sha256": digest(entry["archive_sha256"]),
                "image_id": "sha256:" + digest(str(entry["image_id"]).removeprefix("sha256:")),
                "size": count(entry["size"]),
            }
            for tag, entry in json.loads(path.read_text())["images"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as problem:
        raise SourceError(error("images-source-unreadable", f"{path}: {shown(problem)}.", remedy)) from None
    for tag, entry in images.items():
        if not (Path(folder) / entry["archive"]).is_file():
            message = f"{path} names {entry['archive']} for {tag}, which is not there."
            raise SourceError(error("images-source-unreadable", message, remedy))
    return images


def manifest(folder: str) -> dict[str, int] | None:
    """Path to size in bytes of ``folder/manifest.json``; None for no folder.

    The manifest may stand alone, for a checkpoint that the nodes have already. Raises SourceError, also when some of
    its files are there and another is not or has another size.
    """
    if not folder:
        return None
    path = Path(folder) / "manifest.json"
    remedy = "See docs/operations.md for its form, or empty weights_source if the nodes have the checkpoint."
    try:
        sizes = {}
        for entry in json.loads(path.read_text())["files"]:
            name = str(entry["path"])
            if name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"{name} is not under the checkpoint")
            digest(entry["sha256"])
            sizes[name] = count(entry["size"])
        if not sizes:
            raise ValueError("it names no file")
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as problem:
        raise SourceError(error("weights-source-unreadable", f"{path}: {shown(problem)}.", remedy)) from None
    for name, size in sizes.items() if any((Path(folder) / name).is_file() for name in sizes) else ():
        held = Path(folder) / name
        if not held.is_file() or held.stat().st_size != size:
            message = f"{path} names {name} with {size} bytes, which is not so."
            raise SourceError(error("weights-source-unreadable", message, "Complete the directory, or its manifest."))
    return sizes


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
        return str(problem.strerror)
    return str(problem)
