"""Writes the pages that are made from data: roles.md and findings.md. `--check` names the stale ones (exit 1)."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
# The order in which site.yml runs them.
ORDER = (
    *"preflight storage docker host_limits fabric nccl images weights serve sparkrun verify".split(),  # noqa: SIM905
    *"change_history unprepare".split(),  # noqa: SIM905
)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table. A bar inside a cell is escaped."""
    names = list(header)
    cells = [names, *([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)]
    lines = [f"| {' | '.join(row)} |\n" for row in cells]
    return lines[0] + "|---" * len(names) + "|\n" + "".join(lines[1:])


def shown(value: Any) -> str:
    """A default as one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, explicit_end=False).strip()
    return f"`{text.removesuffix('...').strip()}`"


def roles() -> str:
    """docs/roles.md, from the roles' argument specs."""
    parts = ["# Roles\n\nGenerated from the roles' argument specs by `make docs`; site.yml runs them in this order.\n"]
    for role in ORDER:
        spec = yaml.safe_load((ROOT / f"roles/{role}/meta/argument_specs.yml").read_text())["argument_specs"]["main"]
        parts.append(f"\n## {role}\n\n{spec['short_description']}.\n")
        if spec.get("options"):
            rows = [
                (f"`{name}`", option["type"], shown(option["default"]), option["description"])
                for name, option in spec["options"].items()
            ]
            parts.append("\n" + table(("variable", "type", "default", "meaning"), rows))
    return "".join(parts)


FINDINGS = """\
# Findings

Generated from `docs/findings.yml` and `src/gb10/data/engine_log.yml` by `make docs`.

A finding is one line: `error [code] node: message. What to do.` It names the node unless it is about the whole
cluster, and carries the numbers that were compared. Codes do not change; match on them, not on words.

An error stops the run on all nodes. Those of plan and preflight come before the first change on any node; those of a
role where the role stands. A warning is printed and stops nothing. Where a code has both levels, the row says when.

"Said by" is the playbook, the role (`docs/roles.md`) or the command. Every playbook that acts runs plan and preflight
first, but for `playbooks/stop.yml`.

"""
FAULTS = """
## Faults in the log of a rank

While ranks boot their logs are searched for what ends a boot; the run then stops
within one look (`serve_watch_interval`) with `node: [code] line -- what to do`.
`playbooks/status.yml` shows the line of such a fault, also of a rank that lived on.

"""


def findings() -> str:
    """docs/findings.md, from the list of codes and the faults known from engine logs."""
    listed = yaml.safe_load((ROOT / "docs/findings.yml").read_text())
    rows = [
        (f"`{f['code']}`", ", ".join(f["levels"]), ", ".join(f["said_by"]) or "-", f["meaning"], f["remedy"])
        for f in listed
    ]
    faults = yaml.safe_load((ROOT / "src/gb10/data/engine_log.yml").read_text())["faults"]
    signs = [(f"`{f['code']}`", f"`{f['pattern']}`", f["remedy"]) for f in faults]
    codes = table(("code", "level", "said by", "meaning", "what to do"), rows)
    return FINDINGS + codes + FAULTS + table(("code", "line that matches", "what to do"), signs)


PAGES = {ROOT / "docs/roles.md": roles, ROOT / "docs/findings.md": findings}


if __name__ == "__main__":
    if "--check" in sys.argv:
        stale = [path.name for path, render in PAGES.items() if not path.exists() or path.read_text() != render()]
        sys.exit(f"stale: {', '.join(stale)}; run make docs" if stale else 0)
    for path, render in PAGES.items():
        path.write_text(render())
