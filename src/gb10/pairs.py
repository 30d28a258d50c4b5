"""Pairs of nodes on the fabric: which addresses of two nodes meet on a rail, and who sends to whom in which round."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gb10 import fabric

Facts = Mapping[str, Any]

# The rail of two nodes that share no network.
ROUTED = "routed"


@dataclass(frozen=True)
class Place:
    """One end of a rail on one node. Over TCP there is no ``hca``; ``gids`` are (index, address) of RoCE v2 entries."""

    netdev: str
    networks: tuple[ipaddress.IPv4Interface, ...]
    hca: str = ""
    gids: tuple[tuple[int, str], ...] = ()

    def gid_of(self, address: str) -> int | None:
        """The GID index of an address."""
        return next((index for index, held in self.gids if held == address), None)


@dataclass(frozen=True)
class Link:
    """One rail from ``sender`` to ``receiver``, with the address of each end on it; ``rail`` is its network."""

    rail: str
    sender: str
    receiver: str
    source: str
    target: str
    sends_on: Place
    receives_on: Place


def places(facts: Facts, rdma: bool, interfaces: Sequence[str], address: str) -> list[Place]:
    """The ends of a node's rails, that of the fabric address first: live RDMA ports, or over sockets the interface of
    the fabric address and the further ``interfaces``."""
    if rdma:
        live = fabric.rails(facts, address)
        return [
            Place(r.netdev, r.networks, r.hca, tuple((i, str(gid)) for i, gid in sorted(r.gids.items()))) for r in live
        ]
    names = dict.fromkeys([fabric.interface_of(facts, address), *interfaces])
    links = {link["name"]: link for link in facts.get("links") or []}
    found = []
    for name in names:
        entries = [a for a in (links.get(name) or {}).get("addresses") or [] if a.get("family") == "inet"]
        networks = tuple(ipaddress.IPv4Interface(f"{a['address']}/{a['prefix']}") for a in entries)
        if name and networks:
            found.append(Place(name, networks))
    return found


def links(ends: Mapping[str, Sequence[Place]], addresses: Mapping[str, str]) -> list[Link]:
    """Every link between two nodes on every rail both have, in both directions; their fabric addresses where they have
    none in common.

    ``addresses``: fabric address by node. Where two interfaces share several networks, that of the fabric address
    counts, else the first.
    """
    found = []
    for sender, own in ends.items():
        for receiver, theirs in ends.items():
            if sender != receiver and own and theirs:
                routed = Link(ROUTED, sender, receiver, addresses[sender], addresses[receiver], own[0], theirs[0])
                found += list(_links(sender, receiver, own, theirs, addresses)) or [routed]
    return found


def _links(
    sender: str, receiver: str, own: Sequence[Place], theirs: Sequence[Place], addresses: Mapping[str, str]
) -> Iterator[Link]:
    taken: set[str] = set()
    for place in own:
        for network in sorted(place.networks, key=lambda n: str(n.ip) != addresses[sender]):
            every = ((p, n) for p in theirs for n in p.networks)
            match = next(((p, n) for p, n in every if n.network == network.network and p.netdev not in taken), None)
            if match:
                taken.add(match[0].netdev)
                yield Link(str(network.network), sender, receiver, str(network.ip), str(match[1].ip), place, match[0])
                break


def targets(found: Sequence[Link], node: str) -> list[dict[str, str]]:
    """What ``gb10_reach`` pings from one node."""
    return [
        {"name": link.receiver, "rail": link.rail, "source": link.source, "address": link.target}
        for link in found
        if link.sender == node
    ]


def rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """A tournament: each pair once, each node in at most one pair a round (n - 1 rounds; n for odd n)."""
    seats: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found if len(names) > 1 else []


def steps(names: Sequence[str]) -> list[dict[str, str]]:
    """Sender to receiver, step by step: every round in one direction, then in the other."""
    return [dict(step) for pairs in rounds(names) for step in (pairs, [(b, a) for a, b in pairs])]
