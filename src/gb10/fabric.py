"""The fabric of one node: which RDMA devices carry ranks, over which interface, with which GID. Derived from facts.

Each QSFP port of a GB10 shows as two devices (twins), and which port is cabled differs per node, so everything is read
from link state. See docs/facts.md for the facts, NCCL's documentation for the variables.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gb10.environment import DETECTED, SOCKETS
from gb10.findings import Finding, error, warning
from gb10.nodes import INTERFACE

Facts = Mapping[str, Any]

# As /sys/class/infiniband/<hca>/ports/<n>/gid_attrs/types/<index> spells it.
ROCE_V2 = "RoCE v2"

# Variables that pin a value on a node, and the environment they become.
VARIABLES = {
    "nccl_ib_hca": "NCCL_IB_HCA",
    "nccl_socket_ifname": "NCCL_SOCKET_IFNAME",
    "nccl_ib_gid_index": "NCCL_IB_GID_INDEX",
}


@dataclass(frozen=True)
class Rail:
    """One live RDMA port. MTUs in bytes, ``active_mtu`` None where nothing told it; ``rate`` in Gb/s."""

    hca: str
    netdev: str
    networks: tuple[ipaddress.IPv4Interface, ...]
    mtu: int | None
    active_mtu: int | None
    rate: float | None
    gids: Mapping[int, ipaddress.IPv4Address]

    def has(self, address: str) -> bool:
        """Whether ``address`` is one of this rail's."""
        return any(str(network.ip) == address for network in self.networks)


@dataclass(frozen=True)
class Fabric:
    """What NCCL is told on one node. ``None`` and empty tuples mean: leave the variable unset."""

    hcas: tuple[str, ...]
    netdevs: tuple[str, ...]
    socket_ifname: str | None
    gid_index: int | None

    def environment(self, transport: str = "roce") -> dict[str, str]:
        """The per-node variables. Nothing is ever empty: NCCL reads an empty GID index as 0, a link-local address."""
        env: dict[str, str] = {}
        if self.socket_ifname:
            for key in SOCKETS:
                env[key] = self.socket_ifname
        if transport == "roce":
            if self.hcas:
                env["NCCL_IB_HCA"] = ",".join(self.hcas)
            if self.gid_index is not None:
                env["NCCL_IB_GID_INDEX"] = str(self.gid_index)
        return env


def detect(facts: Facts, fabric_address: str, pinned: Mapping[str, Any] | None = None) -> Fabric:
    """The node's fabric from its facts. A pinned nccl_ib_hca, nccl_socket_ifname or nccl_ib_gid_index wins.

    The GID index is given only where NCCL's own choice would be wrong and one index is right on every HCA: indexes
    drift, and another one restarts the ranks. Unset, NCCL chooses by NCCL_IB_ROCE_VERSION_NUM and NCCL_IB_ADDR_FAMILY.
    """
    pins = pinned or {}
    hcas = pinned_hcas(pins)
    live = {rail.hca: rail for rail in rails(facts, fabric_address)}
    used = [live[name] for name in (map(device, hcas) if hcas else live) if name in live]
    index = pin(pins, "nccl_ib_gid_index")
    return Fabric(
        hcas=tuple(hcas or live),
        netdevs=tuple(rail.netdev for rail in used),
        socket_ifname=pin(pins, "nccl_socket_ifname") or interface_of(facts, fabric_address),
        gid_index=int(index) if index.isdigit() else needed_gid_index(used, fabric_address),
    )


def rails(facts: Facts, fabric_address: str = "") -> list[Rail]:
    """Live rails: the port active, its interface up and with an IPv4 address. The fabric address's own comes first."""
    links = {link["name"]: link for link in facts.get("links") or []}
    found = []
    for hca in _devices(facts):
        link = links.get(hca.get("netdev"))
        port = next((p for p in hca.get("ports") or [] if p.get("state") == "ACTIVE"), None)
        if port is None or link is None or link.get("operstate") == "down":
            continue
        networks = _networks(link)
        if networks:
            gids = _gids(port.get("gids") or [])
            mtus = (link.get("mtu"), port.get("active_mtu"))
            found.append(Rail(hca["name"], link["name"], networks, *mtus, port.get("rate_gbps"), gids))
    return sorted(found, key=lambda rail: (not rail.has(fabric_address), rail.hca))


def needed_gid_index(used: Iterable[Rail], fabric_address: str) -> int | None:
    """``gid_index`` where NCCL by itself would take another address than the fabric's; else None."""
    every = list(used)
    if not every or own_choice(every[0]) == fabric_address:
        return None
    return gid_index(every, fabric_address)


def own_choice(rail: Rail) -> str:
    """The address NCCL takes by itself: that of the first RoCE v2 entry over IPv4."""
    return str(rail.gids[min(rail.gids)]) if rail.gids else ""


def gid_index(used: Iterable[Rail], fabric_address: str) -> int | None:
    """The index of the RoCE v2 entry of ``fabric_address``, if that index is right on every rail; else None."""
    every = list(used)
    if not every:
        return None
    own, *others = every
    index = next((i for i, address in sorted(own.gids.items()) if str(address) == fabric_address), None)
    if index is None or any(not rail.has(str(rail.gids.get(index, ""))) for rail in others):
        return None
    return index


def interface_of(facts: Facts, address: str) -> str | None:
    """The interface that carries ``address``; None where none does."""
    for link in facts.get("links") or []:
        if any(entry.get("address") == address for entry in link.get("addresses") or []):
            return str(link["name"])
    return None


def pin(pinned: Mapping[str, Any], key: str) -> str:
    """The pinned value as text; empty where it is not pinned (a plan then says ``detected``)."""
    value = pinned.get(key)
    text = "" if value is None else str(value).strip()
    return "" if text == DETECTED else text


def pinned_hcas(pinned: Mapping[str, Any]) -> list[str]:
    """The pinned HCAs as NCCL takes them (``rocep1s0f1``, ``rocep1s0f1:1``), from a list or comma-separated text."""
    value = pinned.get("nccl_ib_hca")
    items = map(str, value) if isinstance(value, list | tuple) else pin(pinned, "nccl_ib_hca").split(",")
    return [item.strip() for item in items if item.strip()]


def device(hca: str) -> str:
    """``=rocep1s0f1:1`` -> ``rocep1s0f1``."""
    return hca.lstrip("=").partition(":")[0]


def pinned_findings(node: str, facts: Facts, fabric_address: str, pinned: Mapping[str, Any]) -> list[Finding]:
    """What is wrong with this node's pinned values, judged against what the node has."""
    findings = []
    known = {hca["name"]: hca for hca in _devices(facts)}
    live = {rail.hca: rail for rail in rails(facts, fabric_address)}
    choices = ", ".join(live) or "none"
    names = [link["name"] for link in facts.get("links") or []]
    hcas = pinned_hcas(pinned)
    for hca in hcas:
        name = device(hca)
        if name.startswith("^"):
            message = f"nccl_ib_hca is {hca}, an exclusion."
            findings.append(error("hca-excluding", message, f"Name the HCAs to use: {choices}.", node))
        elif name not in known and (INTERFACE.match(name) or name in names):
            own = next((h["name"] for h in known.values() if h.get("netdev") == name), choices)
            message = f"nccl_ib_hca names {name}, a network interface."
            findings.append(error("hca-is-interface", message, f"Its HCA is {own}.", node))
        elif name not in known:
            findings.append(
                error(
                    "hca-not-found",
                    f"nccl_ib_hca names {name}, but the node has {', '.join(sorted(known)) or 'no HCA'}.",
                    f"Live ones are: {choices}.",
                    node,
                )
            )
        elif name not in live:
            states = [str(p.get("state")) for p in known[name].get("ports") or []]
            findings.append(
                error(
                    "hca-not-live",
                    f"nccl_ib_hca names {name}, whose port is {'/'.join(states) or 'absent'} "
                    f"and whose interface is {_state(facts, known[name].get('netdev'))}.",
                    f"Cable and address it, or use the live ones: {choices}.",
                    node,
                )
            )
    ifname = pin(pinned, "nccl_socket_ifname")
    if ifname and names and ifname not in names:
        right = interface_of(facts, fabric_address) or "none"
        message = f"nccl_socket_ifname is {ifname}, but the node has {', '.join(names)}."
        findings.append(error("interface-not-found", message, f"{fabric_address} is on: {right}.", node))
    used = [live[name] for name in (map(device, hcas) if hcas else live) if name in live]
    return findings + _gid_findings(node, fabric_address, pin(pinned, "nccl_ib_gid_index"), used)


def _gid_findings(node: str, fabric_address: str, index: str, used: list[Rail]) -> list[Finding]:
    """A pinned GID index that is not the RoCE v2 entry of the rail's own address."""
    remedy = "Leave nccl_ib_gid_index empty: NCCL then picks RoCE v2 over IPv4 itself."
    if index and not index.isdigit():
        return [error("gid-index-wrong", f"nccl_ib_gid_index is {index!r}, no number.", remedy, node)]
    findings = []
    for rail in used if index else []:
        address = fabric_address if rail.has(fabric_address) else str(rail.networks[0].ip)
        given = rail.gids.get(int(index))
        if not (str(given) == address or (address != fabric_address and rail.has(str(given)))):
            right = gid_index([rail], address)
            message = (
                f"nccl_ib_gid_index is {index}, which on {rail.hca} is {given or 'no RoCE v2 entry over IPv4'}; "
                f"{address} has {'none' if right is None else right}."
            )
            findings.append(error("gid-index-wrong", message, remedy, node))
    return findings


def gid_findings(node: str, facts: Facts, fabric_address: str) -> list[Finding]:
    """Where NCCL by itself would take the GID of another address, and no one index is right on every HCA."""
    live = rails(facts, fabric_address)
    if not live or not live[0].has(fabric_address):
        return []
    taken = own_choice(live[0])
    if taken in ("", fabric_address) or gid_index(live, fabric_address) is not None:
        return []
    message = (
        f"NCCL would take {taken} on {live[0].hca} instead of {fabric_address}, and no GID index is right on all HCAs."
    )
    remedy = "Take the other addresses off the rails, or pin nccl_ib_gid_index and nccl_ib_hca on this host."
    return [warning("gid-ambiguous", message, remedy, node)]


def rail_findings(node: str, facts: Facts) -> list[Finding]:
    """Rails that will not do what they could, whatever is pinned."""
    findings = []
    live = rails(facts)
    names = {rail.hca for rail in live}
    for hca in _devices(facts):
        active = any(port.get("state") == "ACTIVE" for port in hca.get("ports") or [])
        if active and hca["name"] not in names:
            findings.append(
                warning(
                    "rail-without-address",
                    f"{hca['name']} is active, but its interface {hca.get('netdev') or '(none)'} is "
                    f"{_state(facts, hca.get('netdev'))}: it is left unused.",
                    "Give each twin an address in a subnet of its own: one carries about 98 Gb/s, both 161 to 200.",
                    node,
                )
            )
    for number, rail in enumerate(live):
        for other in live[:number]:
            shared = {n.network for n in rail.networks} & {n.network for n in other.networks}
            if shared:
                findings.append(
                    warning(
                        "rails-share-subnet",
                        f"{other.netdev} and {rail.netdev} are both in {', '.join(sorted(map(str, shared)))}.",
                        "Give each twin a subnet of its own: the kernel answers for both from one otherwise.",
                        node,
                    )
                )
    return findings


def _devices(facts: Facts) -> list[Mapping[str, Any]]:
    return list((facts.get("rdma") or {}).get("devices") or [])


def _state(facts: Facts, netdev: str | None) -> str:
    """An interface's state in words."""
    link = next((item for item in facts.get("links") or [] if item["name"] == netdev), None)
    if link is None:
        return "absent"
    return str(link.get("operstate")) + ("" if _networks(link) else " without an IPv4 address")


def _networks(link: Mapping[str, Any]) -> tuple[ipaddress.IPv4Interface, ...]:
    entries = [entry for entry in link.get("addresses") or [] if entry.get("family") == "inet"]
    return tuple(ipaddress.IPv4Interface(f"{entry['address']}/{entry['prefix']}") for entry in entries)


def _gids(table: Iterable[Mapping[str, Any]]) -> dict[int, ipaddress.IPv4Address]:
    """The RoCE v2 entries that map an IPv4 address: index -> address."""
    found = {}
    for entry in table:
        if entry.get("type") == ROCE_V2 and re.fullmatch(r"[0-9a-f:]+", str(entry.get("gid"))):
            address = ipaddress.IPv6Address(entry["gid"]).ipv4_mapped
            if address is not None:
                found[int(entry["index"])] = address
    return found
