"""Who listens on a port of this node, as /proc tells."""

from __future__ import annotations

import ipaddress
from pathlib import Path

LISTEN = "0A"  # state of a listening socket in /proc/net/tcp


def holder(address: str, port: int) -> str:
    """``name (pid 12)`` of a process that listens there; empty where none is found or may be seen."""
    sockets = {f"socket:[{inode}]" for inode in inodes(address, port)}
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        try:
            if any(str(handle.readlink()) in sockets for handle in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:  # it ended, or is another user's
            continue
    return ""


def inodes(address: str, port: int) -> list[str]:
    """Of every socket that listens on the port, on this address or on all."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in map(str.split, rows):
            where, _, number = row[1].partition(":")
            if row[3] == LISTEN and int(number, 16) == port and (at(where) in (ipaddress.ip_address(address), None)):
                found.append(row[9])
    return found


def at(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address as the kernel prints it, in words of its own byte order; None for all addresses."""
    packed = b"".join(bytes.fromhex(text[n : n + 8])[::-1] for n in range(0, len(text), 8))
    return ipaddress.ip_address(packed) if any(packed) else None
