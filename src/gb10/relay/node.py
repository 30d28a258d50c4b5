"""A node of the relay: starts its processes, keeps their status in a file, ends them when told or not needed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from .. import whole
from ..fanout import Pace, assign
from . import ports, wire
from .index import CHUNK, INDEX, LARGEST, Index, make_index
from .problem import Problem, blocked
from .receipt import Receipts, read_receipts, write_receipts
from .store import prepare, remove_parts
from .worker import Job, Worker

STATUS, STOP, SEEN = "status.json", "stop", "seen"
TICK = 0.25  # s between two looks at the stop file
WRITE = 1.0  # s between two status files
INDEX_WAIT = 20.0  # s in which somebody must give us the index
STILL = 60.0  # s without a status file after which a relay hangs: it writes one every WRITE seconds
END = 5.0  # s a relay gets to end before it is killed
PORT = 29700
NAME = "gb10-relay"  # of its processes


@dataclass
class Settings:
    """Arguments of a node's relay; ``line`` lists the fabric addresses, the source first, ``address`` our own.

    ``stall``: seconds without a new chunk that fail the node; ``idle``: seconds without a request after which a relay
    with nothing to do ends; ``lease``: seconds without a look at its status after which it ends, and then ``idle`` does
    not count, 0 for no such end; ``limit``: seconds after which it ends in any case.
    """

    path: Path
    run_dir: Path
    address: str
    line: list[str]
    port: int
    digest: str
    secret: bytes = field(repr=False)
    state: Path | None = None
    processes: int = 4
    stall: float = 60.0
    idle: float = 300.0
    lease: float = 0.0
    limit: float = 6 * 3600.0
    verify_all: bool = False

    @property
    def me(self) -> int:
        """Our position in the line."""
        return self.line.index(self.address)

    @property
    def index_dir(self) -> Path:
        """Where the source keeps index and receipts."""
        return self.state or self.path

    def check(self) -> None:
        """Raises Problem naming what is wrong."""
        if len(set(self.line)) != len(self.line) or self.address not in self.line:
            raise Problem(
                "fanout-settings", f"address={self.address}, line={self.line}: each address once, ours among them."
            )
        if len(self.line) > 250:
            raise Problem("fanout-settings", f"line has {len(self.line)} addresses: at most 250 are possible.")
        for address in self.line:
            try:
                wire.family(address)
            except ValueError:
                raise Problem("fanout-settings", f"line: {address!r} is no IP address.") from None
        if not 1 <= self.processes <= 64 or not 1024 <= self.port <= 65535 - 64:
            raise Problem(
                "fanout-settings",
                f"processes={self.processes}, port={self.port}: 1 to 64 processes on ports 1024 to 65471 are possible.",
            )
        if len(self.secret) < wire.SECRET:
            raise Problem(
                "fanout-settings", f"the secret has {len(self.secret)} bytes: at least {wire.SECRET} are needed."
            )
        if min(self.stall, self.idle, self.limit) <= 0 or self.lease < 0:
            said = f"stall={self.stall}, idle={self.idle}, limit={self.limit}, lease={self.lease}"
            raise Problem("fanout-settings", f"{said}: seconds above 0 (lease may be 0).")


# --- start -----------------------------------------------------------------------------------------------------------


def start(settings: Settings, background: bool = True) -> dict[str, Any]:
    """Everything that can be refused is refused here; then the relay goes on by itself. Raises Problem.

    In the foreground it returns the last status when it ended.
    """
    settings.check()
    with suppress(FileNotFoundError):
        if alive(json.loads((settings.run_dir / STATUS).read_text())):
            raise Problem("fanout-running", f"{settings.run_dir}: a relay runs there already. Stop it first.")
    try:
        settings.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        (settings.run_dir / STOP).unlink(missing_ok=True)
    except OSError as problem:
        raise blocked(problem, settings.run_dir, "making") from None
    sockets: list[socket.socket] = []
    try:
        index = own_index(settings) if not settings.me else None
        sockets += listen_all(settings.address, settings.port, settings.processes)
        if index is None:
            index = fetch_index(settings)
            prepare(settings.path, index)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    shares = assign([entry.size for entry in index.entries], settings.processes)
    if not background:
        return Node(settings, index, shares, sockets).run()
    ready, told = os.pipe()
    child = os.fork()
    if child:
        os.close(told)
        for sock in sockets:
            sock.close()
        with os.fdopen(ready, "rb") as pipe:
            pipe.read()
        os.waitpid(child, 0)
        return {"total": index.total, "files": len(index.entries), "processes": len(shares)}
    try:  # whatever happens here, this process never goes on as whoever started it
        detach(settings.run_dir, keep=[told, *(sock.fileno() for sock in sockets)])
        node = Node(settings, index, shares, sockets)
        node.write("starting")
        os.close(told)
        try:
            node.run()
        except Exception as problem:
            node.problem = Problem("fanout-lost", f"{type(problem).__name__}: {problem}. Run again.")
            node.write("failed")
    finally:
        os._exit(0)


def listen_all(address: str, port: int, count: int) -> list[socket.socket]:
    """``count`` ports from ``port`` on. Raises Problem naming address, port and who holds it."""
    sockets: list[socket.socket] = []
    for number in range(port, port + count):
        try:
            sockets.append(wire.listen(address, number))
        except OSError as problem:
            for sock in sockets:
                sock.close()
            who = ports.holder(address, number)
            said = f"{address} port {number}: {problem.strerror}" + (f", held by {who}" if who else "")
            remedy = "Free it, or choose another port or address."
            if who.startswith(NAME):
                remedy = "It is another run's; when nobody looks at it any more it ends by itself within minutes."
            raise Problem("fanout-port", f"{said}. {remedy}") from None
    return sockets


def check(address: str, port: int, processes: int, path: Path, size: int) -> dict[str, Any]:
    """Ports are free, ``path`` can be written and has room for ``size`` bytes more. Changes nothing. Raises Problem."""
    for sock in listen_all(address, port, processes):
        sock.close()
    there = path.absolute()
    while not os.path.lexists(there):
        there = there.parent
    free = 0
    try:
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        with tempfile.TemporaryFile(dir=there):
            free = shutil.disk_usage(there).free
    except OSError as problem:
        raise blocked(problem, path, "writing to") from None
    if size > free:
        raise Problem("fanout-disk-full", f"{path}: {size} bytes are missing, {free} free. Free some, and run again.")
    return {"free": free}


def own_index(settings: Settings) -> Index:
    """The source's: as the controller knows it, and its files unchanged since. Raises Problem."""
    try:
        blob = (settings.index_dir / INDEX).read_bytes()
    except OSError as problem:
        raise blocked(problem, settings.index_dir / INDEX, "reading the index") from None
    if hashlib.sha256(blob).hexdigest() != settings.digest:
        raise Problem("fanout-index", f"{settings.index_dir / INDEX} is not the index of this run. Make it again.")
    index = Index.load(blob)
    files = [{"path": e.path, "size": e.size, "sha256": e.sha256} for e in index.entries]
    make_index(settings.path, files, settings.index_dir, index.chunk, settings.processes)
    return index


def fetch_index(settings: Settings) -> Index:
    """From the source, else from whoever has it. Raises Problem."""
    end, why = time.monotonic() + INDEX_WAIT, "nobody answered"
    topic = wire.topic(settings.digest, 0)
    while time.monotonic() < end:
        for address in settings.line:
            if address == settings.address:
                continue
            try:
                with wire.call(
                    address, settings.port, settings.address, settings.secret, topic, wire.HANDSHAKE
                ) as sock:
                    wire.send(sock, wire.REQUEST.pack(wire.INDEX, 0, 0))
                    _, length = wire.REPLY.unpack(wire.take(sock, wire.REPLY.size))
                    if length > LARGEST:
                        raise wire.Refused(f"offers an index of {length} bytes")
                    blob = wire.take(sock, length)
            except OSError as problem:
                why = f"{address}: {problem.strerror or problem}"
                continue
            if hashlib.sha256(blob).hexdigest() == settings.digest:
                return Index.load(blob)
            why = f"{address} gave another index"
        time.sleep(TICK)
    raise Problem("fanout-index", f"no index after {INDEX_WAIT:.0f} s ({why}). Look at the source, and run again.")


def detach(run_dir: Path, keep: list[int]) -> None:
    """A process of its own session, with nothing of whoever started it but ``keep``."""
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    with suppress(OSError):
        Path("/proc/self/comm").write_text(NAME)
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(run_dir / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for target, handle in ((0, null), (1, log), (2, log)):
        os.dup2(handle, target)
    for handle in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if handle > 2 and handle not in keep:
            with suppress(OSError):
                os.close(handle)


# --- run -------------------------------------------------------------------------------------------------------------


class Node:
    """The parent of the processes: gathers what they say, writes receipts and status, decides when it is over."""

    def __init__(self, settings: Settings, index: Index, shares: list[list[int]], sockets: list[socket.socket]) -> None:
        self.settings, self.index, self.shares, self.sockets = settings, index, shares, sockets
        self.children: dict[int, int] = {}  # pid by number
        self.said: dict[int, dict[str, Any]] = {}
        self.receipts: Receipts = read_receipts(settings.path) if settings.me else {}
        self.pace, self.began, self.written = Pace(), time.monotonic(), 0.0
        self.phase = ""
        self.seen, self.looked = self.began, 0  # when somebody last looked at the status, and that file's time
        self.fresh = False  # receipts that are not written yet
        self.problem: Problem | None = None

    def run(self) -> dict[str, Any]:
        """Until told to stop, failed, or out of work and asked by nobody. Returns the last status."""
        ways = selectors.DefaultSelector()
        for number, share in enumerate(self.shares):
            ways.register(self._spawn(number, share), selectors.EVENT_READ, (number, bytearray()))
        for sock in self.sockets:
            sock.close()
        try:
            while not (ending := self._ending()):
                for key, _ in ways.select(TICK):
                    self._hear(key.fd, *key.data)
                phase = self._phase()
                if phase != self.phase or time.monotonic() - self.written >= WRITE:
                    self.phase = phase
                    self.write()
                    if self.settings.me and self._phase() == "done":
                        remove_parts(self.settings.path)
        finally:
            self._end_children()
            ways.close()
            if self.settings.me:
                remove_parts(self.settings.path)
        status = self.write(ending)
        if self._abandoned():  # nobody comes to stop us
            shutil.rmtree(self.settings.run_dir, ignore_errors=True)
        return status

    def _abandoned(self) -> bool:
        """Whether nobody looked at the status for as long as the lease."""
        try:
            looked = (self.settings.run_dir / SEEN).stat().st_mtime_ns
        except OSError:
            looked = self.looked
        if looked != self.looked:
            self.looked, self.seen = looked, time.monotonic()
        return 0 < self.settings.lease < time.monotonic() - self.seen

    def _spawn(self, number: int, share: list[int]) -> int:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            self._child(number, share, reading, writing)
        os.close(writing)
        self.children[number] = pid
        return reading

    def _child(self, number: int, share: list[int], reading: int, writing: int) -> NoReturn:
        try:
            os.close(reading)
            for other, sock in enumerate(self.sockets):
                if other != number:
                    sock.close()
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            s = self.settings
            job = Job(s.path, s.line, s.me, s.port, s.secret, self.index, s.digest, s.stall, s.verify_all)
            Worker(job, number, share, self.sockets[number], writing).run()
        finally:
            os._exit(4)

    def _hear(self, pipe: int, number: int, buffer: bytearray) -> None:
        data = os.read(pipe, 1 << 16)
        if not data:
            if not self.problem:
                self.problem = Problem(
                    "fanout-lost", f"process {number} of the relay ended. See {self.settings.run_dir}."
                )
            return
        buffer += data
        *lines, rest = buffer.split(b"\n")
        buffer[:] = rest
        for line in lines:
            said = json.loads(line)
            if "receipt" in said:
                self.receipts[said["path"]], self.fresh = said["receipt"], True
            elif "code" in said:
                self.problem = self.problem or Problem(said["code"], said["text"])
            else:
                self.said[number] = said

    def _ending(self) -> str:
        """Why it is over; empty while it is not."""
        if self.problem:
            return "failed"
        if (self.settings.run_dir / STOP).exists() or not self.settings.run_dir.exists():
            return "done" if self._phase() == "done" and self.settings.me else "stopped"
        if time.monotonic() - self.began > self.settings.limit:
            self.problem = Problem("fanout-limit", f"not ended after {self.settings.limit:.0f} s.")
            return "failed"
        if self._abandoned():
            return "stopped"
        unasked = self._phase() == "done" and min(said["asked"] for said in self.said.values())
        if unasked and unasked > self.settings.idle and not self.settings.lease:
            return "done" if self.settings.me else "stopped"
        return ""

    def _phase(self) -> str:
        phases = {said["phase"] for said in self.said.values()}
        if len(self.said) < len(self.shares):
            return "starting"
        return next(phase for phase in ("checking", "fetching", "done") if phase in phases)

    def _end_children(self) -> None:
        for pid in self.children.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.children.values():
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def write(self, phase: str = "") -> dict[str, Any]:
        """The status file, atomically; returns what it says."""
        if self.fresh:
            self.fresh = False
            try:
                write_receipts(self.settings.path, self.receipts)
            except OSError as problem:
                self.problem = self.problem or blocked(problem, self.settings.path, "writing the receipt in")
        status = self.status(phase or self._phase())
        self.written = time.monotonic()
        with suppress(OSError):  # the run goes on without it; a removed directory ends it
            whole.write(self.settings.run_dir / STATUS, json.dumps(status, sort_keys=True).encode(), 0o600)
        return status

    def status(self, phase: str) -> dict[str, Any]:
        """Bytes had, taken and sent by address, rate (bytes/s), time left (s), and what is wrong."""
        said, line = list(self.said.values()), self.settings.line
        have = sum(s["have"] for s in said)
        taken = by_address(said, "took", line)
        self.pace.add(time.monotonic(), sum(taken.values()))
        current = sorted({line[s["upstream"]] for s in said if s["phase"] == "fetching"})
        return {
            "phase": phase,
            "pid": os.getpid(),
            "started": birth(os.getpid()),
            "total": self.index.total,
            "have": have,
            "taken": taken,
            "sent": by_address(said, "sent", line),
            "refused": by_address(said, "wrong", line),
            "rate": round(self.pace.rate),
            "eta": self.pace.left(self.index.total - have),
            "upstream": ", ".join(current),
            "moves": sum(s["moves"] for s in said),
            "files": sorted({s["file"] for s in said if s["phase"] != "done" and s["file"]}),
            "seconds": round(time.monotonic() - self.began, 2),
            "error": self.problem.text if self.problem else "",
            "code": self.problem.code if self.problem else "",
        }


def by_address(said: list[dict[str, Any]], key: str, line: list[str]) -> dict[str, int]:
    """Counts of all processes by the other side's address."""
    total: Counter[str] = Counter()
    for one in said:
        total.update({line[int(position)]: count for position, count in one[key].items()})
    return dict(total)


# --- status and stop -------------------------------------------------------------------------------------------------


def birth(pid: int) -> int:
    """When a process started, in clock ticks since boot; -1 when it is gone. Its number may be another's by now."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] in "ZX" else int(fields[19])


def alive(status: Mapping[str, Any]) -> bool:
    """Whether the relay that wrote this status still runs."""
    return bool(birth(int(status["pid"])) == status["started"] != -1)


def read_status(run_dir: Path) -> dict[str, Any]:
    """The last status, with ``alive``; phase "lost" when the relay died without a word, or hangs. Raises Problem."""
    try:
        status: dict[str, Any] = json.loads((run_dir / STATUS).read_text())
        age = time.time() - (run_dir / STATUS).stat().st_mtime
    except FileNotFoundError:
        raise Problem("fanout-lost", f"no relay was started in {run_dir}.") from None
    status["alive"] = alive(status)
    if status["alive"] and age > STILL:
        return status | {"phase": "lost", "code": "fanout-lost", "error": f"the relay stands still for {age:.0f} s."}
    if not status["alive"] and status["phase"] not in ("done", "failed", "stopped"):
        status |= {"phase": "lost", "code": "fanout-lost", "error": "the relay died without a word. Run again."}
    return status


def watch(run_dir: Path, seconds: float) -> dict[str, Any]:
    """The status when the relay is done or ended, at the latest after ``seconds``; renews the lease. Raises Problem."""
    end = time.monotonic() + seconds
    while True:
        with suppress(OSError):
            (run_dir / SEEN).touch()
        status = read_status(run_dir)
        if status["phase"] in ("done", "failed", "stopped", "lost") or time.monotonic() >= end:
            return status
        time.sleep(TICK)


def stop(run_dir: Path) -> dict[str, Any]:
    """Ends the relay of this directory within END seconds, removes the directory, returns the last status."""
    try:
        status = read_status(run_dir)
    except Problem:
        shutil.rmtree(run_dir, ignore_errors=True)
        return {"phase": "stopped", "alive": False}
    with suppress(OSError):
        (run_dir / STOP).touch()
    end = time.monotonic() + END
    while alive(status) and time.monotonic() < end:
        time.sleep(0.05)
    if alive(status):
        with suppress(ProcessLookupError):
            os.killpg(os.getpgid(status["pid"]), signal.SIGKILL)
    last = read_status(run_dir) if (run_dir / STATUS).exists() else status
    shutil.rmtree(run_dir, ignore_errors=True)
    return last


# --- as a program ----------------------------------------------------------------------------------------------------


def settings_of(given: Mapping[str, Any]) -> Settings:
    """From plain values, as a module or JSON brings them."""
    own = dict(given)
    own["secret"] = str(own["secret"]).encode()
    for key in ("path", "run_dir", "state"):
        own[key] = Path(own[key]) if own.get(key) else None
    return Settings(**own)


def act(given: Mapping[str, Any], background: bool = True) -> dict[str, Any]:
    """``action``: check, index, start, status or stop, with its arguments. Raises Problem."""
    rest = {key: value for key, value in given.items() if key != "action" and value is not None}
    if given["action"] == "index":
        path = Path(rest["path"])
        _, digest, read = make_index(
            path,
            rest["files"],
            Path(rest.get("state") or path),
            int(rest.get("chunk") or CHUNK),
            int(rest.get("processes", 4)),
            bool(rest.get("verify_all", False)),
        )
        return {"digest": digest, "read": read}
    if given["action"] == "start":
        return start(settings_of(rest), background)
    if given["action"] == "check":
        where = int(rest.get("port", PORT)), int(rest.get("processes", 4)), Path(rest["path"])
        return check(str(rest["address"]), *where, int(rest.get("size", 0)))
    if given["action"] == "status":
        return watch(Path(rest["run_dir"]), float(rest.get("wait", 0)))
    return stop(Path(rest["run_dir"]))


def main(tell: Callable[[str], object] = print) -> int:
    """Arguments as JSON on standard input, the result as JSON on standard output."""
    given = json.load(sys.stdin)
    try:
        tell(json.dumps(act(given, background=not given.pop("foreground", False))))
    except Problem as problem:
        tell(json.dumps({"code": problem.code, "error": problem.text}))
        return 1
    return 0
