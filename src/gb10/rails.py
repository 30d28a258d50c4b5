"""Which interfaces of a node carry the fabric, and which addresses they should have.

A QSFP port of a GB10 shows as two devices (twins), one in PCI domain 0 (``rocep1s0f1`` on ``enp1s0f1np1``), one in
another (``roceP2p1s0f1`` on ``enP2p1s0f1np1``). Which port is cabled differs per node: link state decides.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gb10.findings import Finding, warning
from gb10.settings import BadValue, clean_name, each

Facts = Mapping[str, Any]

# Device and interface names by the kernel's scheme: prefix, PCI domain where it is not 0, the rest.
PREDICTABLE = re.compile(r"^(?:roce|en|ibp?)(?:P(?P<domain>\d+))?(?P<place>p\d+s\d+\w*)$")


@dataclass(frozen=True, order=True)
class Twin:
    """One RDMA device with its interface. Twins of one port share ``port`` and differ in ``domain``."""

    port: str
    domain: int
    hca: str
    netdev: str
    live: bool


def twins(facts: Facts) -> list[Twin]:
    """Every RDMA device with an interface, port by port, PCI domain 0 first; ``live`` where the link is up."""
    carriers = {link["name"] for link in facts.get("links") or [] if link.get("carrier")}
    found = []
    for device in (facts.get("rdma") or {}).get("devices") or []:
        netdev = device.get("netdev")
        if netdev:
            match = PREDICTABLE.match(device["name"])
            port, domain = (match["place"], int(match["domain"] or 0)) if match else (device["name"], 0)
            active = any(p.get("state") == "ACTIVE" for p in device.get("ports") or [])
            found.append(Twin(port, domain, device["name"], netdev, active or netdev in carriers))
    return sorted(found)


def interfaces(facts: Facts, pinned: Sequence[str] = ()) -> list[str]:
    """The interfaces of the cabled ports in rail order: ``pinned`` (fabric_interfaces), else those with a live link."""
    return list(pinned) or [twin.netdev for twin in twins(facts) if twin.live]


def twin_findings(node: str, facts: Facts) -> list[Finding]:
    """A cabled port of which one twin has no link."""
    every = twins(facts)
    return [
        warning(
            "twin-down",
            f"{twin.hca} ({twin.netdev}) has no link, its twin on the same port has.",
            f"Take it up: ip link set {twin.netdev} up. One twin carries about 98 Gb/s, both 161 to 200.",
            node,
        )
        for twin in every
        if not twin.live and any(other.live and other.port == twin.port for other in every)
    ]


def subnets(value: Any) -> list[ipaddress.IPv4Network]:
    """fabric_rail_subnets: one IPv4 network per rail, none overlapping another."""
    wanted = "a list of IPv4 networks, one a rail, like [192.168.0.0/24, 192.168.2.0/24]"
    networks: list[ipaddress.IPv4Network] = []
    for text in each(clean_name)(value):
        try:
            network = ipaddress.IPv4Network(text)
        except ValueError:
            raise BadValue(wanted) from None
        if network.prefixlen > 30 or any(network.overlaps(other) for other in networks):
            raise BadValue(wanted + ", each of its own")
        networks.append(network)
    return networks


def stated(value: Any) -> list[ipaddress.IPv4Interface]:
    """fabric_rails of one host: its address with prefix length on each rail."""
    found = []
    for text in each(clean_name)(value or []):
        try:
            found.append(ipaddress.IPv4Interface(text))
        except ValueError:
            raise BadValue("a list like [192.168.0.153/24, 192.168.2.153/24], one a rail") from None
        if "/" not in text:
            raise BadValue(f"addresses with their prefix length: {text}/24")
    return found


def addresses(networks: Iterable[ipaddress.IPv4Network], own: Any, management: str) -> list[ipaddress.IPv4Interface]:
    """The node's address on each rail: ``own`` (fabric_rails), else the last octet of its management address in each of
    ``networks``, as the report's authors have it. Empty where neither tells."""
    given = stated(own)
    if given:
        return given
    try:
        host = int(ipaddress.IPv4Address(management)) & 0xFF
    except ValueError:
        return []
    return [
        ipaddress.IPv4Interface((network[host], network.prefixlen))
        for network in networks
        if host and host < network.num_addresses - 1
    ]
