"""Our nftables table: who may open the API port and the ranks' ports. Nothing else on the node is touched.

Only the opening packet of a connection to one of our ports is ever dropped: connections that stand are left alone, and
no connection is tracked for it. What the table accepts, other tables may still refuse.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any

from gb10.findings import Finding, error
from gb10.settings import PORT, BadValue, clean_name, each

RULES = "/etc/gb10/firewall.nft"
SERVICE = "gb10-firewall.service"
UNIT = f"/etc/systemd/system/{SERVICE}"
LINK = f"/etc/systemd/system/sysinit.target.wants/{SERVICE}"
NFT = "/usr/sbin/nft"
TABLE = "inet gb10"

# The first packet of a connection, in the form all versions of nft take.
OPENING = "tcp flags & (fin | syn | rst | ack) == syn"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(value: Any) -> list[Network]:
    """fabric_api_sources: addresses and networks."""
    found: list[Network] = []
    for text in each(clean_name)(value):
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError:
            raise BadValue("a list of addresses and networks, like [192.168.1.0/24]") from None
    return found


def port_ranges(value: Any) -> list[tuple[int, int]]:
    """fabric_rank_ports: ports and ranges (``32768-60999``) as (first, last)."""
    if not isinstance(value, list | tuple):
        raise BadValue("a list of ports and ranges, like [32768-60999]")
    found = []
    for item in value:
        first, dash, last = str(item).partition("-")
        bounds = PORT(first), PORT(last if dash else first)
        if bounds[0] > bounds[1]:
            raise BadValue(f"a range from low to high, not {item}")
        found.append(bounds)
    return found


def ports_text(ranges: Iterable[tuple[int, int]]) -> str:
    """As nft takes them: none may overlap another."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in merged)


def rules(
    api_port: int, sources: Sequence[Network], ranks: Sequence[tuple[int, int]], peers: Iterable[str]
) -> list[str]:
    """The rules in order. Without ``sources`` everybody may reach the API; ``peers`` are the nodes' addresses."""
    nodes: list[Network] = [ipaddress.ip_network(peer) for peer in sorted(set(peers))]
    found = ['iifname "lo" accept']
    if sources:
        found += [*accepted([*sources, *nodes], str(api_port)), f"{OPENING} tcp dport {api_port} counter drop"]
    elif inside(api_port, ranks):
        found.append(f"tcp dport {api_port} accept")
    if ranks:
        ports = "{ " + ports_text(ranks) + " }"
        found += [*accepted(nodes, ports), f"{OPENING} tcp dport {ports} counter drop"]
    return found


def accepted(sources: Iterable[Network], ports: str) -> list[str]:
    """One rule per family; networks inside of others are left out, since nft refuses overlaps."""
    every = list(sources)
    families: dict[str, Iterable[Network]] = {
        "ip": ipaddress.collapse_addresses(n for n in every if isinstance(n, ipaddress.IPv4Network)),
        "ip6": ipaddress.collapse_addresses(n for n in every if isinstance(n, ipaddress.IPv6Network)),
    }
    listed = {word: ", ".join(map(str, networks)) for word, networks in families.items()}
    return [f"{word} saddr {{ {own} }} tcp dport {ports} accept" for word, own in listed.items() if own]


def text(every: Sequence[str]) -> str:
    """The file. It replaces the table in one transaction, so that no moment is without rules."""
    comment = digest(every)
    body = "\n".join(f"    {rule}" for rule in every)
    return f"""\
# Written by gb10-cluster (role fabric).
table {TABLE}
delete table {TABLE}
table {TABLE} {{
  comment "{comment}"
  chain input {{
    type filter hook input priority -5; policy accept;
{body}
  }}
}}
"""


def digest(every: Sequence[str]) -> str:
    """Names a set of rules, in the table's comment."""
    return hashlib.sha256("\n".join(every).encode()).hexdigest()[:16]


def unit() -> str:
    """The oneshot unit that loads the file at boot."""
    lines = [
        "# Written by gb10-cluster (role fabric).",
        "[Unit]",
        "Description=Who may reach the GB10 endpoint and its ranks",
        "DefaultDependencies=no",
        "Conflicts=shutdown.target",
        "Before=network-pre.target shutdown.target",
        "Wants=network-pre.target",
        "After=nftables.service",
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        f"ExecStart={NFT} -f {RULES}",
        f"ExecReload={NFT} -f {RULES}",
        f"ExecStop=-{NFT} delete table {TABLE}",
    ]
    return "\n".join(lines) + "\n"


def inside(port: int, ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether a port lies in one of the ranges."""
    return any(first <= port <= last for first, last in ranges)


def findings(node: str, ssh_port: int, api_port: int, ranks: Sequence[tuple[int, int]]) -> list[Finding]:
    """Rules that would cut the way in."""
    if ssh_port == api_port or inside(ssh_port, ranks):
        message = f"The firewall would guard port {ssh_port}, which is ssh's."
        return [
            error(
                "firewall-cuts-ssh", message, "Take it out of fabric_rank_ports (or give api_port another one).", node
            )
        ]
    return []
