"""Reading a saved image (``docker save``) without an engine. With the ledger, the only file access of the package."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 22  # bytes


@dataclass(frozen=True)
class Archive:
    """What an archive holds: sha256 (hex) of the whole and of the paths asked for, config digest, entrypoint, tags."""

    sha256: str
    image_id: str
    entrypoint: list[str]
    tags: list[str]
    files: dict[str, str]


def read_archive(path: Path, wanted: Iterable[str]) -> Archive:
    """Reads the first image of an archive; ``wanted`` are absolute paths inside the image.

    A later layer wins over an earlier one, and its whiteouts remove files. OSError, tarfile.TarError, KeyError and
    ValueError for what is no image archive.
    """
    names = {name.lstrip("/"): name for name in wanted}
    files: dict[str, str] = {}
    with tarfile.open(path) as outer:
        manifest = json.loads(_member(outer, "manifest.json"))[0]
        raw = _member(outer, manifest["Config"])
        config = json.loads(raw).get("config") or {}
        for layer in manifest["Layers"]:
            stream = outer.extractfile(layer)
            if stream is None:
                raise ValueError(f"layer {layer} is no file")
            with tarfile.open(fileobj=stream, mode="r|*") as inner:
                for item in inner:
                    _layer_file(inner, item, names, files)
    return Archive(
        sha256=_sha256(path),
        image_id="sha256:" + hashlib.sha256(raw).hexdigest(),
        entrypoint=list(config.get("Entrypoint") or []),
        tags=list(manifest.get("RepoTags") or []),
        files=files,
    )


def _layer_file(layer: tarfile.TarFile, item: tarfile.TarInfo, names: dict[str, str], files: dict[str, str]) -> None:
    name = item.name.removeprefix("./")
    folder, _, base = name.rpartition("/")
    if base.startswith(".wh."):
        gone = f"{folder}/{base.removeprefix('.wh.')}" if base != ".wh..wh..opq" else folder
        for path in [p for p in files if p.lstrip("/") == gone or p.lstrip("/").startswith(gone + "/")]:
            del files[path]
    elif name in names and item.isreg():
        stream = layer.extractfile(item)
        files[names[name]] = hashlib.sha256(stream.read() if stream else b"").hexdigest()


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    stream = archive.extractfile(name)
    if stream is None:
        raise ValueError(f"{name} is no file")
    return stream.read()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
