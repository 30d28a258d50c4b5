"""The matrix of measured links: rows are senders, columns receivers; the odd link is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from gb10 import bandwidth, data
from gb10.findings import Finding, error
from gb10.report import table

Matrix = list[list[float | None]]
Cell = tuple[str, str]


def build(
    names: Sequence[str], sent: Mapping[str, Iterable[Mapping[str, Any]]], tool: str, limits: Mapping[str, float]
) -> dict[str, Any]:
    """The document: ``{tool, unit, limits, nodes, rails: {rail: {kind: matrix}}, problems, findings}``.

    ``sent``: per sender the results of its transfers, each with ``receiver``, ``rail``, ``kind`` and what the client
    printed. ``tool`` is ``rdma`` or ``tcp``. ``limits``: ``least_gbps``, ``most_us`` and ``odd``, the share of the
    median below which a link is the odd one.
    """
    index = {name: number for number, name in enumerate(names)}
    rails: dict[str, dict[str, Matrix]] = {}
    problems = []
    for sender, results in sent.items():
        for result in results:
            kinds = rails.setdefault(str(result["rail"]), {})
            matrix = kinds.setdefault(str(result["kind"]), [[None] * len(names) for _ in names])
            value = bandwidth.value_of(str(result["kind"]), str(result.get("stdout") or ""))
            matrix[index[sender]][index[str(result["receiver"])]] = value
            if value is None:
                about = {key: str(result[key]) for key in ("receiver", "rail", "kind")}
                problems.append({"sender": sender, **about, "problem": bandwidth.problem_of(dict(result))})
    document: dict[str, Any] = {
        "schema": 1,
        "tool": tool,
        "units": dict(bandwidth.UNITS),
        "limits": dict(limits),
        "nodes": list(names),
        "rails": {rail: rails[rail] for rail in sorted(rails)},
        "problems": problems,
    }
    document["findings"] = [f.as_dict() for f in judge(document)]
    return document


def limits_of(tool: str, given: Mapping[str, Any]) -> dict[str, float]:
    """The limits of data/fabric.yml with those ``given`` (by an operator) over them."""
    known = {name: float(value) for name, value in data.load("fabric")["tests"][tool].items()}
    return known | {name: float(value) for name, value in given.items() if value not in (None, "")}


def judge(document: Mapping[str, Any]) -> list[Finding]:
    """Links that carry nothing, too little, or much less than the others; a whole node is named as one."""
    names, found = list(document["nodes"]), []
    for rail, kinds in document["rails"].items():
        for kind, matrix in kinds.items():
            bad = bad_cells(document, matrix, kind)
            problems = {(p["sender"], p["receiver"]): p["problem"] for p in document["problems"] if _of(p, rail, kind)}
            found += [_finding(document, group, rail, kind, matrix, problems) for group in grouped(names, bad)]
    return found


def _of(problem: Mapping[str, str], rail: str, kind: str) -> bool:
    return problem["rail"] == rail and problem["kind"] == kind


def bad_cells(document: Mapping[str, Any], matrix: Matrix, kind: str) -> list[Cell]:
    """(sender, receiver) of the links that do not pass."""
    names, limits = document["nodes"], document["limits"]
    failed = {(p["sender"], p["receiver"]) for p in document["problems"] if p["kind"] == kind}
    values = [value for row in matrix for value in row if value is not None]
    middle = median(values) if values else 0.0
    found = []
    for sender, row in zip(names, matrix, strict=True):
        for receiver, value in zip(names, row, strict=True):
            if value is None:
                if sender != receiver and (sender, receiver) in failed:
                    found.append((sender, receiver))
            elif kind == "us":
                if value > limits.get("most_us", float("inf")):
                    found.append((sender, receiver))
            elif value < limits.get("least_gbps", 0.0) or value < middle * limits["odd"]:
                found.append((sender, receiver))
    return found


def grouped(names: Sequence[str], bad: Iterable[Cell]) -> list[tuple[str, list[Cell]]]:
    """Bad links as few causes: all links of a node, all it sends, all it receives, single ones. Each cell once.

    Of two nodes only the link itself can be named.
    """
    left, found = list(bad), []
    for what, side in (("both", None), ("sends", 0), ("receives", 1)):
        for name in names if len(names) > 2 else ():
            cells = [cell for cell in left if (name in cell if side is None else cell[side] == name)]
            if len(cells) == (len(names) - 1) * (2 if side is None else 1):
                found.append((what, cells))
                left = [cell for cell in left if cell not in cells]
    return found + [("link", [cell]) for cell in left]


def _finding(
    document: Mapping[str, Any],
    group: tuple[str, list[Cell]],
    rail: str,
    kind: str,
    matrix: Matrix,
    problems: Mapping[Cell, str],
) -> Finding:
    what, cells = group
    names = document["nodes"]
    values = [matrix[names.index(a)][names.index(b)] for a, b in cells]
    told = sorted(value for value in values if value is not None)
    unit = bandwidth.UNITS[kind]
    every = [value for row in matrix for value in row if value is not None]
    sender, receiver = cells[0]
    node = sender
    if what == "both":
        node = next(name for name in names if all(name in cell for cell in cells))
        where = f"all links of {node}"
    elif what == "sends":
        where = f"all it sends ({len(cells)} links)"
    elif what == "receives":
        node = receiver
        where = f"all it receives ({len(cells)} links)"
    else:
        where = f"to {receiver}"
    if not told:
        message = f"Rail {rail}: {where}: no {'transfer' if kind == 'gbps' else 'latency'} ({problems[cells[0]]})."
        remedy = "Check that the node lives, its cable and switch port, and that the same MTU holds all the way."
        return error("link-dead", message, remedy, node)
    span = f"{told[0]:.2f}" if told[0] == told[-1] else f"{told[0]:.2f} to {told[-1]:.2f}"
    limit = document["limits"].get("least_gbps" if kind == "gbps" else "most_us", 0)
    wanted = f"; {'at least' if kind == 'gbps' else 'at most'} {limit:g} are expected" if limit else ""
    message = f"Rail {rail}: {where}: {span} {unit}, the median of all links is {median(every):.2f} {unit}{wanted}."
    remedy = "Reseat or change cable and switch port; look at the port's rate, active MTU and error counters."
    return error("link-slow", message, remedy, node)


def text(document: Mapping[str, Any], label: str) -> str:
    """The matrices as printed; ``*`` marks what does not pass, ``x`` what carried nothing."""
    names = document["nodes"]
    parts = []
    for rail, kinds in document["rails"].items():
        for kind, matrix in kinds.items():
            bad = set(bad_cells(document, matrix, kind))
            rows = [
                [name, *(_shown(value, (name, other), bad) for other, value in zip(names, row, strict=True))]
                for name, row in zip(names, matrix, strict=True)
            ]
            unit = bandwidth.UNITS[kind]
            parts.append(f"{unit}, {label}, rail {rail} (rows send)\n" + table(["", *names], rows))
    marks = any(mark in part for part in parts for mark in ("*", " x"))
    return "\n\n".join(parts) + ("\n* does not pass, x carried nothing" if marks else "")


def _shown(value: float | None, cell: Cell, bad: set[Cell]) -> str:
    if value is None:
        return "x" if cell in bad else "-"
    return f"{value:.2f}" + ("*" if cell in bad else "")
