"""Judging an image: the right bytes, an empty entrypoint, each patch file patched or stock as its image needs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gb10.archive import Archive
from gb10.findings import Finding, error, warning


def judge(
    image: str,
    entry: Mapping[str, Any],
    held: Archive,
    paths: Mapping[str, str],
    stock: Collection[str],
    known: Mapping[str, Mapping[str, str]],
) -> list[Finding]:
    """Findings on one archive.

    ``entry``: the image's line in images.json; ``paths``: patch file to its path in the image; ``stock``: patch files
    that must be stock vLLM here; ``known``: per patch file its sha256 ``patched`` and ``stock``.
    """
    findings = []
    if held.sha256 != entry["archive_sha256"]:
        findings.append(
            error(
                "archive-differs",
                f"{entry['archive']} has sha256 {held.sha256[:12]}, not {str(entry['archive_sha256'])[:12]}.",
                "Copy or build the archive again.",
            )
        )
    if held.image_id != entry["image_id"]:
        findings.append(
            error(
                "image-digest",
                f"{entry['archive']} holds {held.image_id[:19]}, images.json says {str(entry['image_id'])[:19]}.",
                "Write images.json from the archive you mean.",
            )
        )
    if image not in held.tags:
        findings.append(
            error(
                "image-tag",
                f"{entry['archive']} holds {', '.join(held.tags) or 'no tag'}, not {image}.",
                "Save it by its tag.",
            )
        )
    if held.entrypoint:
        findings.append(
            error(
                "entrypoint-not-empty",
                f"{image} has ENTRYPOINT {held.entrypoint}, which would swallow the rank's command.",
                "Build it with ENTRYPOINT [].",
            )
        )
    for name, path in paths.items():
        wanted = "stock" if name in stock else "patched"
        findings += _file(image, name, path, wanted, held.files.get(path), known.get(name, {}))
    return findings


def _file(image: str, name: str, path: str, wanted: str, digest: str | None, known: Mapping[str, str]) -> list[Finding]:
    if digest is None:
        return [error("patch-missing", f"{image} has no {path}.", "Build the image with all seven files.")]
    if wanted not in known:
        message = f"{name} of {image} is {digest[:12]}; whether that is {wanted} is not known."
        return [warning("patch-unpinned", message, f"Give images_patch_sha256.{name}.{wanted}.")]
    if digest == known[wanted]:
        return []
    other = "patched" if wanted == "stock" else "stock"
    is_what = other if digest == known.get(other) else f"neither ({digest[:12]})"
    return [error("patch-wrong", f"{name} of {image} must be {wanted} but is {is_what}.", "Build the image again.")]
