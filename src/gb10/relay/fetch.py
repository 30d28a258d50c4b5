"""Brings what a store lacks from the node upstream, and moves to another one when the chooser says so."""

from __future__ import annotations

import hashlib
import queue
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from ..fanout import LOOK, Chooser, Peer
from . import wire
from .problem import Problem
from .store import Store

DEPTH = 4  # requests on their way: the next chunk follows without a pause
SILENCE = 3.0  # s: a living upstream says at least every WAIT ms that it has nothing yet
WAIT = 1000  # ms
GRACE = 5.0  # s in which the others may still be starting
WRONG = 3  # chunks refused before a node is not asked again: one may be a flipped bit of a long run
RETRY = 0.25  # s between calls to one that does not answer
FRESH = 3.0  # s after which what a node said of itself is old


@dataclass
class Line:
    """Who stands where and how to reach them. ``me``: our own position."""

    addresses: list[str]
    port: int
    me: int
    secret: bytes
    topic: bytes

    def call(self, position: int, silence: float) -> socket.socket:
        """Raises OSError."""
        own = self.addresses[self.me]
        return wire.call(self.addresses[position], self.port, own, self.secret, self.topic, silence)


@dataclass
class Others:
    """What the others say of themselves, asked for once a second, each in its own thread."""

    line: Line
    said: dict[int, tuple[float, Peer]] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """In the background, until ``over``."""
        for position in range(len(self.line.addresses)):
            if position != self.line.me:
                threading.Thread(target=self._ask, args=(position,), daemon=True).start()

    def _ask(self, position: int) -> None:
        while not self.over.is_set():
            try:
                with self.line.call(position, LOOK) as sock:
                    while not self.over.is_set():
                        wire.send(sock, wire.REQUEST.pack(wire.ASK, 0, 0))
                        wire.take(sock, wire.REPLY.size)
                        have, upstream, whole, trying = wire.STATE.unpack(wire.take(sock, wire.STATE.size))
                        self.said[position] = (time.monotonic(), Peer(have, upstream, bool(whole), bool(trying)))
                        self.over.wait(LOOK)
            except OSError:
                self.over.wait(LOOK / 2)

    def now(self) -> dict[int, Peer]:
        """Those that answered lately."""
        late = time.monotonic() - FRESH
        return {p: peer for p, (when, peer) in list(self.said.items()) if when >= late}


class Fetcher:
    """Fetches in one thread, looks around in another, finishes files in a third."""

    def __init__(self, store: Store, line: Line, stall: float) -> None:
        self.store, self.line, self.stall = store, line, stall
        self.chooser, self.others = Chooser(line.me), Others(line)
        self.lock = threading.Lock()
        self.todo: deque[int] = deque()
        self.took: dict[int, int] = {}  # bytes by position
        self.wrong: dict[int, int] = {}  # chunks that were refused, by position
        self.why = ""  # why the last upstream was left
        self.moved = time.monotonic()
        self.problem: Problem | None = None
        self.open: tuple[int, socket.socket | None] = (-1, None)
        self.whole_files: queue.Queue[int | None] = queue.Queue()

    def run(self) -> None:
        """Until everything is here and in its place. Raises Problem."""
        self.todo.extend(self.store.missing())
        self.moved = time.monotonic()
        if self.todo:
            time.sleep(0.1)  # who comes back finds out first how the line stands
            threading.Thread(target=self._look_around, daemon=True).start()
            finisher = threading.Thread(target=self._finish, daemon=True)
            finisher.start()
            self._fetch()
            self.whole_files.put(None)
            finisher.join()
            if self.problem:
                raise self.problem
        self.others.over.set()

    def _finish(self) -> None:
        try:
            while (number := self.whole_files.get()) is not None:
                self.store.finish(number)
        except Problem as problem:
            self.problem = problem

    def _look_around(self) -> None:
        while not self.store.whole and not self.problem:
            position, sock = self.open
            with self.lock:
                self.chooser.look(time.monotonic(), self.store.have, self.others.now())
            time.sleep(LOOK)
            left = position != self.chooser.upstream or time.monotonic() - self.moved > self.stall
            if sock and left and self.open[1] is sock:  # what is on its way had its time
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _fetch(self) -> None:
        began, answered = time.monotonic(), False
        while self.todo:
            self.judge()
            position = self.chooser.upstream
            try:
                with self.line.call(position, SILENCE) as sock:
                    answered, self.open = True, (position, sock)
                    self._pump(sock, position)
            except Wrong:
                self.wrong[position] = self.wrong.get(position, 0) + 1
                if self.wrong[position] >= WRONG:
                    self._left(position, f"sent {WRONG} chunks with another sha256", for_good=True)
            except OSError as problem:
                if not answered and time.monotonic() - began < GRACE:
                    time.sleep(RETRY)  # it may still be starting
                    continue
                self._left(position, str(problem.strerror or problem))

    def _left(self, position: int, why: str, for_good: bool = False) -> None:
        with self.lock:
            if position != self.chooser.upstream:
                return  # the chooser was faster
            self.why = f"{self.line.addresses[position]}: {why}"
            chosen = self.chooser.failed(time.monotonic(), self.others.now(), for_good)
        if chosen == position:  # nobody else answers
            time.sleep(RETRY)

    def judge(self) -> None:
        """Raises Problem when something went wrong or nothing came for too long."""
        if self.problem:
            raise self.problem
        waited = time.monotonic() - self.moved
        if waited > self.stall:
            upstream = self.line.addresses[self.chooser.upstream]
            have = f"{self.store.have} of {len(self.store.here)} chunks"
            text = f"no data for {waited:.0f} s, {have} here, asking {upstream}"
            text += f" (left {self.why})" if self.why else ""
            number = self.store.index.locate(self.todo[0])[0] if self.todo else self.store.share[0]
            name = self.store.index.entries[number].path
            raise Problem("fanout-stalled", f"{name}: {text}. Look at that node and its link, and run again.")

    def _pump(self, sock: socket.socket, position: int) -> None:
        """Requests ahead, answers in order, until nothing is missing or another upstream was chosen."""
        asked: deque[int] = deque()
        view = memoryview(bytearray(self.store.index.chunk))
        try:
            while True:
                stay = self.chooser.upstream == position
                while stay and self.todo and len(asked) < DEPTH:
                    asked.append(self.todo.popleft())
                    wire.send(sock, wire.REQUEST.pack(wire.GET, asked[-1], WAIT))
                if not asked:
                    return
                what, length = wire.REPLY.unpack(wire.take(sock, wire.REPLY.size))
                if what == wire.DATA:
                    self._take(sock, asked[0], length, view, position)
                    asked.popleft()
                elif what == wire.WAIT and not length:
                    if not stay:
                        return
                    self.judge()
                    self.todo.appendleft(asked.popleft())
                else:
                    raise wire.Refused("says what no relay says")
        finally:
            self.todo.extendleft(reversed(asked))

    def _take(self, sock: socket.socket, chunk: int, length: int, view: memoryview, position: int) -> None:
        if length != self.store.index.locate(chunk)[2]:
            raise Wrong
        wire.receive(sock, view[:length])
        if hashlib.sha256(view[:length]).digest() != self.store.index.digest(chunk):
            raise Wrong
        whole = self.store.write(chunk, view[:length])
        self.moved = time.monotonic()
        self.took[position] = self.took.get(position, 0) + length
        if whole is not None:
            self.whole_files.put(whole)
        if self.problem:
            raise self.problem


class Wrong(Exception):
    """A chunk that is not what the index says."""
