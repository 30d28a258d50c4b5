"""A checkpoint on a node against its manifest: what is wrong, what it needs, how files of a directory take their place.

Runs on the nodes and on the controller (Python 3.11 or later, standard library only). Receipts are the relay's, in one
file with one format: what either of them read, the other does not read again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat as kinds
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .relay.index import PARTS, checked
from .relay.problem import Problem
from .relay.receipt import Receipts, mark, read_receipts, write_receipts
from .relay.store import FILE_MODE, make_folders

CHUNK = 1 << 22  # bytes of a read
THREADS = 8  # files hashed at once: 1.3 GB/s of SHA-256 a core, 5 GB/s of NVMe (docs/weights.md)
INCOMING = ".gb10-download"  # where the hf tool downloads, on the file system of the checkpoint
GIB = 1 << 30

Entry = tuple[str, int, str]  # path, bytes, sha256


@dataclass
class Look:
    """What one look found.

    ``reasons``: why a file must be brought again, by path; ``unread``: right in size, but its bytes were not read;
    ``hashed``: files that were read; ``have``, ``total``: bytes of files that are right or unread, and of all;
    ``missing``: bytes still to be written.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    hashed: int = 0
    files: int = 0
    have: int = 0
    total: int = 0
    missing: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For the module's result."""
        return asdict(self) | {"wrong": sorted(self.reasons)}


def compare(folder: Path, files: Sequence[Mapping[str, Any]], read: str = "changed") -> tuple[Look, Receipts]:
    """What differs from the manifest, and the receipts that are true now.

    ``read``: "none" believes receipts and reads nothing, "changed" reads what has no receipt, "all" reads everything.
    Raises Problem for a manifest that is none, and for what can be neither right nor replaced.
    """
    entries = checked(files)
    before = {} if read == "all" else read_receipts(folder)
    look = Look(files=len(entries), total=sum(size for _path, size, _sha256 in entries))
    seen: Receipts = {}

    def one(entry: Entry) -> tuple[str, str | None]:
        """The sha256 of the file as it is, or why it is wrong; None for bytes that were not read."""
        path, size, sha256 = entry
        full = folder / path
        if full.is_symlink():
            return "a symbolic link", None
        try:
            stat = full.stat()
        except (FileNotFoundError, NotADirectoryError):
            return "missing", None
        except OSError as problem:
            raise unreadable(full, problem) from None
        if not kinds.S_ISREG(stat.st_mode):
            raise Problem("weights-blocked", f"{full} is no file: one of the checkpoint belongs there. Move it away.")
        if stat.st_size != size:
            return f"{stat.st_size} bytes, not {size}", None
        now, known = mark(stat), before.get(path)
        if known and known[:-1] == now:
            digest = str(known[-1])
        elif read == "none":
            return "", None
        else:
            digest = sha256_of(full)
            look.hashed += 1
        seen[path] = [*now, digest]
        return ("" if digest == sha256 else f"sha256 {digest[:12]}, not {sha256[:12]}"), digest

    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:  # hashing leaves the interpreter
        for (path, size, _), (reason, digest) in zip(entries, pool.map(one, entries), strict=True):
            if reason:
                look.reasons[path] = reason
                look.missing += size
            else:
                look.have += size
                look.unread += [] if digest else [path]
    look.missing = max(0, look.missing - begun(folder))
    return look, seen


def sha256_of(path: Path) -> str:
    """Hex digest of a file. Raises Problem."""
    digest, buffer = hashlib.sha256(), bytearray(CHUNK)
    view = memoryview(buffer)
    try:
        with path.open("rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                digest.update(view[:count])
    except OSError as problem:
        raise unreadable(path, problem) from None
    return digest.hexdigest()


def unreadable(path: Path, problem: OSError) -> Problem:
    """What the operating system refused to show."""
    return Problem("weights-blocked", f"{path}: {problem.strerror or problem}. Look at the disk, and run again.")


def begun(folder: Path) -> int:
    """Bytes of transfers that were broken off and go on: they need no room again."""
    held = 0
    for place in (folder / PARTS, folder / INCOMING):
        for base, _folders, names in os.walk(place):
            for name in names:
                stat = (Path(base) / name).lstat()
                held += min(stat.st_size, stat.st_blocks * 512)
    return held


def room(folder: Path, needed: int, reserve: int, what: str) -> None:
    """Refuses (Problem) what does not fit on the file system where ``folder`` is or would be, and what is read-only."""
    if not needed:
        return
    place = standing(folder)
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        message = f"{place} is read-only, and {gib(needed)} of {what} are to come there. Make it writable."
        raise Problem("weights-read-only", message)
    held = free(place)
    if held - needed < reserve:
        short = gib(needed + reserve - held)
        raise Problem(
            "weights-no-room",
            f"{place} has {gib(held)} free, but {gib(needed)} of {what} are to come and {gib(reserve)} are to stay "
            f"free. Free {short}, or take another disk.",
        )


def free(folder: Path) -> int:
    """Bytes that may still be written on the file system where ``folder`` is or would be."""
    stat = os.statvfs(standing(folder))
    return stat.f_frsize * stat.f_bavail


def standing(folder: Path) -> Path:
    """``folder``, or what there is of the way to it."""
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def gib(count: int) -> str:
    """Bytes in words."""
    return f"{count / GIB:.1f} GiB" if count >= GIB // 10 else f"{count} bytes"


# --- from a directory ------------------------------------------------------------------------------------------------


def at_hand(source: Path, entries: Sequence[Entry]) -> None:
    """Refuses (Problem weights-source-wrong) by name what ``source`` lacks; nothing is read. Links are followed."""
    for path, size, _sha256 in entries:
        full = source / path
        try:
            stat = full.stat()
        except (FileNotFoundError, NotADirectoryError):
            what = f"is a link to nothing ({full.readlink()})" if full.is_symlink() else "is missing"
            raise source_wrong(full, what) from None
        except OSError as problem:
            raise source_wrong(full, str(problem.strerror or problem)) from None
        if not kinds.S_ISREG(stat.st_mode):
            raise source_wrong(full, "is no file")
        if stat.st_size != size:
            raise source_wrong(full, f"has {stat.st_size} bytes, the manifest says {size}")


def source_wrong(path: Path, what: str) -> Problem:
    """A file of the source that is not the manifest's."""
    return Problem("weights-source-wrong", f"{path} {what}. Complete the source, or correct the manifest.")


def bring(source: Path, folder: Path, entries: Sequence[Entry], move: bool = False) -> Receipts:
    """Puts files of ``source`` to their places in ``folder``, each when all its bytes were read and are right.

    ``move``: the source is on the same file system and ours. What is wrong takes nobody's place, and leaves nothing
    behind. Returns receipts. Raises Problem.
    """
    at_hand(source, entries)
    parts = folder / PARTS
    seen: Receipts = {}

    def one(number: int, path: str, sha256: str) -> None:
        target = folder / path
        make_folders(folder, target.parent)
        if target.is_dir() and not target.is_symlink():
            raise Problem("weights-blocked", f"{target} is a directory: a file belongs there. Move it away.")
        part = source / path if move else parts / str(number)
        digest = sha256_of(part) if move else copy(source / path, part)
        if digest != sha256:
            part.unlink()
            raise source_wrong(source / path, f"has sha256 {digest[:12]}, the manifest says {sha256[:12]}")
        with part.open("r+b") as stream:
            os.fchmod(stream.fileno(), FILE_MODE)
            os.fsync(stream.fileno())
            part.replace(target)
            seen[path] = [*mark(os.fstat(stream.fileno())), digest]

    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(parts, ignore_errors=True)  # of a run that was killed
        parts.mkdir(mode=0o700)
        with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
            jobs = [pool.submit(one, number, path, sha256) for number, (path, _size, sha256) in enumerate(entries)]
            try:
                for job in jobs:
                    job.result()
            finally:
                pool.shutdown(cancel_futures=True)
    except OSError as problem:
        raise trouble(problem, folder) from None
    finally:
        shutil.rmtree(parts, ignore_errors=True)
        if seen:
            write_receipts(folder, read_receipts(folder) | seen)
    return seen


def copy(source: Path, target: Path) -> str:
    """Copies and hashes in one read. Raises OSError."""
    digest, buffer = hashlib.sha256(), bytearray(CHUNK)
    view = memoryview(buffer)
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        while count := reader.readinto(buffer):
            digest.update(view[:count])
            done = 0
            while done < count:
                done += writer.write(view[done:count]) or 0
    return digest.hexdigest()


def trouble(problem: OSError, folder: Path) -> Problem:
    """What the operating system refused while files took their place."""
    where = problem.filename or folder
    return Problem("weights-unwritable", f"{where}: {problem.strerror or problem}. What stood there stands; run again.")


# --- what no manifest names ------------------------------------------------------------------------------------------


def unnamed(folder: Path, files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Shards, links to shards and leftovers of transfers under ``folder`` that the manifest does not name, sorted."""
    named = {path for path, _size, _sha256 in checked(files)}
    found = []
    for base, folders, names in os.walk(folder):  # does not follow links
        inside = Path(base).relative_to(folder)
        ours = bool(inside.parts) and inside.parts[0] in (PARTS, INCOMING)
        for name in [*names, *(name for name in folders if (Path(base) / name).is_symlink())]:
            path = str(inside / name)
            shard = name.endswith((".safetensors", ".safetensors.part", ".safetensors.incomplete"))
            if path not in named and (shard or ours):
                found.append(path)
    return sorted(found)


def remove(folder: Path, paths: Sequence[str]) -> None:
    """Removes files (of a link the link) and what becomes empty of ours. Raises OSError."""
    for path in paths:
        (folder / path).unlink(missing_ok=True)
    for place in (PARTS, INCOMING):
        if (folder / place).is_dir() and not (folder / place).is_symlink():
            shutil.rmtree(folder / place)
