"""The lossless class on a node: the unit that makes it with DCB, where it is lacking, why it cannot be had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gb10 import data
from gb10.findings import Finding, error

Facts = Mapping[str, Any]

UNIT = "/etc/systemd/system/gb10-lossless@.service"
DCB = "/usr/sbin/dcb"


def unit() -> str:
    """The unit of one interface (%i). ``replace``, since ``add`` fails on what is there; other priorities stay.

    The interface's device wants it, so it runs whenever the interface appears: at boot, and after the driver was loaded
    anew. Stopping it takes the class away.
    """
    known = data.load("fabric")["lossless"]
    entry = f"dev %i dscp-prio {known['dscp']}:{known['priority']}"
    lines = [
        "# Written by gb10-cluster (role fabric).",
        "[Unit]",
        "Description=Lossless class of the GB10 fabric on %i",
        "BindsTo=sys-subsystem-net-devices-%i.device",
        "After=sys-subsystem-net-devices-%i.device",
        "Before=docker.service",
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        f"ExecStart={DCB} app replace {entry}",
        f"ExecStart={DCB} pfc set dev %i prio-pfc {known['priority']}:on",
        f"ExecReload={DCB} app replace {entry}",
        f"ExecReload={DCB} pfc set dev %i prio-pfc {known['priority']}:on",
        f"ExecStop=-{DCB} app del {entry}",
        f"ExecStop=-{DCB} pfc set dev %i prio-pfc {known['priority']}:off",
    ]
    return "\n".join(lines) + "\n"


def service(interface: str) -> str:
    """The unit's name for an interface."""
    return f"gb10-lossless@{interface}.service"


def link(interface: str) -> str:
    """What makes an interface's device want its unit."""
    return f"/etc/systemd/system/sys-subsystem-net-devices-{interface}.device.wants/{service(interface)}"


def lacking(facts: Facts, interfaces: Iterable[str]) -> list[str]:
    """The interfaces that do not have the class now."""
    known = data.load("fabric")["lossless"]
    held = (facts.get("lossless") or {}).get("interfaces") or {}
    return [name for name in interfaces if not has(held.get(name), known)]


def has(held: Mapping[str, Any] | None, known: Mapping[str, Any]) -> bool:
    """Whether one interface's DCB state is the class."""
    if not held:
        return False
    return held["dscp_priority"].get(str(known["dscp"])) == known["priority"] and known["priority"] in held["pfc"]


def findings(node: str, facts: Facts, interfaces: Sequence[str]) -> list[Finding]:
    """Why the class cannot be made on this node."""
    remedy = "Set fabric_lossless: false, so that NCCL does not count on the class."
    held = facts.get("lossless") or {}
    if interfaces and not held.get("installed"):
        return [error("dcb-missing", "The program dcb is not there.", "Install iproute2 6.1 or later.", node)]
    bare = [name for name in interfaces if not (held.get("interfaces") or {}).get(name)]
    if bare:
        message = f"The driver of {', '.join(bare)} has no DCB: there is no lossless class on it."
        return [error("dcb-unsupported", message, remedy, node)]
    return []
