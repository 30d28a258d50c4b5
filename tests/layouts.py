"""OCI layouts small enough for a test, made by the product's own builder."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import zstandard

from gb10 import oci_build
from gb10.layout import Image, sha256


def tar(files: dict[str, bytes], **links: str) -> bytes:
    """A tar as another tool would write it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as held:
        for name, content in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            held.addfile(item, io.BytesIO(content))
        for name, target in links.items():
            item = tarfile.TarInfo(name)
            item.type, item.linkname = tarfile.SYMTYPE, target
            held.addfile(item)
    return out.getvalue()


def layout(
    root: Path,
    layers: list[bytes],
    name: str = "x:1",
    architecture: str = "amd64",
    zstd: bool = False,
    **config: Any,
) -> Image:
    """An image of these layers, in the layout ``root``; ``zstd``: compressed so."""
    oci_build.start(root)
    pack, kind = zstandard.ZstdCompressor().compress if zstd else bytes, "+zstd" if zstd else ""
    blobs = [oci_build.put_blob(root, pack(layer), oci_build.LAYER + kind) for layer in layers]
    about = {
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [sha256(layer) for layer in layers]},
    }
    image = oci_build.put_image(root, name, oci_build.dump(about), blobs)
    oci_build.put_names(root, [image])
    return image


def names(root: Path) -> list[str]:
    """Every file of a layout but the blobs."""
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and "blobs" not in p.parts)


def index(root: Path) -> dict[str, Any]:
    """The layout's index."""
    read: dict[str, Any] = json.loads((root / "index.json").read_text())
    return read
