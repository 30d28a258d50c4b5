"""Roles: specs equal defaults, every variable used, one value per fact."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT

ROLES = sorted(p for p in (ROOT / "roles").iterdir() if p.is_dir())


def load(path: Path) -> dict[str, Any]:
    return (yaml.safe_load(path.read_text()) if path.exists() else None) or {}


def options(role: Path) -> dict[str, Any]:
    return load(role / "meta/argument_specs.yml")["argument_specs"]["main"].get("options", {})


@pytest.mark.parametrize("role", ROLES, ids=lambda p: p.name)
def test_specs_equal_defaults(role: Path) -> None:
    defaults = load(role / "defaults/main.yml")
    specs = options(role)
    assert {name: spec["default"] for name, spec in specs.items()} == defaults
    for name, spec in specs.items():
        assert name.startswith(f"{role.name}_"), name
        assert spec["description"].strip().endswith("."), name


@pytest.mark.parametrize("role", ROLES, ids=lambda p: p.name)
def test_every_default_has_a_comment_and_is_used(role: Path) -> None:
    text = (role / "defaults/main.yml").read_text()
    places = [p for folder in ("roles", "src/gb10", "action_plugins") for p in (ROOT / folder).rglob("*.*")]
    used = "\n".join(
        p.read_text()
        for p in places
        if p.suffix in (".yml", ".j2", ".py") and p.parent.name not in ("defaults", "meta")
    )
    for name in load(role / "defaults/main.yml"):
        assert re.search(rf"^#.*\n{name}:", text, re.M), f"{name} has no comment above it"
        assert re.search(rf"\b{name}\b", used), f"{name} is used nowhere"


def test_what_group_vars_and_a_role_both_give_is_the_same_unless_neutral() -> None:
    """group_vars/all is what counts; a role's default beside it is the same value, or empty for data of the report."""
    given: dict[str, Any] = {}
    for path in sorted((ROOT / "group_vars/all").glob("*.yml")):
        given |= load(path)
    for role in ROLES:
        for name, default in load(role / "defaults/main.yml").items():
            if name in given and default not in ({}, "", []):
                assert given[name] == default, name
