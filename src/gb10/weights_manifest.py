"""The manifest of a checkpoint: path, bytes and sha256 of every file, of a directory or by a repository's metadata.

``manifest.json``: ``{"schema": 1, "files": [{"path", "size", "sha256"}]}``, sorted by path. What Hugging Face's hub
knows of a file is its etag: of a large one (LFS) the sha256, of any other git's blob id. It stands in the hub's API, in
the cache directory of a download (``.cache/huggingface/download/<path>.metadata``, second line) and as the name of the
blob a snapshot's link leads to (huggingface_hub 1.17.0, ``_local_folder.py`` and ``file_download.py``).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gb10 import whole
from gb10.relay.index import checked
from gb10.relay.problem import Problem
from gb10.weights_files import THREADS, Entry, sha256_of

MANIFEST = "manifest.json"
INDEX = "model.safetensors.index.json"
SCHEMA = 1
# Leftovers of transfers, and the hub's own; names with a dot in front are nobody's weights.
UNFINISHED = re.compile(r"\.(part|partial|tmp|temp|incomplete|aria2|lock)$")
SHA256, BLOB = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def read(path: Path) -> list[Entry]:
    """Entries of a manifest file, sorted by path. Raises OSError, and ValueError that says what is wrong in it."""
    document = json.loads(path.read_text())
    if document.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"its schema is {document['schema']!r}, {SCHEMA} is read here")
    try:
        entries = checked(document["files"])
    except Problem as problem:
        raise ValueError(problem.text) from None
    if not entries:
        raise ValueError("it names no file")
    return entries


def as_files(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Entries as the manifest holds them."""
    return [{"path": path, "size": size, "sha256": sha256} for path, size, sha256 in entries]


def write(path: Path, entries: Sequence[Entry]) -> None:
    """Atomically; the same entries give the same bytes. Raises OSError."""
    document = {"schema": SCHEMA, "files": as_files(sorted(entries))}
    whole.write(path, (json.dumps(document, indent=2) + "\n").encode())


def of_directory(folder: Path, hashing: bool = True) -> list[Entry]:
    """Every file of a directory but hidden, unfinished ones and the manifest; links are read through.

    Where the hub's sum of a file is known it must be the file's. Without ``hashing`` it is believed for large files,
    and what is unknown is read. Raises Problem, naming the file: a link to nothing, another sum, a shard that is not
    there.
    """
    paths = walk(folder)
    if not paths:
        raise wrong(folder, "holds no file")
    known = {path: etag for path in paths if (etag := etag_of(folder, path))}

    def one(path: str) -> Entry:
        full, etag = folder / path, known.get(path, "")
        if not hashing and SHA256.fullmatch(etag):
            return path, full.stat().st_size, etag
        digest = sha256_of(full)
        if SHA256.fullmatch(etag) and digest != etag:
            raise wrong(full, f"has sha256 {digest[:12]}, its repository says {etag[:12]}: download it again")
        if BLOB.fullmatch(etag) and blob_id(full.read_bytes()) != etag:
            raise wrong(full, f"is not the file its repository has (blob {etag[:12]}): download it again")
        return path, full.stat().st_size, digest

    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        entries = list(pool.map(one, paths))
    complete(folder, entries)
    return entries


def walk(folder: Path) -> list[str]:
    """Relative paths of a checkpoint's files, sorted. Raises Problem for links that lead nowhere or to directories."""
    found = []
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            if (Path(base) / name).is_symlink():
                raise wrong(Path(base) / name, "is a link to a directory: put its files there")
        for name in names:
            full = Path(base) / name
            path = full.relative_to(folder).as_posix()
            if name.startswith(".") or UNFINISHED.search(name) or path == MANIFEST:
                continue
            if full.is_symlink() and not full.exists():
                raise wrong(full, f"is a link to nothing ({full.readlink()})")
            if not full.is_file():
                raise wrong(full, "is no file")
            found.append(path)
    return sorted(found)


def etag_of(folder: Path, path: str) -> str:
    """What the hub knows a file by; empty where nothing says it."""
    full = folder / path
    if full.is_symlink():
        blob = Path(os.path.realpath(full))
        return blob.name if blob.parent.name == "blobs" else ""
    try:
        lines = (folder / ".cache/huggingface/download" / f"{path}.metadata").read_text().splitlines()
    except OSError:
        return ""
    return lines[1].strip() if len(lines) > 1 else ""


def blob_id(data: bytes) -> str:
    """Git's id of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def complete(folder: Path, entries: Sequence[Entry]) -> None:
    """Refuses (Problem) a directory that lacks a shard its own index names."""
    index = folder / INDEX
    if not index.is_file():
        return
    try:
        shards = set(json.loads(index.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise wrong(index, "is no index of shards") from None
    if lacking := sorted(shards - {path for path, _size, _sha256 in entries}):
        raise wrong(folder / lacking[0], f"is missing: {INDEX} names it")


def of_repository(repository: str, revision: str) -> tuple[list[Entry], str]:
    """Entries by the hub's API, and the commit they are of. Large files are not fetched, small ones are, and proved.

    Endpoint and token are huggingface_hub's own (HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH). Raises Problem; its code is
    weights-hub-silent where the hub could not be reached.
    """
    hub = hub_library()
    try:
        about = hub.HfApi().model_info(repository, revision=revision or None, files_metadata=True)
        entries = []
        with tempfile.TemporaryDirectory() as scratch:
            for item in about.siblings or []:
                name = str(item.rfilename)
                if any(part.startswith(".") for part in name.split("/")):
                    continue
                if item.lfs:
                    entries.append((name, int(item.lfs.size), str(item.lfs.sha256)))
                    continue
                full = Path(hub.hf_hub_download(repository, name, revision=about.sha, local_dir=scratch))
                if item.blob_id and blob_id(full.read_bytes()) != item.blob_id:
                    raise Problem(
                        "weights-manifest", f"{repository}: {name} did not come as the hub has it. Run again."
                    )
                entries.append((name, full.stat().st_size, sha256_of(full)))
    except (hub.errors.HfHubHTTPError, hub.errors.HFValidationError) as problem:
        raise Problem("weights-manifest", f"{repository}: {first(problem)}. Correct name, revision or token.") from None
    except (hub.errors.HTTPError, OSError) as problem:  # the client's own, offline mode, and what the system says
        raise Problem("weights-hub-silent", f"{repository}: the hub cannot be reached ({first(problem)}).") from None
    return checked(as_files(entries)), str(about.sha)


def of_cache(repository: str, revision: str) -> tuple[list[Entry], str]:
    """The same from this machine's cache of the hub. Raises Problem where it is not there or not whole."""
    hub = hub_library()
    try:
        snapshot = hub.snapshot_download(repository, revision=revision or None, local_files_only=True)
    except (OSError, ValueError):
        raise Problem(
            "weights-manifest",
            f"{repository}: the hub cannot be reached, and its cache on this machine has no such repository"
            f"{f' at {revision}' if revision else ''}. Name a directory instead.",
        ) from None
    return of_directory(Path(snapshot), hashing=False), Path(snapshot).name


def hub_library() -> Any:
    """huggingface_hub, slow to import and not needed for a directory. Raises Problem."""
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        what = "huggingface_hub is not installed: make setup installs it, or name a directory."
        raise Problem("weights-manifest", what) from None
    return huggingface_hub


def first(problem: BaseException) -> str:
    """An error of another library in one line."""
    lines = str(problem).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(problem).__name__


def wrong(path: Path, what: str) -> Problem:
    """Why there is no manifest of this directory."""
    return Problem("weights-manifest", f"{path} {what}.")
