"""What the fabric role does on one node, and what stands against it: from facts and variables, nothing else."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gb10 import firewall, lossless, netplan, pairs, rails
from gb10.findings import Finding, error, warning
from gb10.managed import File, directories, keep_files
from gb10.node_memory import serving
from gb10.settings import PORT, BadValue, choice, clean_name, each, flag, integer, maybe_text, path, plain, shown

Facts = Mapping[str, Any]


def _variable(parse: Any, default: Any) -> Any:
    """A field with its parser; the default stands where the variable is not given or null."""
    return field(default=default, metadata={"parse": parse})


@dataclass(frozen=True)
class Wanted:
    """One host's variables of the fabric role, named as there."""

    fabric_mtu: int = _variable(integer(576, 65535), 9000)
    fabric_interfaces: tuple[str, ...] = _variable(lambda v: tuple(each(clean_name)(v)), ())
    fabric_rails: tuple[ipaddress.IPv4Interface, ...] = _variable(lambda v: tuple(rails.stated(v)), ())
    fabric_rail_subnets: tuple[ipaddress.IPv4Network, ...] = _variable(lambda v: tuple(rails.subnets(v)), ())
    fabric_netplan: bool = _variable(flag, False)
    fabric_netplan_file: str = _variable(path, "/etc/netplan/60-gb10-fabric.yaml")
    fabric_netplan_apply: bool = _variable(flag, False)
    fabric_lossless: bool = _variable(flag, False)
    fabric_firewall: bool = _variable(flag, False)
    fabric_api_sources: tuple[firewall.Network, ...] = _variable(lambda v: tuple(firewall.networks(v)), ())
    fabric_rank_ports: tuple[tuple[int, int], ...] = _variable(
        lambda v: tuple(firewall.port_ranges(v)), ((32768, 60999),)
    )
    spread_port: int = _variable(PORT, 29700)
    spread_processes: int = _variable(integer(1, 64), 4)
    nccl_transport: str = _variable(choice("roce", "socket"), "roce")
    api_port: int = _variable(PORT, 8000)
    master_port: int = _variable(PORT, 29501)
    ansible_port: int = _variable(PORT, 22)
    ansible_host: str = _variable(maybe_text, "")

    def addresses(self, facts: Facts) -> dict[str, ipaddress.IPv4Interface]:
        """The address every interface of the fabric should have; empty where they do not match one to one."""
        names = rails.interfaces(facts, self.fabric_interfaces)
        own = self.own()
        return dict(zip(names, own, strict=True)) if len(names) == len(own) else {}

    def own(self) -> list[ipaddress.IPv4Interface]:
        """The node's address on each rail."""
        return rails.addresses(self.fabric_rail_subnets, [str(r) for r in self.fabric_rails], self.ansible_host)

    def guarded(self) -> list[tuple[int, int]]:
        """Ports only nodes may open: the rendezvous, what ranks listen on, and where files go from node to node."""
        relay = self.spread_port, self.spread_port + self.spread_processes - 1
        return [(self.master_port, self.master_port), relay, *self.fabric_rank_ports]


VARIABLES = tuple(item.name for item in fields(Wanted))


def read_wanted(variables: Mapping[str, Any], node: str = "") -> tuple[Wanted, list[Finding]]:
    """The variables, with one finding per bad one (which then has its default)."""
    values: dict[str, Any] = {}
    findings = []
    for item in fields(Wanted):
        value = variables.get(item.name)
        if value is None or (value == "" and item.name != "ansible_host"):
            continue
        try:
            values[item.name] = item.metadata["parse"](plain(value))
        except BadValue as bad:
            message = f"{item.name} is {shown(value)} but must be {bad}."
            findings.append(error("setting-invalid", message, "Correct the variable.", node))
    return Wanted(**values), findings


def fabric_paths(variables: Mapping[str, Any]) -> list[str]:
    """Files the role may write: facts must tell of them and of the directories they lie in."""
    wanted = read_wanted(variables)[0]
    return [wanted.fabric_netplan_file, lossless.UNIT, firewall.RULES, firewall.UNIT, firewall.LINK]


@dataclass
class Todo:
    """What is to do on one node, filled in by the parts of the role."""

    facts: Facts
    files: list[File] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)
    start: list[str] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    netplan: dict[str, Any] | None = None

    def exists(self, path: str) -> bool:
        """Whether the node has the file (or link)."""
        return bool(((self.facts.get("files") or {}).get(path) or {}).get("exists"))

    def write(self, file: File) -> bool:
        """Note the file where the node lacks it or has another; whether that is so."""
        if file.there(self.facts):
            return False
        self.files.append(file)
        return True

    def remove(self, *paths: str) -> None:
        """Note those of the files that are there."""
        self.absent += [path for path in paths if self.exists(path)]


def fabric_todo(facts: Facts, variables: Mapping[str, Any], peers: Iterable[str]) -> dict[str, Any]:
    """What the role does on one node; everything in it is empty (or None) where nothing is to do.

    ``peers``: the fabric addresses of all nodes. Keys: ``keep`` (items of the node's record); ``packages`` to install;
    ``directories``; ``files`` ({path, content, mode}); ``links`` ({path, target}); ``start`` and ``stop`` (units,
    reloaded or started after the files are there, stopped before they go); ``absent`` (paths); ``netplan`` ({path,
    content, apply, addresses}) or None.
    """
    wanted, _bad = read_wanted(variables)
    todo = Todo(facts)
    _netplan(todo, wanted)
    _lossless(todo, wanted)
    _firewall(todo, wanted, peers)
    plan = [File(todo.netplan["path"], todo.netplan["content"], "0600")] if todo.netplan else []
    folders = [*directories([*todo.files, *plan], facts), *(p.rpartition("/")[0] for p in todo.links if "@" in p)]
    kinds = {"package": todo.packages, "unit": todo.start, "file": list(todo.links)}
    keep = [{"kind": kind, "name": name} for kind, names in kinds.items() for name in names]
    return {
        "keep": keep + keep_files([*todo.files, *plan], folders),
        "packages": todo.packages,
        "directories": folders,
        "files": [file.as_task() for file in todo.files],
        "links": [{"path": path, "target": target} for path, target in todo.links.items()],
        "start": todo.start,
        "stop": todo.stop,
        "absent": todo.absent,
        "netplan": todo.netplan,
    }


def todos(
    facts: Mapping[str, Facts], variables: Mapping[str, Mapping[str, Any]], addresses: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """``fabric_todo`` of every node with facts, and as ``reach`` what it must reach: every peer on every rail.

    ``addresses``: the fabric address of every node.
    """
    wanted = {name: read_wanted(variables[name])[0] for name in facts}
    ends = {
        name: pairs.places(
            facts[name], wanted[name].nccl_transport == "roce", wanted[name].fabric_interfaces, addresses[name]
        )
        for name in facts
    }
    links = pairs.links(ends, addresses)
    return {
        name: fabric_todo(facts[name], variables[name], addresses.values()) | {"reach": pairs.targets(links, name)}
        for name in facts
    }


def _netplan(todo: Todo, wanted: Wanted) -> None:
    addresses = wanted.addresses(todo.facts) if wanted.fabric_netplan else {}
    if not addresses:
        return
    content = netplan.text(addresses, wanted.fabric_mtu)
    apply = wanted.fabric_netplan_apply and not netplan.in_place(todo.facts, addresses, wanted.fabric_mtu)
    if apply or not File(wanted.fabric_netplan_file, content, "0600").there(todo.facts):
        todo.netplan = {
            "path": wanted.fabric_netplan_file,
            "content": content,
            "apply": apply,
            "addresses": [str(address.ip) for address in addresses.values()],
        }


def _lossless(todo: Todo, wanted: Wanted) -> None:
    """Units are linked by hand, not enabled: that reloads systemd, which can take the GPU from running containers."""
    names = rails.interfaces(todo.facts, wanted.fabric_interfaces)
    at_boot = (todo.facts.get("lossless") or {}).get("at_boot") or []
    if wanted.fabric_lossless and wanted.nccl_transport == "roce" and names:
        todo.write(File(lossless.UNIT, lossless.unit()))
        todo.links |= {lossless.link(name): lossless.UNIT for name in names if name not in at_boot}
        todo.start += [lossless.service(name) for name in lossless.lacking(todo.facts, names)]
    else:
        names = []
    gone = [name for name in at_boot if name not in names]
    todo.stop += [lossless.service(name) for name in gone]
    todo.absent += [lossless.link(name) for name in gone]
    if not names:
        todo.remove(lossless.UNIT)


def _firewall(todo: Todo, wanted: Wanted, peers: Iterable[str]) -> None:
    held = todo.facts.get("firewall") or {}
    if not wanted.fabric_firewall:
        if held.get("comment") is not None or todo.exists(firewall.UNIT):
            todo.stop.append(firewall.SERVICE)
        todo.remove(firewall.LINK, firewall.UNIT, firewall.RULES)
        return
    rules = firewall.rules(wanted.api_port, wanted.fabric_api_sources, wanted.guarded(), peers)
    if not held.get("installed"):
        todo.packages.append("nftables")
    todo.write(File(firewall.UNIT, firewall.unit()))
    if not todo.exists(firewall.LINK):
        todo.links[firewall.LINK] = firewall.UNIT
    written = todo.write(File(firewall.RULES, firewall.text(rules)))
    if written or (held.get("comment"), held.get("rules")) != (firewall.digest(rules), len(rules)):
        todo.start.append(firewall.SERVICE)


def fabric_findings(node: str, facts: Facts, variables: Mapping[str, Any]) -> list[Finding]:
    """What stands against the role on one node, before it changes anything."""
    wanted, found = read_wanted(variables, node)
    names = rails.interfaces(facts, wanted.fabric_interfaces)
    have = [link["name"] for link in facts.get("links") or []]
    for name in wanted.fabric_interfaces:
        if name not in have:
            message = f"fabric_interfaces names {name}, but the node has {', '.join(have) or 'none'}."
            found.append(error("interface-not-found", message, "Correct it, or leave it empty to detect.", node))
    if wanted.fabric_netplan:
        found += _netplan_findings(node, facts, wanted, names)
    if wanted.fabric_lossless and wanted.nccl_transport == "roce":
        found += lossless.findings(node, facts, names)
    if wanted.fabric_firewall:
        found += firewall.findings(node, wanted.ansible_port, wanted.api_port, wanted.guarded())
        if serving(facts) and not (facts.get("firewall") or {}).get("installed"):
            message = "nftables would be installed, which reloads systemd, and a rank of ours runs."
            found.append(error("install-refused", message, "Stop the ranks first: playbooks/stop.yml.", node))
    return found


def _netplan_findings(node: str, facts: Facts, wanted: Wanted, names: list[str]) -> list[Finding]:
    own = wanted.own()
    if not (facts.get("netplan") or {}).get("installed"):
        return [
            error("netplan-missing", "netplan is not there.", "Install netplan.io, or set fabric_netplan: false.", node)
        ]
    if not names or len(names) != len(own):
        listed = f"{len(names)} cabled interfaces ({', '.join(names) or 'none'})"
        message = f"fabric_netplan is on, but there are {listed} and {len(own)} addresses ({', '.join(map(str, own))})."
        remedy = (
            "Check the cable; give one subnet a rail in fabric_rail_subnets, or fabric_rails and fabric_interfaces."
        )
        return [error("rails-not-matching", message, remedy, node)]
    addresses = wanted.addresses(facts)
    found = netplan.findings(node, facts, addresses, wanted.fabric_netplan_file, wanted.fabric_mtu)
    if netplan.in_place(facts, addresses, wanted.fabric_mtu):
        return found
    listed = ", ".join(f"{address} on {name}" for name, address in addresses.items())
    if not wanted.fabric_netplan_apply:
        message = f"{listed} with MTU {wanted.fabric_mtu} is not in place; the file is written but not applied."
        remedy = "Reboot the node, or give -e fabric_netplan_apply=true while no rank runs there."
        found.append(warning("netplan-not-applied", message, remedy, node))
    elif serving(facts):
        message = f"{listed} is not in place and netplan would be applied, but a rank runs: its network would be cut."
        found.append(error("netplan-under-rank", message, "Stop the ranks first: playbooks/stop.yml.", node))
    return found
