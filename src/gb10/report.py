"""What a person reads: the plan, the ranks, the endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gb10.findings import Finding, line
from gb10.memory_table import memory_table


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Fixed-width text, two spaces between columns."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def plan_text(document: Mapping[str, Any]) -> str:
    """The plan as printed: memory, ranks, warnings. (Errors are what the run fails with.)"""
    parts = [f"Plan of profile {document['profile']}"]
    if document["memory"].get("reported"):
        parts.append(memory_table(document["memory"]))
    if document["ranks"]:
        rows = [(r["rank"], r["node"], r["address"], r["image"], r["image_digest"][:19]) for r in document["ranks"]]
        parts.append(table(("rank", "node", "address", "image", "digest"), rows))
    warnings = [line(Finding(**f)) for f in document["findings"] if f["level"] == "warning"]
    parts += ["\n".join(warnings)] if warnings else []
    return "\n\n".join(parts)


def clusters_text(planned: Iterable[tuple[str, Mapping[str, Any] | None, Sequence[Finding]]]) -> str:
    """One line per cluster: its inventory, what it would be (by the accounting that decides), how it is judged.

    ``planned``: inventory, plan document (``None``: nothing to plan), findings. Warnings follow, each once.
    """
    rows: list[Sequence[object]] = []
    warned: dict[str, list[str]] = {}
    for inventory, document, findings in planned:
        made = document or {"profile": "-", "head": "", "ranks": []}
        memory = made.get("memory") or {}
        held = memory.get(memory.get("deciding", "")) or {}
        figures = [f"{held[key]:,}" if key in held else "-" for key in ("kv_tokens", "requests", "largest_model_len")]
        counts = [sum(f.level == level for f in findings) for level in ("error", "warning")]
        rows.append((inventory, made["profile"], made["head"] or "-", len(made["ranks"]), *figures, *counts))
        for finding in findings:
            if finding.level == "warning":
                warned.setdefault(line(finding), []).append(inventory)
    header = ("inventory", "profile", "head", "ranks", "KV tokens", "requests", "largest context", "errors", "warnings")
    said = [f"{'all' if len(where) == len(rows) else ', '.join(where)}: {text}" for text, where in warned.items()]
    return "\n\n".join([table(header, rows), *(["\n".join(said)] if said else [])])
