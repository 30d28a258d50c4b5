"""The ledger of a cluster on the controller: read, and appended to under a lock. docs/history.md has its layout.

``runs/<run>.jsonl``, one file a run; ``head.json``, the newest entry; ``plans/<sha256>.json``, what was to be deployed;
``signatures/<hash>.sig``; ``lock``. Every file is written beside its place, synced and renamed.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from gb10 import whole
from gb10.history import Chain, Line, following, lines_of, verify
from gb10.plan import canonical

# Seconds a writer waits for the others; each of them takes milliseconds.
LOCK_WAIT = 30.0
# Bytes that must be free when a run begins, so that its end can still be written.
ROOM = 4 << 20


class LedgerError(Exception):
    """The ledger cannot be read, written, or does not verify; one line of text."""


def new_run_id() -> str:
    """UTC time and something random: sorts by time, never the same twice."""
    return time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()) + uuid.uuid4().hex[:8]


def now() -> str:
    """UTC, as entries have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Ledger:
    """One directory. Raises LedgerError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.head = folder / "head.json"
        self.plans = folder / "plans"
        self.signatures = folder / "signatures"
        self._lock: IO[str]

    def read(self, deep: bool = False) -> Chain:
        """All entries and what is wrong with them; an empty chain where there is no ledger."""
        with said(self.folder):
            if not self.folder.is_dir():
                return Chain()
            with self._locked(fcntl.LOCK_SH):
                return self._read(deep)

    def begin(self, body: Mapping[str, Any], plan: Mapping[str, Any] | None = None) -> Line:
        """Opens a run: the whole ledger must verify, and there must be room. ``plan`` is kept under its sum."""
        with said(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.runs.mkdir(exist_ok=True, mode=0o700)
            with self._locked(fcntl.LOCK_EX):
                chain = self._read()
                if chain.faults:
                    raise LedgerError(f"{self.folder} does not verify: {chain.faults[0]}")
                disk = os.statvfs(self.folder)
                if disk.f_bavail * disk.f_frsize < ROOM:
                    raise LedgerError(f"{self.folder}: less than {ROOM >> 20} MiB are free")
                content = dict(body, ledger=chain.identity or uuid.uuid4().hex)
                if plan is not None:
                    content["plan"] = self._keep(plan)
                return self._write(chain.last, content)

    def append(self, body: Mapping[str, Any]) -> Line:
        """Adds an entry to a run that was begun. Only the head and the run's own file are verified."""
        with said(self.folder), self._locked(fcntl.LOCK_EX):
            return self._write(self._newest(), body)

    def plan(self, name: str) -> dict[str, Any]:
        """What a run was to deploy; the name is the sum of its content."""
        with said(self.folder):
            text = (self.plans / f"{name}.json").read_bytes()
        if sha256(text).hexdigest() != name:
            raise LedgerError(f"plan {name[:12]} was changed: its content does not give its name")
        held: dict[str, Any] = json.loads(text)
        return held

    def plan_faults(self, chain: Chain) -> list[str]:
        """What is wrong with the plans that entries name."""
        faults = []
        for name in sorted({str(line.entry["plan"]) for line in chain.lines if line.entry.get("plan")}):
            try:
                self.plan(name)
            except (LedgerError, ValueError) as problem:
                faults.append(str(problem))
        return faults

    def _keep(self, plan: Mapping[str, Any]) -> str:
        text = canonical(dict(plan)).encode()
        name = sha256(text).hexdigest()
        path = self.plans / f"{name}.json"
        if not path.exists():
            self.plans.mkdir(exist_ok=True, mode=0o700)
            keep(path, text)
        return name

    def _read(self, deep: bool = False) -> Chain:
        files = {}
        if self.runs.is_dir():
            for path in self.runs.glob("*.jsonl"):
                files[path.stem] = path.read_bytes().decode("ascii", "replace")
        return verify(files, self._head(), deep)

    def _head(self) -> dict[str, Any] | None:
        try:
            held = json.loads(self.head.read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            held = None
        return held if isinstance(held, dict) else {}

    def _run(self, run: str) -> list[Line]:
        """The lines of one run, each of which must give its hash."""
        path = self.runs / f"{run}.jsonl"
        lines, faults = lines_of(run, path.read_bytes().decode("ascii", "replace"))
        if faults or not all(line.whole for line in lines):
            raise LedgerError(f"{path} was changed since it was written")
        return lines

    def _newest(self) -> Line:
        """The entry the head names; all is read where a writer died before it could write the head."""
        head = self._head()
        if head and not self._lock.read():
            lines = self._run(str(head.get("run")))
            if lines and (lines[-1].sequence, lines[-1].hash) == (head.get("sequence"), head.get("hash")):
                return lines[-1]
        chain = self._read()
        if chain.faults or chain.last is None:
            raise LedgerError(f"{self.folder} does not verify: {chain.faults[0] if chain.faults else 'it is empty'}")
        return chain.last

    def _write(self, last: Line | None, body: Mapping[str, Any]) -> Line:
        line = following(last, body)
        path = self.runs / f"{line.run}.jsonl"
        held = self._run(line.run) if path.exists() else []
        if bool(held) == (body["kind"] == "begin"):
            raise LedgerError(f"run {line.run} " + ("is there already" if held else "was not begun"))
        self._lock.seek(0)
        self._lock.write(line.run)  # tells the next writer, should this one die before the head is written
        self._lock.flush()
        keep(path, "".join(one.written() + "\n" for one in [*held, line]).encode())
        keep(self.head, canonical({"hash": line.hash, "run": line.run, "sequence": line.sequence}).encode() + b"\n")
        self._lock.truncate(0)
        return line

    @contextmanager
    def _locked(self, mode: int) -> Iterator[None]:
        try:
            stream: IO[str] = (self.folder / "lock").open("a+", encoding="utf-8")
        except (PermissionError, OSError):
            if mode == fcntl.LOCK_EX:
                raise
            yield  # a ledger that can only be read
            return
        with stream:
            end = time.monotonic() + LOCK_WAIT
            while True:
                try:
                    fcntl.flock(stream, mode | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise LedgerError(f"{self.folder} is held by another run for {LOCK_WAIT:g} s") from None
                    time.sleep(0.01)
            stream.seek(0)
            self._lock = stream
            yield


@contextmanager
def said(folder: Path) -> Iterator[None]:
    """Problems of the file system as LedgerError."""
    try:
        yield
    except OSError as problem:
        raise LedgerError(f"{problem.filename or folder}: {problem.strerror or problem}") from None


def keep(path: Path, content: bytes) -> None:
    """A file of the ledger, for the operator's eyes only."""
    whole.write(path, content, 0o600, durable=True)
