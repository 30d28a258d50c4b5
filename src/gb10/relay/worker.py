"""One process of a relay: its share of the files, brought and served. Tells its parent how it goes, once in a while."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import wire
from .fetch import Fetcher, Line
from .index import Index
from .problem import Problem
from .receipt import read_receipts
from .serve import Server
from .store import Store

TELL = 0.25  # s between two reports


@dataclass(frozen=True)
class Job:
    """What every process of a node knows. ``line``: addresses, the source first; ``me``: our position."""

    folder: Path
    line: list[str]
    me: int
    port: int
    secret: bytes
    index: Index
    digest: str
    stall: float
    verify_all: bool


class Worker:
    """``report``: a pipe to the parent; when nobody reads it any more, this process ends."""

    def __init__(self, job: Job, number: int, share: list[int], sock: socket.socket, report: int) -> None:
        self.job, self.number, self.report, self.lock = job, number, report, threading.Lock()
        self.store = Store(job.folder, job.index, share, self._finished)
        topic = wire.topic(job.digest, number)
        self.fetcher = Fetcher(self.store, Line(job.line, job.port + number, job.me, job.secret, topic), job.stall)
        positions = {str(ipaddress.ip_address(address)): position for position, address in enumerate(job.line)}
        self.server = Server(sock, self.store, positions, job.secret, topic, self._state)
        self.phase = "checking"

    def run(self) -> None:
        """Until the parent is gone."""
        self.server.start()
        threading.Thread(target=self._tell_on, daemon=True).start()
        try:
            if self.job.me:
                self.fetcher.others.start()
                self.store.check(read_receipts(self.job.folder), self.job.verify_all)
                self.phase = "fetching"
                self.fetcher.run()
            else:
                self.store.trust()
            self.phase = "done"
            self.tell(self.status())
        except Problem as problem:
            self.tell({"code": problem.code, "text": problem.text})
        except Exception as problem:  # a fault of ours: said in one line, as everything else
            self.tell({"code": "fanout-lost", "text": f"{type(problem).__name__}: {problem} at {self.store.busy}."})
        threading.Event().wait()

    def _state(self) -> tuple[int, bool, bool]:
        whole = self.phase == "done" or self.store.whole
        chooser = self.fetcher.chooser
        return (-1 if whole else chooser.upstream), whole, chooser.trying

    def _finished(self, path: str, receipt: list[int | str]) -> None:
        self.tell({"path": path, "receipt": receipt})

    def _tell_on(self) -> None:
        while True:
            self.tell(self.status())
            time.sleep(TELL)

    def status(self) -> dict[str, Any]:
        """Bytes, from whom and to whom by position, and what it is at."""
        return {
            "phase": self.phase,
            "have": self.store.bytes,
            "upstream": self.fetcher.chooser.upstream,
            "moves": self.fetcher.chooser.moves,
            "took": dict(self.fetcher.took),
            "wrong": dict(self.fetcher.wrong),
            "sent": dict(self.server.sent),
            "asked": time.monotonic() - self.server.asked,
            "file": self.store.busy,
        }

    def tell(self, what: dict[str, Any]) -> None:
        """A line to the parent; ends the process when there is no parent."""
        data = json.dumps(what).encode() + b"\n"
        with self.lock:
            try:
                while data:
                    data = data[os.write(self.report, data) :]
            except OSError:
                os._exit(3)
