"""Serves what this node holds to the nodes of the line, from the moment a chunk is verified."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from . import wire
from .store import Store

CLIENTS = 64  # connections at once; a line of eight needs two from each
IDLE = 60.0  # s without a request before a connection is closed
WAIT = 5.0  # s a request may wait at most

State = Callable[[], tuple[int, bool, bool]]  # position of the upstream, whole, on trial


class Server:
    """One listening socket's share. ``line``: positions by address; nobody else is let in."""

    def __init__(
        self, sock: socket.socket, store: Store, line: dict[str, int], secret: bytes, topic: bytes, state: State
    ) -> None:
        self.sock, self.store, self.line, self.secret, self.topic, self.state = sock, store, line, secret, topic, state
        self.sent: dict[int, int] = {}  # bytes by position
        self.asked = time.monotonic()  # when somebody who is not whole last asked for anything
        self.blob = store.index.dump()
        self.room = threading.BoundedSemaphore(CLIENTS)

    def start(self) -> None:
        """In the background, until the process ends."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, address = self.sock.accept()
            except OSError:
                return
            position = self.line.get(str(ipaddress.ip_address(address[0])))
            if position is None or not self.room.acquire(blocking=False):
                client.close()
                continue
            threading.Thread(target=self._client, args=(client, position), daemon=True).start()

    def _client(self, client: socket.socket, position: int) -> None:
        handle: list[int] = [-1, -1]  # number of the file, its handle
        try:
            with client, suppress(OSError):  # whoever leaves or lies has only itself to blame
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wire.limit(client, wire.HANDSHAKE)
                wire.greet(client, self.secret, self.topic)
                wire.limit(client, IDLE)
                while self._answer(client, position, handle):
                    pass
        finally:
            if handle[1] >= 0:
                os.close(handle[1])
            self.room.release()

    def _answer(self, client: socket.socket, position: int, handle: list[int]) -> bool:
        what, chunk, wait = wire.REQUEST.unpack(wire.take(client, wire.REQUEST.size))
        self.asked = time.monotonic()
        if what == wire.ASK:
            upstream, whole, trying = self.state()
            state = wire.STATE.pack(self.store.have, upstream, whole, trying)
            wire.send(client, wire.REPLY.pack(wire.DATA, len(state)) + state)
        elif what == wire.INDEX:
            wire.send(client, wire.REPLY.pack(wire.DATA, len(self.blob)) + self.blob)
        elif what == wire.GET and chunk in self.store.here:
            if self.store.wait(chunk, min(wait / 1000, WAIT)):
                self._send_chunk(client, chunk, position, handle)
            else:
                wire.send(client, wire.REPLY.pack(wire.WAIT, 0))
        else:
            return False
        return True

    def _send_chunk(self, client: socket.socket, chunk: int, position: int, handle: list[int]) -> None:
        number, offset, length = self.store.index.locate(chunk)
        if handle[0] != number:
            if handle[1] >= 0:
                os.close(handle[1])
            handle[:] = [-1, -1]
            handle[:] = [number, self.store.open(number)]
        wire.send(client, wire.REPLY.pack(wire.DATA, length), socket.MSG_MORE)
        done = 0
        while done < length:
            count = os.sendfile(client.fileno(), handle[1], offset + done, length - done)
            if not count:
                raise wire.Refused("the file became shorter")
            done += count
        self.sent[position] = self.sent.get(position, 0) + length
        self.asked = time.monotonic()
