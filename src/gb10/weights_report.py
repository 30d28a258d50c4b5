"""What nodes said of their weights, as a table and as findings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gb10.findings import Finding, error
from gb10.report import table
from gb10.weights_files import gib

States = Mapping[str, Mapping[str, Any]]  # by node: the result of gb10_weights, or why there is none in ``failed``
HEAD = ("node", "weights", "right", "wrong", "not read", "read now", "bytes", "free")


def text(states: States) -> str:
    """One line a node, in the order given."""
    rows: list[tuple[str, ...]] = []
    for node, state in states.items():
        if state.get("failed"):
            rows.append((node, "no answer", *("-" for _ in HEAD[2:])))
            continue
        wrong, unread = len(state["reasons"]), len(state["unread"])
        word = "wrong" if wrong else "not verified" if unread else "whole"
        right = f"{state['files'] - wrong - unread}/{state['files']}"
        rows.append(
            (node, word, right, str(wrong), str(unread), str(state["hashed"]), gib(state["have"]), gib(state["free"]))
        )
    return table(HEAD, rows)


def findings(states: States) -> list[Finding]:
    """Every node that gave no answer, every file that is wrong."""
    found = []
    for node, state in states.items():
        if state.get("failed"):
            found.append(error("weights-unknown-state", f"{state['failed']}", "Look at the node, and ask again.", node))
            continue
        for path, why in sorted(state["reasons"].items()):
            remedy = "playbooks/weights.yml brings it again."
            found.append(error("weights-wrong", f"{path} is {why}.", remedy, node))
    return found
