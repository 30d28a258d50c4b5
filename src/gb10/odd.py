"""The odd node out: what all nodes should have in common, and who differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gb10 import fabric, rails
from gb10.expected import Expected
from gb10.findings import Finding, error, warning
from gb10.plan import UNPINNED

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Trait:
    """Something nodes share. ``read`` gives it from a node's facts, ``None`` where the node does not tell.

    ``wanted`` is what it should be, where that is known; otherwise most nodes decide.
    """

    code: str
    what: str
    read: Callable[[str, Document], str | None]
    remedy: str
    wanted: str | None = None
    fatal: bool = False


def odd_findings(plan: Document, facts: Mapping[str, Document], expected: Expected, known: Document) -> list[Finding]:
    """One finding per odd node and trait, or one for the cluster where no value is the usual one."""
    findings = []
    for trait in traits(plan, expected, known):
        findings += judge_trait(trait, {name: trait.read(name, document) for name, document in facts.items()})
    return findings


def traits(plan: Document, expected: Expected, known: Document) -> list[Trait]:
    """What is compared, in the order it is reported."""
    address = {rank["node"]: str(rank["address"]) for rank in plan["ranks"]}
    image = {rank["node"]: rank["image"] for rank in plan["ranks"]}
    unpinned = all(str(rank.get("image_digest") or UNPINNED) == UNPINNED for rank in plan["ranks"])
    mtu = None if expected.fabric_mtu is None else str(expected.fabric_mtu)
    found = [
        Trait(
            "odd-kernel", "The kernel", lambda _n, f: path(f, "kernel", "release"), "Boot the same kernel on all nodes."
        ),
        Trait(
            "odd-driver", "The GPU driver", lambda _n, f: path(f, "gpu", "driver"), "Install one driver on all nodes."
        ),
        Trait(
            "odd-os", "The distribution", lambda _n, f: path(f, "os", "pretty_name"), "Run one release on all nodes."
        ),
        Trait("odd-docker", "Docker", lambda _n, f: path(f, "docker", "version"), "Install one Docker on all nodes."),
        Trait(
            "odd-image-store",
            "The image store",
            lambda _n, f: path(f, "docker", "image_store"),
            "Image ids differ between stores: set features.containerd-snapshotter in daemon.json alike on all nodes.",
        ),
        Trait(
            "odd-mtu",
            "The fabric's MTU",
            lambda n, f: fabric_mtu(f, address[n], expected.nccl_transport),
            "Set the same MTU on every fabric interface and on the switch: mixed MTUs hang the ranks.",
            mtu,
            fatal=True,
        ),
    ]
    if expected.nccl_transport == "roce":
        found += [
            Trait(
                "odd-active-mtu",
                "The RoCE active MTU",
                lambda _n, f: active_mtu(f, int(known["active_mtu_needs_mtu"])),
                "Set the interface's MTU to 9000, then take the port down and up: 1024 costs 40 % of prefill.",
                str(known["active_mtu"]),
            ),
            Trait(
                "odd-rails",
                "The number of live rails",
                lambda _n, f: str(len(fabric.rails(f))),
                "Cable and address both twins on every node: one carries about 98 Gb/s, both 161 to 200.",
            ),
            Trait(
                "odd-rail-subnets",
                "The order of the rails' subnets",
                lambda _n, f: rail_subnets(f),
                "Exchange the twins' addresses: NCCL pairs twins of one PCI domain, which must be in one subnet.",
                fatal=True,
            ),
            Trait(
                "odd-rate",
                "A rail's rate in Gb/s",
                lambda _n, f: slowest(f),
                "Check cable and switch port.",
                f"{known['rail_rate_gbps']:g}",
            ),
        ]
    if unpinned and plan["ranks"]:
        found.append(
            Trait(
                "odd-image",
                f"{plan['ranks'][0]['image']}",
                lambda n, f: image_id(f, image[n]),
                "Load the same image everywhere, or set images_source: the tag alone proves nothing.",
                fatal=True,
            )
        )
    return found


def judge_trait(trait: Trait, values: Mapping[str, str | None]) -> list[Finding]:
    """Compare one trait over the nodes that tell it."""
    told = {name: value for name, value in values.items() if value is not None}
    groups = Counter(told.values()).most_common()
    level = error if trait.fatal else warning
    if len(groups) == 1 and trait.wanted is not None and groups[0][0] != trait.wanted:
        message = f"{trait.what} is {groups[0][0]} on all nodes, {trait.wanted} is expected."
        return [warning(trait.code.replace("odd-", "unexpected-"), message, trait.remedy)]
    if len(groups) < 2:
        return []
    usual = trait.wanted if trait.wanted in dict(groups) else groups[0][0]
    if trait.wanted is None and groups[0][1] == groups[1][1]:
        listed = "; ".join(f"{value} on {', '.join(n for n in told if told[n] == value)}" for value, _count in groups)
        return [level(trait.code, f"{trait.what} differs: {listed}.", trait.remedy)]
    others = sum(value == usual for value in told.values())
    return [
        level(trait.code, f"{trait.what} is {value}; {others} of {len(told)} nodes have {usual}.", trait.remedy, name)
        for name, value in told.items()
        if value != usual
    ]


def path(facts: Document, section: str, name: str) -> str | None:
    """A text inside a section of the facts."""
    value = (facts.get(section) or {}).get(name)
    return None if value is None else str(value)


def fabric_mtu(facts: Document, address: str, transport: str) -> str | None:
    """The smallest MTU of the interfaces the ranks use: the rails', or that of the fabric address."""
    names = (
        {rail.netdev for rail in fabric.rails(facts)} if transport == "roce" else {fabric.interface_of(facts, address)}
    )
    mtus = [link["mtu"] for link in facts.get("links") or [] if link["name"] in names and link.get("mtu")]
    return str(min(mtus)) if mtus else None


def active_mtu(facts: Document, needs_mtu: int) -> str | None:
    """The smallest active MTU of the rails whose interface allows the full one."""
    mtus = [rail.active_mtu for rail in fabric.rails(facts) if rail.active_mtu and (rail.mtu or 0) >= needs_mtu]
    return str(min(mtus)) if mtus else None


def rail_subnets(facts: Document) -> str | None:
    """The subnets of each live rail, PCI domain 0 first; None with fewer than two rails."""
    live = {rail.hca: rail for rail in fabric.rails(facts)}
    ordered = [live[twin.hca] for twin in rails.twins(facts) if twin.hca in live]
    told = [" and ".join(sorted(str(network.network) for network in rail.networks)) for rail in ordered]
    return ", then ".join(told) if len(told) > 1 else None


def slowest(facts: Document) -> str | None:
    """The rate of the slowest rail in Gb/s."""
    rates = [rail.rate for rail in fabric.rails(facts) if rail.rate]
    return f"{min(rates):g}" if rates else None


def image_id(facts: Document, tag: str) -> str | None:
    """The id of the image that carries ``tag``."""
    for image in (facts.get("docker") or {}).get("images") or []:
        if tag in (image.get("tags") or []):
            return str(image.get("id"))[:19]
    return None
