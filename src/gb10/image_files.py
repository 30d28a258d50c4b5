"""Which files an image holds, read from its layers without an engine; each layer is proved on the way."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from gb10 import whole
from gb10.layout import Blob, Image, Layout

CHUNK = 1 << 22  # bytes
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
# Beside the layout: what was read of a layer before, so that 34 GB are read once and not for every image on them.
RECEIPT = ".gb10-layers.json"


class LayerWrong(Exception):
    """A layer that is not what its digest says, or no tar; the text names it."""


@dataclass
class Changes:
    """What one layer does to the wanted paths: ``files`` (path to sha256, hex), ``gone``, ``emptied`` directories.

    Paths are relative to the image's root.
    """

    files: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)


class Proved:
    """A stream that knows the digest of what was read of it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.hash = stream, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(size)
        self.hash.update(data)
        return data


def image_files(folder: str, image: Image, wanted: Iterable[str]) -> dict[str, str]:
    """sha256 (hex) of those of the ``wanted`` absolute paths that are regular files in the image.

    Every layer's bytes are proved against its digest. Raises LayerWrong and OSError.
    """
    names = {path.lstrip("/"): path for path in wanted}
    root = Path(folder).expanduser()
    receipts = Receipts(root / RECEIPT, names)
    layers = []
    for layer in image.layers:
        path = Layout(root).path(layer)
        known = receipts.known(layer, path)
        layers.append(known if known is not None else receipts.keep(layer, path, read_layer(path, layer, names)))
    receipts.write()
    return {names[name]: digest for name, digest in merged(layers).items()}


def merged(layers: Sequence[Changes]) -> dict[str, str]:
    """The files left when each layer is laid over those before it."""
    files: dict[str, str] = {}
    for layer in layers:
        for path in list(files):
            below = any(path.startswith(folder + "/") for folder in layer.gone + layer.emptied)
            if below or path in layer.gone:
                del files[path]
        files |= layer.files
    return files


def read_layer(path: Path, layer: Blob, wanted: Collection[str]) -> Changes:
    """What one layer does to the ``wanted`` paths (relative). Raises LayerWrong and OSError."""
    changes = Changes()
    with path.open("rb") as raw:
        proved = Proved(raw)
        try:
            stream = unpacked(proved, layer)
            with tarfile.open(fileobj=stream, mode="r|*", bufsize=CHUNK) as tar:
                for item in tar:
                    note(changes, tar, item, wanted)
            problem = ""
        except (tarfile.TarError, EOFError, ValueError, zstandard.ZstdError) as wrong:
            problem = str(wrong) or "it ends early"
        except OSError as wrong:
            if wrong.errno:  # the disk's, not gzip's
                raise
            problem = str(wrong)
        while proved.read(CHUNK):
            pass
    if "sha256:" + proved.hash.hexdigest() != layer.digest:
        raise LayerWrong(f"layer {layer.digest} has the content of sha256:{proved.hash.hexdigest()}")
    if problem:
        raise LayerWrong(f"layer {layer.digest} is no tar that can be read: {problem}")
    return changes


def unpacked(proved: Proved, layer: Blob) -> Any:
    """The layer as a stream Python's tar can read: before 3.14 it does not know zstd."""
    if not layer.media_type.endswith("zstd"):
        return proved
    return zstandard.ZstdDecompressor().stream_reader(cast("BinaryIO", proved), CHUNK, read_across_frames=True)


def note(changes: Changes, tar: tarfile.TarFile, item: tarfile.TarInfo, wanted: Collection[str]) -> None:
    """One entry of a layer. Its whiteouts concern the layers below only."""
    name = item.name.removeprefix("./").strip("/")
    folder, _, base = name.rpartition("/")
    if base == OPAQUE:
        changes.emptied.append(folder)
    elif base.startswith(WHITEOUT):
        changes.gone.append(f"{folder}/{base.removeprefix(WHITEOUT)}".lstrip("/"))
    elif name in wanted and (item.isreg() or item.islnk()):
        stream = tar.extractfile(item) if item.isreg() else None
        if stream is None:
            raise ValueError(f"{name} is a hard link")
        changes.files[name] = hashlib.sha256(stream.read()).hexdigest()
    elif not item.isdir() and any(path == name or path.startswith(name + "/") for path in wanted):
        changes.gone.append(name)
    if item.isdir() and name in wanted:
        changes.gone.append(name)


class Receipts:
    """What was read of layers before, as long as file and wanted paths are the same."""

    def __init__(self, path: Path, wanted: Iterable[str]) -> None:
        self.path, self.wanted = path, hashlib.sha256("\0".join(sorted(wanted)).encode()).hexdigest()
        self.fresh = False
        self.held: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            read = json.loads(path.read_text())
            self.held = read if isinstance(read, dict) else {}

    def mark(self, path: Path) -> list[Any]:
        """Changes when the file or what is looked for does."""
        stat = path.stat()
        return [self.wanted, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]

    def known(self, layer: Blob, path: Path) -> Changes | None:
        """What is known of a layer."""
        try:
            mark, changes = self.held[layer.digest]
            return Changes(**changes) if mark == self.mark(path) else None
        except (KeyError, TypeError, ValueError):
            return None

    def keep(self, layer: Blob, path: Path, changes: Changes) -> Changes:
        """Remembers what was read."""
        self.held[layer.digest], self.fresh = [self.mark(path), asdict(changes)], True
        return changes

    def write(self) -> None:
        """Where it can be; a source that is read-only is read again next time."""
        if self.fresh:
            with suppress(OSError):
                whole.write(self.path, json.dumps(self.held, sort_keys=True).encode())
