"""Findings: what was judged, on which node, with which numbers, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One judgement. ``node`` is the inventory name, or empty for the whole cluster.

    ``code`` is stable kebab-case (tests and users rely on it); ``message`` carries the numbers that were compared;
    ``remedy`` says what to do.
    """

    level: Level
    node: str
    code: str
    message: str
    remedy: str

    def as_dict(self) -> dict[str, str]:
        """The JSON form of the contract."""
        return asdict(self)


def error(code: str, message: str, remedy: str, node: str = "") -> Finding:
    """A finding that stops the run on all nodes before the first change."""
    return Finding("error", node, code, message, remedy)


def warning(code: str, message: str, remedy: str, node: str = "") -> Finding:
    """A finding that is printed and recorded but stops nothing."""
    return Finding("warning", node, code, message, remedy)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Only the findings that stop a run."""
    return [f for f in findings if f.level == "error"]


def line(finding: Finding) -> str:
    """One readable line: ``error [code] node: message. remedy``."""
    where = f"{finding.node}: " if finding.node else ""
    text = f"{finding.level} [{finding.code}] {where}{finding.message} {finding.remedy}"
    return " ".join(text.split())  # an operator's own words may hold line breaks
