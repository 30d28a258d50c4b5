"""Writes docs/roles.md from the roles' argument specs. `--check` says whether it is up to date (exit 1 if not)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs/roles.md"
# The order in which site.yml runs them.
ORDER = (
    "preflight docker host_limits storage fabric nccl images weights serve verify change_history".split()  # noqa: SIM905
)


def shown(value: Any) -> str:
    """A default as one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, explicit_end=False).strip()
    return f"`{text.removesuffix('...').strip()}`"


def render() -> str:
    """The whole page."""
    parts = ["# Roles\n\nGenerated from the roles' argument specs by `make docs`; site.yml runs them in this order.\n"]
    for role in ORDER:
        spec = yaml.safe_load((ROOT / f"roles/{role}/meta/argument_specs.yml").read_text())["argument_specs"]["main"]
        parts.append(f"\n## {role}\n\n{spec['short_description']}.\n")
        if spec.get("options"):
            parts.append("\n| variable | type | default | meaning |\n|---|---|---|---|\n")
            for name, option in spec["options"].items():
                row = (f"`{name}`", option["type"], shown(option["default"]), " ".join(option["description"].split()))
                parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n")
    return "".join(parts)


if __name__ == "__main__":
    text = render()
    if "--check" in sys.argv:
        sys.exit(TARGET.read_text() != text)
    TARGET.write_text(text)
