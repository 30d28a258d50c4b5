"""Nodes of the plan: who is which rank, at which address. Decided by node_rank alone."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gb10 import rails
from gb10.findings import Finding, error, warning
from gb10.settings import BadValue, clean_name, each, integer, maybe_text, plain, shown

# What each node may say for itself; everything else holds for the whole cluster.
PER_NODE = (
    "node_rank", "ansible_host", "fabric_address", "fabric_rails", "fabric_interfaces",
    "nccl_ib_hca", "nccl_socket_ifname", "nccl_ib_gid_index",
)  # fmt: skip

# Linux interface names by the kernel's and udev's schemes; HCAs are rocep1s0f1, mlx5_0 and the like.
INTERFACE = re.compile(r"^(en[opPxs]|eth\d|wl|ib\d|ibp|bond|br)")

RANK = integer(0, 4095)


@dataclass(frozen=True)
class Node:
    """One rank's place. Empty strings mean "not pinned": only the node itself can tell."""

    name: str
    rank: int
    address: str
    ib_hca: str
    socket_ifname: str
    gid_index: str


def read_nodes(
    hosts: Mapping[str, Mapping[str, Any]], subset: Mapping[str, Any], tensor_parallel: int
) -> tuple[list[Node], list[Finding]]:
    """Nodes in rank order, from each host's variables (see ``PER_NODE``).

    ``subset`` (serve_nodes) names the hosts to serve on with the rank each has there; empty means all hosts with
    their ``node_rank``. Every rank 0..tensor_parallel-1 must be there exactly once.
    """
    if not hosts:
        return [], [error("no-nodes", "Group gb10 has no host.", "Give an inventory with -i.")]
    findings: list[Finding] = []
    for name in sorted(set(subset) - set(hosts)):
        findings.append(
            error("subset-unknown", f"serve_nodes names {name}, which is not in group gb10.", "Correct serve_nodes.")
        )
    # Each host's own number is judged even where a subset gives the ranks: the inventory serves every profile.
    count = len(hosts) if subset else max(len(hosts), tensor_parallel)
    ranks = _ranks({name: v.get("node_rank") for name, v in hosts.items()}, count, "node_rank", findings)
    if subset:
        ranks = _ranks(dict(subset), len(subset), "serve_nodes", findings)
    known = len(subset or hosts)
    if known != tensor_parallel:
        more = "Add the missing nodes" if known < tensor_parallel else "Name the nodes to use in serve_nodes"
        findings.append(
            error(
                "world-size",
                f"tensor_parallel is {tensor_parallel} but {known} nodes are given.",
                f"{more}, or correct tensor_parallel: one rank runs on each node.",
            )
        )
    nodes = []
    for name, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if name in hosts:
            nodes.append(_node(name, rank, hosts[name], findings))
    findings += _addresses(nodes)
    if len({n.gid_index for n in nodes}) == 1 and len(nodes) > 1 and nodes[0].gid_index:
        findings.append(
            warning(
                "gid-index-shared",
                f"nccl_ib_gid_index is {nodes[0].gid_index} on all nodes; it differs per node and drifts.",
                "Leave it empty, or set it per node.",
            )
        )
    return nodes, findings


def address_of(name: str, variables: Mapping[str, Any]) -> str:
    """What engines talk over on a node: fabric_address, else the address Ansible uses."""
    return str(variables.get("fabric_address") or variables.get("ansible_host") or name)


def _ranks(given: Mapping[str, Any], count: int, what: str, findings: list[Finding]) -> dict[str, int]:
    ranks: dict[str, int] = {}
    holders: dict[int, str] = {}
    for name, value in given.items():
        if value is None:
            findings.append(
                error(
                    "rank-missing", f"{what} is not set.", f"Give each host its own {what} from 0 to {count - 1}.", name
                )
            )
            continue
        try:
            rank = RANK(value)
        except BadValue:
            rank = -1
        if not 0 <= rank < count:
            findings.append(
                error(
                    "rank-invalid",
                    f"{what} is {shown(value)}.",
                    f"Give an integer from 0 to {count - 1}, each once.",
                    name,
                )
            )
        elif rank in holders:
            findings.append(
                error(
                    "rank-repeated",
                    f"{what} {rank} is also that of {holders[rank]}.",
                    "Give every node its own rank.",
                    name,
                )
            )
        else:
            holders[rank] = name
            ranks[name] = rank
    return ranks


def _node(name: str, rank: int, variables: Mapping[str, Any], findings: list[Finding]) -> Node:
    pinned = {}
    for key in ("nccl_ib_hca", "nccl_socket_ifname", "nccl_ib_gid_index"):
        value = variables.get(key)
        if key == "nccl_ib_gid_index" and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        try:
            pinned[key] = maybe_text(value).strip()
        except BadValue as bad:
            pinned[key] = ""
            findings.append(
                error("setting-invalid", f"{key} is {shown(value)} but must be {bad}.", "Correct the variable.", name)
            )
    for hca in filter(None, re.split(r"[,=^]", pinned["nccl_ib_hca"])):
        if INTERFACE.match(hca):
            findings.append(
                error(
                    "hca-is-interface",
                    f"nccl_ib_hca names {hca}, a network interface.",
                    "Give the HCA (as in /sys/class/infiniband: rocep1s0f1), or leave it empty to detect it.",
                    name,
                )
            )
    if pinned["nccl_ib_gid_index"] and not pinned["nccl_ib_gid_index"].isdigit():
        findings.append(
            error(
                "setting-invalid",
                f"nccl_ib_gid_index is {shown(variables['nccl_ib_gid_index'])}.",
                "Give a number, or leave it empty.",
                name,
            )
        )
    findings += _stated_rails(name, variables)
    address = address_of(name, variables)
    return Node(name, rank, address, pinned["nccl_ib_hca"], pinned["nccl_socket_ifname"], pinned["nccl_ib_gid_index"])


def _stated_rails(node: str, variables: Mapping[str, Any]) -> list[Finding]:
    """What is wrong with one host's fabric_rails and fabric_interfaces before it is contacted."""
    findings: list[Finding] = []
    for name, parse in (("fabric_rails", rails.stated), ("fabric_interfaces", each(clean_name))):
        try:
            parse(variables.get(name) or [])
        except BadValue as bad:
            message = f"{name} is {shown(variables[name])} but must be {bad}."
            findings.append(error("setting-invalid", message, "Correct the variable.", node))
    if findings:
        return findings
    own = rails.stated(plain(variables.get("fabric_rails") or []))
    for number, rail in enumerate(own):
        if rail.ip.is_link_local:
            message = f"fabric_rails has {rail.ip}, which is link-local."
            findings.append(warning("address-link-local", message, "Give the fabric a subnet of its own.", node))
        for other in own[:number]:
            if rail.network.overlaps(other.network):
                message = f"fabric_rails puts {other} and {rail} in one subnet."
                remedy = "Give each twin a subnet of its own: the kernel answers for both from one otherwise."
                findings.append(warning("rails-share-subnet", message, remedy, node))
    return findings


def _addresses(nodes: list[Node]) -> list[Finding]:
    findings = []
    seen: dict[Any, str] = {}
    for node in nodes:
        try:
            address = ipaddress.ip_address(node.address)
        except ValueError:
            findings.append(
                error(
                    "address-invalid",
                    f"{shown(node.address)} is no IP address.",
                    "Set fabric_address (or ansible_host) to the address the ranks talk over.",
                    node.name,
                )
            )
            continue
        if address.is_link_local:
            findings.append(
                warning(
                    "address-link-local", f"{address} is link-local.", "Give the fabric a subnet of its own.", node.name
                )
            )
        if address.is_loopback or address.is_unspecified:
            findings.append(
                error(
                    "address-invalid",
                    f"{address} cannot be reached from other nodes.",
                    "Give the fabric address.",
                    node.name,
                )
            )
        address = getattr(address, "ipv4_mapped", None) or address
        if address in seen:
            findings.append(
                error(
                    "address-repeated",
                    f"{address} is also the address of {seen[address]}.",
                    "Give every node its own.",
                    node.name,
                )
            )
        seen.setdefault(address, node.name)
    return findings
