"""Files on this node: what is there and right, what is still missing, and how a whole file takes its place."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat as kinds
import threading
from collections.abc import Callable
from pathlib import Path

from .index import PARTS, Index, fill
from .problem import Problem, blocked
from .receipt import Receipts, known, mark

FILE_MODE = 0o644
Finished = Callable[[str, list[int | str]], None]  # path, receipt


class Store:
    """The share of the files one process brings.

    A file grows in a part file in the same file system and takes its name when it is whole and on disk; until then
    what stood there stands. ``finished`` hears of every file found or made whole.
    """

    def __init__(self, folder: Path, index: Index, share: list[int], finished: Finished) -> None:
        self.folder, self.index, self.share, self.finished = folder, index, share, finished
        self.held = bytearray(index.count)
        self.here = {chunk for n in share for chunk in index.chunks(n)}
        self.have, self.bytes = 0, 0
        self.changed = threading.Condition()
        self.parts: dict[int, int] = {}  # part files open, by file number
        self.lacking = {n: len(index.chunks(n)) for n in share}
        self.busy = ""  # the file being read or written, for status and errors

    @property
    def whole(self) -> bool:
        """Whether every chunk of the share is here."""
        return self.have == len(self.here)

    def path(self, number: int) -> Path:
        """Where a file belongs."""
        return self.folder / self.index.entries[number].path

    def part(self, number: int) -> Path:
        """Where it grows: another content or place is another part."""
        return self.folder / PARTS / part_name(self.index, number)

    # --- what is there ---

    def trust(self) -> None:
        """The source: every file was proved when the index was made."""
        for number in self.share:
            self.hold(self.index.chunks(number))

    def check(self, receipts: Receipts, verify_all: bool) -> None:
        """Finds what is right already; what is not in a receipt is read. Raises Problem."""
        for number in self.share:
            entry, path = self.index.entries[number], self.path(number)
            self.busy = entry.path
            try:
                self._check(number, receipts, verify_all)
            except OSError as problem:
                raise blocked(problem, path, "reading") from None

    def _check(self, number: int, receipts: Receipts, verify_all: bool) -> None:
        entry, path, part = self.index.entries[number], self.path(number), self.part(number)
        stat = path.lstat() if os.path.lexists(path) else None
        if stat and kinds.S_ISDIR(stat.st_mode):
            raise Problem("fanout-blocked", f"{path} is a directory: a file belongs there. Look, and move it away.")
        regular = stat is not None and kinds.S_ISREG(stat.st_mode)  # a link carries no bytes of its own
        if stat and regular and not verify_all and known(receipts, entry.path, stat, entry.sha256):
            self.hold(self.index.chunks(number))
            self.lacking[number] = 0
            return
        old = self._right_chunks(path, number) if regular else []
        if stat and regular and stat.st_size == entry.size and len(old) == len(self.index.chunks(number)):
            self.hold(old)
            self.lacking[number] = 0
            self.finished(entry.path, [*mark(stat), entry.sha256])
            return
        begun = self._right_chunks(part, number) if part.is_file() else []
        copied = sorted(set(old) - set(begun))
        if copied:
            self._copy(path, number, copied)
        if begun or copied:
            self._open_part(number)
            self.hold([*begun, *copied])
            self.lacking[number] -= len(begun) + len(copied)
        if not self.lacking[number]:
            self.finish(number)

    def _right_chunks(self, path: Path, number: int) -> list[int]:
        right, view = [], memoryview(bytearray(self.index.chunk))
        with path.open("rb", buffering=0) as stream:
            size = os.fstat(stream.fileno()).st_size
            for chunk in self.index.chunks(number):
                _, offset, length = self.index.locate(chunk)
                if offset + length > size:
                    break
                if fill(stream.fileno(), view[:length], offset) == length and (
                    hashlib.sha256(view[:length]).digest() == self.index.digest(chunk)
                ):
                    right.append(chunk)
        return right

    def _copy(self, path: Path, number: int, chunks: list[int]) -> None:
        """Right chunks of the old file into the part."""
        target, view = self._open_part(number), memoryview(bytearray(self.index.chunk))
        with path.open("rb", buffering=0) as stream:
            for chunk in chunks:
                _, offset, length = self.index.locate(chunk)
                fill(stream.fileno(), view[:length], offset)
                self._put(target, number, offset, view[:length])

    def _put(self, handle: int, number: int, offset: int, data: memoryview) -> None:
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(handle, data[done:], offset + done)
        except OSError as problem:
            raise blocked(problem, self.path(number), "writing") from None

    def hold(self, chunks: range | list[int]) -> None:
        """These are here and right."""
        with self.changed:
            for chunk in chunks:
                if not self.held[chunk]:
                    self.held[chunk] = 1
                    self.have += 1
                    self.bytes += self.index.locate(chunk)[2]
            self.changed.notify_all()

    def missing(self) -> list[int]:
        """Chunks still to bring, in the order every node brings them."""
        return [chunk for n in self.share for chunk in self.index.chunks(n) if not self.held[chunk]]

    def wait(self, chunk: int, seconds: float) -> bool:
        """Whether the chunk is here, at the latest after ``seconds``."""
        with self.changed:
            return self.changed.wait_for(lambda: bool(self.held[chunk]), seconds)

    # --- what comes ---

    def _open_part(self, number: int) -> int:
        if number not in self.parts:
            part = self.part(number)
            try:
                part.parent.mkdir(mode=0o700, exist_ok=True)
                self.parts[number] = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as problem:
                raise blocked(problem, part, "making") from None
        return self.parts[number]

    def write(self, chunk: int, data: memoryview) -> int | None:
        """A chunk that was verified. Returns the number of the file it made whole. Raises Problem."""
        number, offset, _length = self.index.locate(chunk)
        self.busy = self.index.entries[number].path
        self._put(self._open_part(number), number, offset, data)
        self.hold([chunk])
        self.lacking[number] -= 1
        return None if self.lacking[number] else number

    def finish(self, number: int) -> None:
        """A whole file takes its place. Raises Problem."""
        entry, path = self.index.entries[number], self.path(number)
        handle = self._open_part(number)
        try:
            make_folders(self.folder, path.parent)
            os.ftruncate(handle, entry.size)
            os.fchmod(handle, FILE_MODE)
            os.fsync(handle)
            self.part(number).replace(path)
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self.finished(entry.path, [*mark(os.fstat(handle)), entry.sha256])
            with self.changed:
                os.close(self.parts.pop(number))
        except OSError as problem:
            raise blocked(problem, path, "finishing") from None

    def open(self, number: int) -> int:
        """A handle of its own to read what is held of a file; the caller closes it. Raises OSError."""
        with self.changed:
            if number in self.parts:
                return os.dup(self.parts[number])
        return os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)


def part_name(index: Index, number: int) -> str:
    """The part file of a file: one place and one content."""
    entry = index.entries[number]
    return hashlib.sha256(f"{entry.path}\0{entry.sha256}\0{index.chunk}".encode()).hexdigest()


def make_folders(root: Path, folder: Path) -> None:
    """``folder`` under ``root`` exists and is there in truth, not by a link out of it. Raises OSError, Problem."""
    folder.mkdir(parents=True, exist_ok=True)
    if not folder.resolve().is_relative_to(root.resolve()):
        raise Problem("fanout-blocked", f"{folder} leads out of {root} by a link. Look, and move it away.")


def prepare(folder: Path, index: Index) -> None:
    """The target can be written, has room, and no parts of another content. Raises Problem."""
    missing = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for entry in index.entries:
            make_folders(folder, (folder / entry.path).parent)
    except OSError as problem:
        raise blocked(problem, folder, "making directories in") from None
    parts = folder / PARTS
    try:
        if parts.is_symlink():
            parts.unlink()
        parts.mkdir(mode=0o700, exist_ok=True)
        probe = parts / "probe"
        probe.write_bytes(b"")
        probe.unlink()
        names = {part_name(index, number) for number in range(len(index.entries))}
        for part in parts.iterdir():
            if part.name not in names:
                part.unlink()
    except OSError as problem:
        raise blocked(problem, folder, "writing to") from None
    for number, entry in enumerate(index.entries):
        path, part = folder / entry.path, parts / part_name(index, number)
        if not (path.is_file() and not path.is_symlink() and path.stat().st_size == entry.size):
            missing += max(0, entry.size - (part.stat().st_blocks * 512 if part.is_file() else 0))
    free = shutil.disk_usage(folder).free
    if missing > free:
        remove_parts(folder)
        raise Problem(
            "fanout-disk-full", f"{folder}: {missing} bytes are missing, {free} free. Free some, and run again."
        )


def remove_parts(folder: Path) -> None:
    """Nothing temporary stays."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)
