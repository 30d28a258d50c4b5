"""The fabric test: from facts and variables of all nodes to what each runs in which step, and why it may not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gb10 import bandwidth, fabric_matrix, pairs
from gb10.fabric_todo import read_wanted
from gb10.findings import Finding, error
from gb10.node_memory import serving
from gb10.settings import PORT, BadValue, flag, integer, number, shown

Document = Mapping[str, Any]

# What the programs come from.
PACKAGES = {"rdma": "perftest", "tcp": "iperf3"}
LABELS = {"rdma": "rdma (perftest)", "tcp": "tcp (iperf3, one stream)"}
LIMITS = {"fabric_test_least_gbps": "least_gbps", "fabric_test_most_us": "most_us", "fabric_test_odd": "odd"}
VARIABLES = ("cluster_name", "fabric_test_seconds", "fabric_test_port", "fabric_test_under_rank", *LIMITS)

# Seconds Ansible may take between two steps: servers live no longer than all steps take with it.
BETWEEN = 30


@dataclass(frozen=True)
class Given:
    """What a test is made from: by node its facts, its variables (those of the fabric role) and its fabric address."""

    facts: Mapping[str, Document]
    variables: Mapping[str, Document]
    addresses: Mapping[str, str]


def plan_test(given: Given, settings: Document) -> tuple[dict[str, Any], list[Finding]]:
    """``{tool, label, nodes, limits, servers: {node: [...]}, steps: [{sender: [transfer]}]}``, empty with findings.

    ``settings``: those of VARIABLES. Each node is in one transfer at a time. A transfer carries its ``receiver``.
    """
    names = list(given.facts)
    wanted = {name: read_wanted(given.variables[name], name)[0] for name in names}
    transports = {w.nccl_transport for w in wanted.values()}
    tool = "rdma" if "roce" in transports else "tcp"
    numbers, findings = read_settings(settings)
    findings += [finding for name in names for finding in read_wanted(given.variables[name], name)[1]]
    findings += refusals(given, tool, bool(numbers.get("fabric_test_under_rank")))
    ends = {
        name: pairs.places(given.facts[name], tool == "rdma", wanted[name].fabric_interfaces, given.addresses[name])
        for name in names
    }
    for name in names:
        if not ends[name]:
            what = "live RDMA port with an address" if tool == "rdma" else f"interface with {given.addresses[name]}"
            findings.append(error("no-rail", f"There is no {what}.", "Look at playbooks/preflight.yml.", name))
    if len(names) < 2:
        findings.append(error("no-pair", f"{len(names)} node is no pair.", "Give an inventory of two nodes or more."))
    if findings:
        return {}, findings
    links = pairs.links(ends, given.addresses)
    test = bandwidth.Test(
        rdma=tool == "rdma",
        lossless=any(w.fabric_lossless for w in wanted.values()),
        seconds=numbers["fabric_test_seconds"],
        port=numbers["fabric_test_port"],
    )
    steps = [
        {s: [t | {"receiver": r} for t in bandwidth.transfers(test, links, s, r)] for s, r in step.items()}
        for step in pairs.steps(names)
    ]
    longest = max(sum(t["timeout"] for t in ts) for step in steps for ts in step.values())
    limits = {short: numbers.get(name) for name, short in LIMITS.items()}
    return {
        "tool": tool,
        "label": f"{LABELS[tool]}, {settings.get('cluster_name')}",
        "nodes": names,
        "limits": fabric_matrix.limits_of(tool, limits),
        "servers": bandwidth.servers(test, links, len(steps) * (longest + BETWEEN)),
        "steps": steps,
    }, []


def read_settings(settings: Document) -> tuple[dict[str, Any], list[Finding]]:
    """The test's own variables, parsed; a finding per bad one."""
    parsers = {
        "fabric_test_seconds": integer(1, 600),
        "fabric_test_port": PORT,
        "fabric_test_under_rank": flag,
        "fabric_test_least_gbps": number(0, 1000),
        "fabric_test_most_us": number(0, 1e6),
        "fabric_test_odd": number(0, 1),
    }
    found: dict[str, Any] = {}
    findings = []
    for name, parse in parsers.items():
        value = settings.get(name)
        if value in (None, "") and name in LIMITS:
            continue
        try:
            found[name] = parse(value)
        except BadValue as bad:
            message = f"{name} is {shown(value)} but must be {bad}."
            findings.append(error("setting-invalid", message, "Correct the variable."))
    return found, findings


def refusals(given: Given, tool: str, under_rank: bool) -> list[Finding]:
    """Ranks that would be disturbed, programs that are not there."""
    findings = []
    package = PACKAGES[tool]
    for name, facts in given.facts.items():
        if serving(facts) and not under_rank:
            message = "A rank of ours runs here, whose traffic the test would disturb."
            remedy = "Stop the ranks (playbooks/stop.yml), or give -e fabric_test_under_rank=true."
            findings.append(error("test-under-rank", message, remedy, name))
        if not (facts.get("packages") or {}).get(package):
            message = f"{package} is not installed."
            findings.append(error("test-tool-missing", message, f"Install it: apt-get install {package}.", name))
    return findings


def lost(test: Document, sent: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """``sent`` with every transfer that was planned and has no result, as failed: its node could not be asked."""
    found = {}
    for name in test["nodes"]:
        planned = [t for step in test["steps"] for t in step.get(name, [])]
        have = {(r["receiver"], r["rail"], r["kind"]) for r in sent.get(name, [])}
        missing = [t for t in planned if (t["receiver"], t["rail"], t["kind"]) not in have]
        found[name] = [*sent.get(name, []), *(t | {"stderr": f"{name} could not be asked"} for t in missing)]
    return found
