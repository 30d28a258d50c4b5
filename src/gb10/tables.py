"""Facts and findings as compact text tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gb10 import fabric
from gb10.deploy import LABEL_PROFILE, LABEL_RANK
from gb10.findings import Finding
from gb10.report import table

Document = Mapping[str, Any]

GIB = 1 << 30

# Columns in which all nodes should read the same: who differs from most is marked.
ALIKE = ("kernel", "driver", "docker", "transport")

ODD = " *"


def facts_table(facts: Mapping[str, Document]) -> str:
    """One line a node; a value that differs from what most nodes have ends in ``*``."""
    lines = {name: row(document) for name, document in facts.items()}
    for column in ALIKE:
        counts = Counter(line[column] for line in lines.values()).most_common(2)
        if len(counts) == 2 and counts[0][1] > counts[1][1]:
            for line in lines.values():
                line[column] += ODD if line[column] != counts[0][0] else ""
    header = ["node", "kernel", "driver", "memory free/total GiB", "docker", "transport", "disk free GiB", "our rank"]
    rows = [[name, *line.values()] for name, line in lines.items()]
    odd = any(cell.endswith(ODD) for cells in rows for cell in cells)
    return table(header, rows) + ("\n* differs from most nodes" if odd else "")


def row(facts: Document) -> dict[str, str]:
    """What the table says of one node, by column."""
    memory, docker = facts.get("memory") or {}, facts.get("docker") or {}
    disk = (facts.get("weights") or {}).get("filesystem") or docker.get("filesystem") or {}
    rank = next((c for c in docker.get("containers") or [] if c.get("ours")), None)
    return {
        "kernel": text((facts.get("kernel") or {}).get("release")),
        "driver": text((facts.get("gpu") or {}).get("driver")),
        "memory": f"{gib(memory.get('available_kib'), 1024)}/{gib(memory.get('total_kib'), 1024)}",
        "docker": f"{docker['version']} {docker.get('image_store')}" if docker.get("version") else "-",
        "transport": transport(facts),
        "disk": gib(disk.get("free_bytes"), 1, 0),
        "rank": rank_text(rank),
    }


def transport(facts: Document) -> str:
    """The live rails in short, or that there is none: ``roce 2x200 mtu 9000/4096``."""
    rails = fabric.rails(facts)
    if not rails:
        return "socket"
    rates, mtus, actives = ({getattr(rail, name) for rail in rails} for name in ("rate", "mtu", "active_mtu"))
    shown = "/".join(",".join(text(v) for v in sorted(values, key=str)) for values in (mtus, actives))
    rate = ",".join(f"{value:g}" if value else "?" for value in sorted(rates, key=str))
    return f"roce {len(rails)}x{rate} mtu {shown}"


def rank_text(container: Document | None) -> str:
    """Our container in short: ``rank 0 of tp8-300k: running``."""
    if container is None:
        return "none"
    labels = container.get("labels") or {}
    of = f"rank {labels[LABEL_RANK]} of {labels.get(LABEL_PROFILE)}: " if LABEL_RANK in labels else "by hand: "
    return of + text(container.get("state"))


def text(value: Any) -> str:
    """A value, or a dash."""
    return "-" if value is None or value == "" else str(value)


def gib(value: int | None, unit: int, digits: int = 1) -> str:
    """A number of ``unit`` bytes in GiB, or a dash."""
    return "-" if value is None else f"{value * unit / GIB:.{digits}f}"


def findings_table(findings: Iterable[Finding]) -> str:
    """Errors first, then warnings, node by node in the order given; a line says so where there is none."""
    listed = sorted(findings, key=lambda finding: finding.level != "error")
    if not listed:
        return "No findings."
    rows = []
    for finding in listed:
        said = f"{finding.message} {finding.remedy}".rstrip()
        rows.append([finding.level, finding.node or "(cluster)", finding.code, said])
    return table(["level", "node", "code", "finding and remedy"], rows)
