"""The repository's own data as tests need it: the worked example's hosts with the variables of a profile."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from gb10.names import group_of

ROOT = Path(__file__).resolve().parents[1]
# Variables of a host that is the machine the tests run on.
THIS_MACHINE = {
    "ansible_host": "127.0.0.1",
    "ansible_connection": "local",
    "ansible_become": False,
    "ansible_python_interpreter": sys.executable,
}


def variables(profile: str) -> dict[str, Any]:
    """group_vars/all and the profile's file, the latter over the former, as Ansible reads them."""
    merged: dict[str, Any] = {}
    for path in [*sorted((ROOT / "group_vars/all").glob("*.yml")), ROOT / f"group_vars/{group_of(profile)}.yml"]:
        merged.update(yaml.safe_load(path.read_text()))
    return merged


def hosts(profile: str, count: int = 8, **overrides: Any) -> dict[str, dict[str, Any]]:
    """The first ``count`` hosts of the worked example with everything they see for ``profile``."""
    inventory = yaml.safe_load((ROOT / "inventory/hosts.yml").read_text())["gb10"]["hosts"]
    shared = variables(profile) | overrides
    return {name: shared | dict(own) for name, own in list(inventory.items())[:count]}


def codes(document: dict[str, Any], level: str = "error") -> list[str]:
    """Codes of a plan's findings of one level."""
    return [f["code"] for f in document["findings"] if f["level"] == level]
