"""Images made of a base and a few files, as an OCI layout: the same inputs give the same bytes. No engine is needed.

A layer is a tar with nothing in it but the files and what they are: sorted, root's, one time. So an image for another
processor can be made anywhere.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from gb10 import whole
from gb10.layout import NAMES, Blob, Image, Layout, name_of, read_layout, sha256

# Of every file in a layer, s since 1970 (2024-01-01): Python compiles a source anew whose time is not the recorded one.
EPOCH = 1_704_067_200
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
# Docker's names for what OCI calls otherwise: one image has one kind.
OCI_OF = {
    "application/vnd.docker.image.rootfs.diff.tar": LAYER,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": f"{LAYER}+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": f"{LAYER}+zstd",
}
# How a compressed layer begins.
MAGIC = {b"\x1f\x8b": "+gzip", b"\x28\xb5": "+zstd"}
CHUNK = 1 << 22  # bytes


class BaseWrong(Exception):
    """A base that cannot be read; the text says why."""


@dataclass(frozen=True)
class Base:
    """An image to build on, and the layout that holds it."""

    root: Path
    image: Image


# --- writing ---------------------------------------------------------------------------------------------------------


def layer_tar(files: Mapping[str, bytes]) -> bytes:
    """A layer of ``files`` by absolute path, with the directories above them."""
    out = io.BytesIO()
    names = {path.strip("/"): data for path, data in files.items()}
    folders = {str(parent) for name in names for parent in list(PurePosixPath(name).parents)[:-1]}
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(folders | set(names)):
            info = tarfile.TarInfo(name)
            info.mtime = EPOCH
            if name in folders:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            else:
                info.mode, info.size = 0o644, len(names[name])
                tar.addfile(info, io.BytesIO(names[name]))
    return out.getvalue()


def start(root: Path) -> None:
    """An empty layout, where there is none. Raises OSError."""
    (root / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    if not (root / "oci-layout").exists():
        write(root / "oci-layout", b'{"imageLayoutVersion":"1.0.0"}\n')
    if not (root / "index.json").exists():
        write(root / "index.json", dump({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}))


def put_blob(root: Path, data: bytes, media_type: str) -> Blob:
    """Content takes its place in a layout."""
    held = Blob(sha256(data), len(data), media_type)
    write(root / "blobs" / held.path, data)
    return held


def put_image(root: Path, name: str, config: bytes, layers: Iterable[Blob]) -> Image:
    """Configuration and manifest of an image whose layers the layout holds."""
    layers = [Blob(layer.digest, layer.size, OCI_OF.get(layer.media_type, layer.media_type)) for layer in layers]
    held = put_blob(root, config, CONFIG)
    document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(held)}
    manifest = put_blob(root, dump(document | {"layers": [descriptor(layer) for layer in layers]}), MANIFEST)
    return Layout(root).image(name, descriptor(manifest))


def extend(root: Path, base: Image, name: str, files: Mapping[str, bytes], note: str) -> Image:
    """``base`` with a layer of ``files`` (by absolute path) and no entrypoint; ``note`` goes into its history."""
    layer = put_blob(root, layer_tar(files), LAYER)
    config = json.loads(Layout(root).small(base.config))
    config["config"] = {**(config.get("config") or {}), "Entrypoint": None}
    config["rootfs"]["diff_ids"].append(layer.digest)
    if config.get("history"):
        config["history"].append({"created": config.get("created"), "created_by": note})
    return put_image(root, name, dump(config), [*base.layers, layer])


def put_names(root: Path, images: Iterable[Image]) -> None:
    """The layout's index names these images; other names stay."""
    document = json.loads((root / "index.json").read_text())
    entries = {image.name: entry_of(image) for image in images}
    kept = [e for e in document["manifests"] if name_of(e.get("annotations") or {}) not in entries]
    document["manifests"] = [*kept, *entries.values()]
    write(root / "index.json", dump(document))


def entry_of(image: Image) -> dict[str, Any]:
    """An index's entry."""
    return {**descriptor(image.manifest), "annotations": {NAMES[1]: image.name}}


def descriptor(held: Blob) -> dict[str, Any]:
    """A blob in the words of the specification."""
    return {"mediaType": held.media_type, "digest": held.digest, "size": held.size}


def dump(document: object) -> bytes:
    """The same document gives the same bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def write(path: Path, data: bytes) -> None:
    """Whole or not at all; what is there already with this content is left alone."""
    if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
        return
    whole.write(path, data)


# --- bases -----------------------------------------------------------------------------------------------------------


def bring_base(source: str, name: str, root: Path) -> Image:
    """The base's content in the layout ``root``.

    ``source``: an OCI layout, an archive as ``docker save`` writes it, or else a name this machine's Docker holds;
    ``name``: which image of it, where it holds several. Raises BaseWrong, SourceError and OSError.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        base = Base(path, chosen(read_layout(source), name, source))
        for held in (base.image.manifest, base.image.config, *base.image.layers):
            copy_blob(Layout(path).path(held), Layout(root).path(held))
        return base.image
    if path.is_file():
        with path.open("rb") as stream:
            return chosen(import_archive(stream, root), name, source)
    return chosen(from_docker(source, root), name or source, source)


def chosen(images: Mapping[str, Image], name: str, source: str) -> Image:
    """The image meant. Raises BaseWrong."""
    if not name and len(images) == 1:
        return next(iter(images.values()))
    if name not in images:
        held = ", ".join(sorted(images)) or "none"
        raise BaseWrong(f"{source} holds {held}, and {name or 'no name'} is asked for")
    return images[name]


def copy_blob(source: Path, target: Path) -> None:
    """By a link where both are on one file system, so that 34 GB are not there twice."""
    if target.exists() and target.stat().st_size == source.stat().st_size:
        return
    real = source.resolve()
    handle, part = tempfile.mkstemp(dir=target.parent, prefix=".gb10-part-")
    os.close(handle)
    try:
        Path(part).unlink()
        try:
            os.link(real, part)
        except OSError:
            shutil.copyfile(real, part)
        Path(part).replace(target)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def from_docker(name: str, root: Path) -> dict[str, Image]:
    """What this machine's Docker saves of an image. Raises BaseWrong."""
    try:
        process = subprocess.Popen(["docker", "save", name], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError:
        raise BaseWrong(f"{name} is no directory and no file, and there is no docker to ask") from None
    assert process.stdout
    assert process.stderr
    try:
        images: dict[str, Image] | None = import_archive(process.stdout, root)
        problem = ""
    except BaseWrong as wrong:
        images, problem = None, str(wrong)
    finally:
        process.stdout.close()
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
        process.stderr.close()
        if process.poll() is None:
            process.terminate()
        code = process.wait(60)
    if code or images is None:
        raise BaseWrong(f"{name} is no directory and no file, and docker says: {(said or [problem])[-1]}")
    return images


def import_archive(stream: IO[bytes], root: Path) -> dict[str, Image]:
    """The images of an archive that ``docker save`` wrote, in the layout ``root``: old archives (Docker 24 and older)
    get a manifest, newer ones keep theirs. Raises BaseWrong and OSError; what is no part of an image is not kept."""
    with tempfile.TemporaryDirectory(dir=root, prefix=".gb10-part-") as folder:
        try:
            return Import(root, Path(folder)).images(stream)
        except (tarfile.TarError, EOFError, KeyError, ValueError, TypeError, IndexError) as problem:
            raise BaseWrong(f"no archive of images: {str(problem) or type(problem).__name__}") from None


class Import:
    """An archive's files by name while they get their places."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.blobs: dict[str, Blob] = {}
        self.links: dict[str, str] = {}

    def images(self, stream: IO[bytes]) -> dict[str, Image]:
        """See ``import_archive``."""
        with tarfile.open(fileobj=stream, mode="r|*") as tar:
            for item in tar:
                name = item.name.removeprefix("./")
                if item.issym() or item.islnk():
                    target = item.linkname if item.islnk() else str(PurePosixPath(name).parent / item.linkname)
                    self.links[name] = os.path.normpath(target)
                elif item.isreg():
                    data = tar.extractfile(item)
                    assert data
                    self.blobs[name] = self.keep(data)
        if "index.json" in self.blobs and "oci-layout" in self.blobs:
            return self.layout()
        return self.archive()

    def keep(self, stream: IO[bytes]) -> Blob:
        """A file by its digest."""
        found, size, begin = hashlib.sha256(), 0, b""
        handle, part = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(handle, "wb") as out:
            os.fchmod(out.fileno(), 0o644)
            while data := stream.read(CHUNK):
                begin = begin or data[:2]
                found.update(data)
                out.write(data)
                size += len(data)
        Path(part).replace(self.folder / found.hexdigest())
        return Blob("sha256:" + found.hexdigest(), size, LAYER + MAGIC.get(begin, ""))

    def find(self, name: str) -> Blob:
        """A file of the archive, through its links."""
        for _ in range(8):
            if name in self.blobs:
                return self.blobs[name]
            name = self.links[name]
        raise ValueError(f"{name} is a link to itself")

    def text(self, name: str) -> bytes:
        """A small file's content."""
        return (self.folder / self.find(name).path.rpartition("/")[2]).read_bytes()

    def place(self, held: Blob) -> None:
        """A blob moves into the layout."""
        source, target = self.folder / held.digest.partition(":")[2], self.root / "blobs" / held.path
        if source.exists():
            source.replace(target)
        elif not target.exists():
            raise ValueError(f"{held.digest} is missing")

    def layout(self) -> dict[str, Image]:
        """Of an archive that is a layout."""
        index = json.loads(self.text("index.json"))
        for name, held in self.blobs.items():
            if name.startswith("blobs/"):
                if name != f"blobs/{held.path}":
                    raise ValueError(f"{name} has the content of {held.digest}")
                self.place(held)
        scratch = Layout(self.root)
        found = {}
        for entry in index["manifests"]:
            name = name_of(entry.get("annotations") or {})
            if name:
                found[name] = scratch.image(name, entry)
        if not found:
            raise ValueError("its index names no image")
        return found

    def archive(self) -> dict[str, Image]:
        """Of an archive of Docker 24 or older."""
        found = {}
        for listed in json.loads(self.text("manifest.json")):
            config, layers = self.text(listed["Config"]), [self.find(layer) for layer in listed["Layers"]]
            for layer in layers:
                self.place(layer)
            for name in listed.get("RepoTags") or []:
                found[name] = put_image(self.root, name, config, layers)
        if not found:
            raise ValueError("it holds no image with a tag")
        return found
