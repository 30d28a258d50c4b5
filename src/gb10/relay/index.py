"""The index: every file's path, size and sha256, and the sha256 of each of its chunks.

It is made at the source in the one pass that proves each file's sha256 against the manifest, and its own digest goes to
every node by the controller. So a node that checks chunks against the index has checked the file against the manifest,
whoever sent them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat as kinds
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import whole
from .problem import Problem, blocked
from .receipt import RECEIPT, Receipts, known, mark, read_receipts, write_receipts

CHUNK = 1 << 20  # bytes; measured: 4 MiB costs a line of seven 20 % (docs/performance.md)
DIGEST = 32  # bytes of a sha256
INDEX = ".gb10-index"
PARTS = ".gb10-part"
LARGEST = 1 << 28  # bytes of an index: 8 million chunks
KIND = "gb10-index-1"


@dataclass(frozen=True)
class Entry:
    """One file; ``first`` is the number of its first chunk among all."""

    path: str
    size: int
    sha256: str
    first: int


class Index:
    """Chunks are numbered through all files; an empty file has none."""

    def __init__(self, files: Sequence[Mapping[str, Any]], digests: bytes, chunk: int) -> None:
        if not 1 << 10 <= chunk <= 1 << 26:
            raise Problem("fanout-index", f"chunk={chunk}: 1024 to 67108864 bytes are possible.")
        self.chunk, self.digests = chunk, digests
        self.entries: list[Entry] = []
        count = 0
        for path, size, sha256 in checked(files):
            self.entries.append(Entry(path, size, sha256, count))
            count += -(-size // chunk)
        self.count, self.total = count, sum(e.size for e in self.entries)
        self._starts = [e.first for e in self.entries]
        if len(digests) != count * DIGEST:
            raise Problem("fanout-index", f"the index has {len(digests) // DIGEST} chunks, its files {count}.")

    def chunks(self, number: int) -> range:
        """Numbers of the chunks of a file."""
        entry = self.entries[number]
        return range(entry.first, entry.first + -(-entry.size // self.chunk))

    def locate(self, chunk: int) -> tuple[int, int, int]:
        """(number of the file, offset, length in bytes)."""
        number = bisect_right(self._starts, chunk) - 1
        entry = self.entries[number]
        offset = (chunk - entry.first) * self.chunk
        return number, offset, min(self.chunk, entry.size - offset)

    def digest(self, chunk: int) -> bytes:
        """sha256 of a chunk."""
        return self.digests[chunk * DIGEST : (chunk + 1) * DIGEST]

    def of_file(self, number: int) -> bytes:
        """Digests of a file's chunks, joined."""
        span = self.chunks(number)
        return self.digests[span.start * DIGEST : span.stop * DIGEST]

    def dump(self) -> bytes:
        """A line of JSON, then the digests. The same files give the same bytes."""
        files = [{"path": e.path, "size": e.size, "sha256": e.sha256} for e in self.entries]
        head = json.dumps({"kind": KIND, "chunk": self.chunk, "files": files}, sort_keys=True, separators=(",", ":"))
        return head.encode() + b"\n" + self.digests

    @classmethod
    def load(cls, blob: bytes) -> Index:
        """Raises Problem for anything else than what ``dump`` wrote."""
        head, _, digests = blob.partition(b"\n")
        try:
            read = json.loads(head)
            if read["kind"] != KIND:
                raise ValueError(read["kind"])
            return cls(read["files"], digests, int(read["chunk"]))
        except (ValueError, KeyError, TypeError) as problem:
            raise Problem("fanout-index", f"no index of this version ({problem}). Make it again.") from None


def checked(files: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, str]]:
    """The manifest's files sorted by path. Raises Problem for one that could leave the directory or is no file's."""
    found: dict[str, tuple[str, int, str]] = {}
    for entry in files:
        path, sha256 = str(entry.get("path", "")), str(entry.get("sha256", "")).lower()
        parts = path.split("/")
        if "\0" in path or not all(part not in ("", ".", "..") for part in parts):
            raise Problem("manifest-path", f"{path!r}: a manifest names files under its directory only.")
        if parts[0] == PARTS or any(part.startswith((RECEIPT, INDEX)) for part in parts):
            raise Problem("manifest-path", f"{path!r}: this name is kept for the relay's own files.")
        try:
            size = int(entry["size"])
        except (KeyError, TypeError, ValueError):
            size = -1
        if size < 0 or len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
            said = f"size {entry.get('size')!r}, sha256 {entry.get('sha256')!r}"
            raise Problem("manifest-wrong", f"{path}: {said}: every file needs its size in bytes and its sha256.")
        if path in found:
            raise Problem("manifest-wrong", f"{path} is named twice.")
        found[path] = (path, size, sha256)
    for path in found:
        for end in range(1, path.count("/") + 1):
            if "/".join(path.split("/")[:end]) in found:
                raise Problem("manifest-wrong", f"{path} lies under a name that is itself a file's.")
    return [found[path] for path in sorted(found)]


def hash_file(path: Path, chunk: int) -> tuple[str, bytes, os.stat_result]:
    """sha256 of a file, those of its chunks joined, and its stat; one read of each byte. Links are read through."""
    whole, parts, buffer = hashlib.sha256(), [], bytearray(chunk)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as stream:
        while count := fill(stream.fileno(), view, -1):
            whole.update(view[:count])
            parts.append(hashlib.sha256(view[:count]).digest())
        return whole.hexdigest(), b"".join(parts), os.fstat(stream.fileno())


def fill(handle: int, view: memoryview, offset: int) -> int:
    """Reads until ``view`` is full or the file ends; ``offset`` -1: from where it stands. Returns bytes read."""
    done = 0
    while done < len(view):
        part = [view[done:]]
        count = os.readv(handle, part) if offset < 0 else os.preadv(handle, part, offset + done)
        if not count:
            break
        done += count
    return done


def make_index(
    folder: Path,
    files: Sequence[Mapping[str, Any]],
    state: Path,
    chunk: int = CHUNK,
    processes: int = 1,
    verify_all: bool = False,
) -> tuple[Index, str, int]:
    """(index, its sha256, files that were read); kept in ``state``, so that unchanged files are not read again.

    Raises Problem naming the first file that is not what the manifest says, with both numbers.
    """
    wanted = checked(files)
    receipts = {} if verify_all else read_receipts(state)
    before = {} if verify_all else cached(state, chunk)
    seen: Receipts = dict(read_receipts(state))

    def one(path: str, size: int, sha256: str) -> tuple[bytes, bool]:
        full = folder / path
        try:
            stat = full.stat()
        except FileNotFoundError:
            what = "a link to nothing" if full.is_symlink() else "missing"
            raise Problem("fanout-source", f"{full} is {what}. Complete the source, and run again.") from None
        except OSError as problem:
            raise blocked(problem, full, "reading") from None
        if not kinds.S_ISREG(stat.st_mode):
            raise Problem("fanout-source", f"{full} is no file. Complete the source, and run again.")
        if stat.st_size != size:
            raise Problem("fanout-source", f"{full} has {stat.st_size} bytes, the manifest {size}. Bring it again.")
        if known(receipts, path, stat, sha256) and sha256 in before:
            return before[sha256], False
        try:
            digest, parts, stat = hash_file(full, chunk)
        except OSError as problem:
            raise blocked(problem, full, "reading") from None
        if digest != sha256:
            raise Problem(
                "fanout-source", f"{full} has sha256 {digest[:12]}, the manifest {sha256[:12]}. Bring it again."
            )
        seen[path] = [*mark(stat), digest]
        return parts, True

    with ThreadPoolExecutor(max(1, processes)) as pool:  # hashing leaves the interpreter, so threads do
        jobs = [pool.submit(one, *entry) for entry in wanted]
        try:
            results = [job.result() for job in jobs]
        except Problem:
            pool.shutdown(cancel_futures=True)
            raise
    index = Index(files, b"".join(parts for parts, _ in results), chunk)
    blob, read = index.dump(), sum(fresh for _, fresh in results)
    if read or not (state / INDEX).is_file() or (state / INDEX).stat().st_size != len(blob):
        try:
            state.mkdir(parents=True, exist_ok=True)
            whole.write(state / INDEX, blob)
            write_receipts(state, seen)
        except OSError as problem:
            raise blocked(problem, state, "keeping the index in") from None
    return index, hashlib.sha256(blob).hexdigest(), read


def cached(state: Path, chunk: int) -> dict[str, bytes]:
    """Chunk digests by a file's sha256 from an index made before."""
    try:
        old = Index.load((state / INDEX).read_bytes())
    except (OSError, Problem):
        return {}
    return {e.sha256: old.of_file(n) for n, e in enumerate(old.entries)} if old.chunk == chunk else {}
