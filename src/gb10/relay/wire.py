"""What goes over a connection: proof of the shared secret in both directions, then numbered requests and answers.

Data is not encrypted: the fabric is the cluster's own. Nobody without the secret is served or believed, only listed
addresses are admitted, and every byte is checked against the index; so a stranger can neither read nor alter a file.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
import struct

MAGIC = b"gb10-relay-1\n"
NONCE = 16
PROOF = 32
REQUEST = struct.Struct("!cIH")  # what, chunk number, milliseconds to wait for it
REPLY = struct.Struct("!cI")  # what, bytes that follow
STATE = struct.Struct("!IiBB")  # chunks held, position of the upstream, whole, on trial
GET, ASK, INDEX = b"g", b"a", b"i"
DATA, WAIT = b"d", b"w"
HANDSHAKE = 5.0  # s
SECRET = 16  # least bytes of a secret


class Refused(OSError):
    """The other side is not who it should be, or says what it should not."""


class Silent(OSError):
    """Nothing came for as long as something had to."""


def family(address: str) -> socket.AddressFamily:
    """Raises ValueError for what is no address."""
    return socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET


def listen(address: str, port: int) -> socket.socket:
    """Bound to this address only. Raises OSError."""
    sock = socket.socket(family(address), socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address, port))
        sock.listen(128)
    except OSError:
        sock.close()
        raise
    return sock


def limit(sock: socket.socket, seconds: float) -> None:
    """Bounds every send and receive without making the socket non-blocking, so that one call fills a chunk."""
    span = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)


def receive(sock: socket.socket, view: memoryview) -> None:
    """Fills ``view``; time that brought anything is no silence. Raises Silent, Refused (closed), OSError."""
    done = 0
    while done < len(view):
        try:
            count = sock.recv_into(view[done:], 0, socket.MSG_WAITALL)
        except BlockingIOError:
            raise Silent("silent") from None
        if not count:
            raise Refused("closed the connection")
        done += count


def take(sock: socket.socket, count: int) -> bytes:
    """``count`` bytes."""
    data = bytearray(count)
    receive(sock, memoryview(data))
    return bytes(data)


def send(sock: socket.socket, data: bytes, flags: int = 0) -> None:
    """All of it. Raises Silent when the other side takes nothing."""
    try:
        sock.sendall(data, flags)
    except BlockingIOError:
        raise Silent("takes nothing") from None


def proof(secret: bytes, side: bytes, topic: bytes, theirs: bytes, ours: bytes) -> bytes:
    """HMAC of who answers, about which index and share, and both sides' nonces."""
    return hmac.new(secret, b"|".join([MAGIC, side, topic, theirs, ours]), hashlib.sha256).digest()


def greet(sock: socket.socket, secret: bytes, topic: bytes) -> None:
    """The server's side. Raises Refused."""
    mine = os.urandom(NONCE)
    send(sock, MAGIC + mine)
    theirs, shown = take(sock, NONCE), take(sock, PROOF)
    if not hmac.compare_digest(shown, proof(secret, b"client", topic, mine, theirs)):
        raise Refused("does not know the secret of this run")
    send(sock, proof(secret, b"server", topic, theirs, mine))


def call(address: str, port: int, own: str, secret: bytes, topic: bytes, silence: float) -> socket.socket:
    """The client's side: a connection from our own address on which both have proved themselves. Raises OSError."""
    sock = socket.socket(family(address), socket.SOCK_STREAM)
    try:
        sock.bind((own, 0))
        sock.settimeout(min(silence, HANDSHAKE))
        sock.connect((address, port))
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit(sock, min(silence, HANDSHAKE))
        hello = take(sock, len(MAGIC) + NONCE)
        if not hello.startswith(MAGIC):
            raise Refused("is no relay")
        theirs, mine = hello[len(MAGIC) :], os.urandom(NONCE)
        send(sock, mine + proof(secret, b"client", topic, theirs, mine))
        if not hmac.compare_digest(take(sock, PROOF), proof(secret, b"server", topic, mine, theirs)):
            raise Refused("does not know the secret of this run")
        limit(sock, silence)
    except BaseException:
        sock.close()
        raise
    return sock


def topic(index_digest: str, share: int) -> bytes:
    """What a connection is about: another index or another share is refused."""
    return f"{index_digest}/{share}".encode()
