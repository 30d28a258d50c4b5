"""The fabric's netplan file, and what other netplan files do to it: netplan merges lists, it does not replace them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from gb10.findings import Finding, error, warning

Facts = Mapping[str, Any]

HEADER = "# Written by gb10-cluster (role fabric): change its variables, not this file.\n"


def text(wanted: Mapping[str, ipaddress.IPv4Interface], mtu: int) -> str:
    """The file: each interface with its one address and the MTU. A boot does not wait for them."""
    lines = ["network:", "  version: 2", "  ethernets:"]
    for name, address in wanted.items():
        lines += [f"    {name}:", f"      addresses: [{address}]", f"      mtu: {mtu}"]
        lines += ["      dhcp4: false", "      dhcp6: false", "      optional: true"]
    return HEADER + "\n".join(lines) + "\n"


def said_of(facts: Facts, interface: str, ours: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What files other than ``ours`` say of an interface: (path, {addresses, mtu, dhcp4})."""
    for file in (facts.get("netplan") or {}).get("files") or []:
        for name, about in file["interfaces"].items():
            if file["path"] != ours and fnmatch(interface, name):
                yield file["path"], about


def findings(
    node: str, facts: Facts, wanted: Mapping[str, ipaddress.IPv4Interface], ours: str, mtu: int
) -> list[Finding]:
    """Files of others that would be merged into ours: further addresses and DHCP (errors), another MTU (a warning)."""
    found = []
    for interface, address in wanted.items():
        for path, about in said_of(facts, interface, ours):
            more = [a for a in about["addresses"] if a != str(address)] + (["DHCP"] if about["dhcp4"] else [])
            if more:
                message = f"{path} gives {interface} {', '.join(more)}; {ours} would add {address} to that."
                remedy = f"Take {interface} out of {path}: netplan merges lists of addresses, it does not replace them."
                found.append(error("netplan-merged", message, remedy, node))
            elif about["mtu"] not in (None, mtu):
                message = f"{path} gives {interface} MTU {about['mtu']}, {ours} gives {mtu}: the later file wins."
                found.append(warning("netplan-mtu", message, f"Take {interface} out of {path}.", node))
    for file in (facts.get("netplan") or {}).get("files") or []:
        if file["error"]:
            message = f"{file['path']} cannot be read as netplan: {file['error']}."
            found.append(error("netplan-broken", message, "Repair it: netplan applies all files or none.", node))
    return found


def in_place(facts: Facts, wanted: Mapping[str, ipaddress.IPv4Interface], mtu: int) -> bool:
    """Whether the node has every address on its interface with the MTU, whatever the files say."""
    links = {link["name"]: link for link in facts.get("links") or []}
    return all(
        name in links and links[name].get("mtu") == mtu and str(address) in held(links[name])
        for name, address in wanted.items()
    )


def held(link: Mapping[str, Any]) -> Sequence[str]:
    """An interface's IPv4 addresses with prefix length."""
    return [f"{a['address']}/{a['prefix']}" for a in link.get("addresses") or [] if a.get("family") == "inet"]
