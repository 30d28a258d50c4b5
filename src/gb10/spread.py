"""Who gives which files to whom: from what each node lacks to lines of nodes, one for all that lack the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from statistics import median
from typing import Any

from gb10.fanout import amount, line_order
from gb10.findings import Finding, error

Document = Mapping[str, Any]
RUN_DIR = "/run/gb10-relay"  # with the run's and the node's name behind it


def runs(
    run: str,
    source: str,
    files: Sequence[Document],
    wants: Mapping[str, Iterable[str]],
    addresses: Mapping[str, str],
    speeds: Mapping[str, float],
) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Lines, the largest first: ``{id, source, line[node], addresses[], files[{path, size, sha256}], bytes}``.

    ``wants``: by node the paths among ``files`` it is to have; ``addresses``: of every node that may take part, in rank
    order; ``speeds``: see ``line_order``. The source wants nothing.
    """
    findings = []
    known = {str(entry["path"]) for entry in files}
    receivers = {node: set(paths) for node, paths in wants.items() if node != source}
    for node in [source, *receivers] if any(receivers.values()) else []:
        if node not in addresses:
            message = f"{node} is to take part, but is no host of this play."
            findings.append(error("fanout-settings", message, "Run on all hosts of group gb10.", node))
    for node, paths in receivers.items():
        if strange := sorted(paths - known):
            message = f"It is to have {strange[0]}, which is not among the files."
            findings.append(error("fanout-settings", message, "Name it in spread_files.", node))
    if findings:
        return [], findings
    groups: dict[tuple[str, ...], list[Document]] = {}
    for entry in files:
        nodes = tuple(node for node in addresses if entry["path"] in receivers.get(node, ()))
        if nodes:
            groups.setdefault(nodes, []).append(entry)
    found: list[dict[str, Any]] = []
    for nodes, group in sorted(groups.items(), key=lambda item: -sum(int(e["size"]) for e in item[1])):
        line = line_order(source, nodes, speeds)
        found.append(
            {
                "id": f"{run}-{len(found)}",
                "source": source,
                "line": line,
                "addresses": [addresses[node] for node in line],
                "files": list(group),
                "bytes": sum(int(entry["size"]) for entry in group),
            }
        )
    return found, []


def needed(files: Sequence[Document], wants: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Bytes that come to each node at most."""
    sizes = {str(entry["path"]): int(entry["size"]) for entry in files}
    return {node: sum(sizes.get(path, 0) for path in set(paths)) for node, paths in wants.items()}


def run_dir(run: str, node: str) -> str:
    """Directory of a node's relay while it runs."""
    return str(PurePosixPath(f"{RUN_DIR}-{run}-{node}"))


def speeds_of(matrix: Document) -> dict[str, float]:
    """Speed (Gb/s) of each node's slower way, in or out: the middle over its links, its best rail.

    ``matrix``: what playbooks/fabric_test.yml wrote (``gb10.fabric_matrix``). Nodes without a number are left out.
    """
    names, found = [str(name) for name in matrix.get("nodes") or []], dict[str, float]()
    for kinds in (matrix.get("rails") or {}).values():
        cells = kinds.get("gbps") or [[] for _ in names]
        for number, name in enumerate(names):
            out = [value for value in cells[number] if value]
            into = [row[number] for row in cells if row and row[number]]
            if out and into:
                found[name] = max(found.get(name, 0.0), min(median(out), median(into)))
    return found


def summary(run: Document, sent: int) -> str:
    """What the source sent, in a line of output."""
    copies = sent / run["bytes"] if run["bytes"] else 0.0
    receivers = len(run["line"]) - 1
    return f"{run['source']}: sent {copies:.2f} copies of {amount(run['bytes'])} to bring them to {receivers} nodes"


def trouble(node: str, step: str, answer: Document) -> str:
    """One line of what a module call failed with; empty where it did not."""
    if not (answer.get("failed") or answer.get("unreachable")):
        return ""
    text, code = str(answer.get("msg") or "it gave no answer"), str(answer.get("code") or "fanout-lost")
    return said(node, step, code, text.removeprefix(f"error [{code}] "))


def said(node: str, step: str, code: str, text: str) -> str:
    """One line: code, node, step, what happened."""
    return " ".join(f"error [{code}] {node}: {step}: {text}".split())


def code_of(said: str) -> str:
    """Finding code of what a command said when it could not write."""
    words = {"No space left": "fanout-disk-full", "quota": "fanout-disk-full"}
    words |= {"Read-only": "fanout-read-only", "denied": "fanout-read-only", "not permitted": "fanout-read-only"}
    return next((code for word, code in words.items() if word in said), "fanout-blocked")
