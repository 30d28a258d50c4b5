"""An OCI image layout on the controller: images by content, their names beside. Read here; oci_build writes.

https://github.com/opencontainers/image-spec: ``oci-layout``, ``index.json``, ``blobs/sha256/<hex>``. ``docker save`` of
Docker 25 and later, buildx and skopeo write it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gb10.findings import error
from gb10.sources import SourceError, count, shown

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Where writers put an image's name: Docker and buildx the first (with the registry), skopeo the second.
NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
# Docker's own registry, which Docker leaves out of a name.
IMPLIED = ("docker.io/library/", "docker.io/")
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
# What buildx puts beside an image: a statement about it, no image.
STATEMENT = "vnd.docker.reference.type"


@dataclass(frozen=True)
class Blob:
    """Content by its digest (``sha256:<hex>``); ``size`` in bytes."""

    digest: str
    size: int
    media_type: str

    @property
    def path(self) -> str:
        """Its place under ``blobs``."""
        return self.digest.replace(":", "/")


@dataclass(frozen=True)
class Image:
    """An image by content. ``diff_ids``: digests of the layers' uncompressed tars, the lowest first.

    Its id is ``config.digest`` in Docker's classic image store and ``manifest.digest`` in containerd's.
    """

    name: str
    manifest: Blob
    config: Blob
    layers: tuple[Blob, ...]
    diff_ids: tuple[str, ...]
    architecture: str
    entrypoint: tuple[str, ...]

    @property
    def ids(self) -> tuple[str, str]:
        """Its id in the classic and in the containerd store."""
        return self.config.digest, self.manifest.digest


def read_layout(folder: str) -> dict[str, Image]:
    """Image by name (``vllm-dsv41:latest``); empty for no folder. No layer is read, only that it is there, whole.

    Raises SourceError naming the blob that is missing or wrong.
    """
    if not folder:
        return {}
    root = Path(folder).expanduser()
    try:
        version = json.loads((root / "oci-layout").read_text())["imageLayoutVersion"]
        if not str(version).startswith("1."):
            raise ValueError(f"layout version {version} is not known")
        return Layout(root).images()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as problem:
        where = getattr(problem, "filename", None) or root
        message = f"{where}: {shown(problem)}."
        remedy = "images_source is an OCI image layout (docs/images.md); empty it if the nodes have the images."
        raise SourceError(error("images-source-unreadable", message, remedy)) from None


class Layout:
    """Raises OSError, ValueError, KeyError and TypeError for what is no layout."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def images(self) -> dict[str, Image]:
        """Image by name."""
        found: dict[str, Image] = {}
        for entry in json.loads((self.root / "index.json").read_text())["manifests"]:
            name = name_of(entry.get("annotations") or {})
            if not name:
                continue
            image = self.image(name, entry)
            if found.get(name, image) != image:
                raise ValueError(f"{name} is there twice with different content")
            found[name] = image
        if not found:
            raise ValueError("index.json names no image")
        return found

    def image(self, name: str, entry: Mapping[str, Any]) -> Image:
        """The image of one entry of an index."""
        manifest = blob(entry)
        document = json.loads(self.small(manifest))
        if manifest.media_type in INDEXES or "manifests" in document:
            inner = [e for e in document["manifests"] if STATEMENT not in (e.get("annotations") or {})]
            if len(inner) != 1:
                kinds = ", ".join(sorted(str((e.get("platform") or {}).get("architecture")) for e in inner)) or "none"
                raise ValueError(f"{name} is there for several platforms ({kinds}): keep the nodes' only")
            return self.image(name, inner[0])
        config, layers = blob(document["config"]), tuple(map(blob, document["layers"]))
        about = json.loads(self.small(config))
        diff_ids = tuple(map(digest, about["rootfs"]["diff_ids"]))
        if len(diff_ids) != len(layers):
            raise ValueError(f"{name} has {len(layers)} layers but {len(diff_ids)} diff ids")
        for layer in layers:
            self.whole(layer)
        entrypoint = tuple(map(str, (about.get("config") or {}).get("Entrypoint") or ()))
        return Image(name, manifest, config, layers, diff_ids, str(about["architecture"]), entrypoint)

    def path(self, held: Blob) -> Path:
        """Where a blob lies."""
        return self.root / "blobs" / held.path

    def whole(self, held: Blob) -> Path:
        """A blob that is there with its size."""
        size = self.path(held).stat().st_size
        if size != held.size:
            raise ValueError(f"blob {held.digest} has {size} bytes, not {held.size}")
        return self.path(held)

    def small(self, held: Blob) -> bytes:
        """A manifest's or a configuration's bytes, proved."""
        data = self.whole(held).read_bytes()
        if sha256(data) != held.digest:
            raise ValueError(f"blob {held.digest} has the content of {sha256(data)}")
        return data


def blob(entry: Mapping[str, Any]) -> Blob:
    """A descriptor of the specification."""
    return Blob(digest(entry["digest"]), count(entry["size"]), str(entry.get("mediaType", "")))


def digest(value: object) -> str:
    """``sha256:<hex>``."""
    if not isinstance(value, str) or not DIGEST.fullmatch(value):
        raise ValueError(f"{value!r} is no sha256 digest")
    return value


def sha256(data: bytes) -> str:
    """A blob's digest."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def name_of(annotations: Mapping[str, Any]) -> str:
    """An image's name as people give it; empty where an entry has none."""
    name = next((str(annotations[key]) for key in NAMES if annotations.get(key)), "")
    return next((name.removeprefix(implied) for implied in IMPLIED if name.startswith(implied)), name)
