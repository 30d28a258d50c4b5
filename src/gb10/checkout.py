"""The checkout: where it is, which profiles and role variables it has. Reads files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gb10.findings import error
from gb10.names import group_of
from gb10.sources import SourceError

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where PyYAML has it: ten times as fast


def root() -> Path:
    """The checkout this package is part of, else the one around the working directory. Raises SourceError."""
    try:
        here = Path.cwd()
    except OSError:
        message = "The working directory is gone."
        raise SourceError(error("checkout-missing", message, "Change into one that exists.")) from None
    for folder in (Path(__file__).resolve().parents[2], here, *here.parents):
        if (folder / "group_vars/all").is_dir() and (folder / "playbooks/plan.yml").is_file():
            return folder
    message = f"gb10 is not part of a checkout, and {here} is in none: there are no group_vars to plan from."
    raise SourceError(error("checkout-missing", message, "Change into the checkout, or run its .venv/bin/gb10."))


def profiles(folders: Iterable[Path]) -> list[str]:
    """Names of the profiles: the files ``group_vars/profile_*.yml`` of ``folders`` (checkout, inventory)."""
    files = {path.stem for folder in folders for path in folder.glob("group_vars/profile_*.yml")}
    return [name.removeprefix("profile_").replace("_", "-") for name in sorted(files)]


def known_group(profile: str) -> str:
    """The group of a profile's variables; empty where the checkout has no such profile any more."""
    return group_of(profile) if profile in profiles([root()]) else ""


def profile_images(folders: Iterable[Path]) -> set[str]:
    """The images that profiles name. Raises SourceError for a profile whose image only Ansible could tell."""
    found = set()
    for path in sorted(path for folder in folders for path in folder.glob("group_vars/profile_*.yml")):
        try:
            image = (yaml.load(path.read_text(), LOADER) or {}).get("container_image")
        except (OSError, yaml.YAMLError, AttributeError):
            image = None
        if not isinstance(image, str) or "{{" in image:
            message = f"{path.name} gives no plain container_image, so what images are needed is not known."
            raise SourceError(error("prune-unknown", message, "Write the image's name there, or images_prune: false."))
        found.add(image)
    return found


@cache
def role_variables(checkout: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Every variable a role declares, and the prefixes that are reserved for roles."""
    names: list[str] = []
    for spec in sorted(checkout.glob("roles/*/meta/argument_specs.yml")):
        names += yaml.load(spec.read_text(), LOADER)["argument_specs"]["main"].get("options", {})
    return tuple(names), tuple(f"{p.name}_" for p in sorted(checkout.glob("roles/*")) if p.is_dir())


@cache
def role_defaults(checkout: Path) -> Mapping[str, Any]:
    """The defaults of all roles, which a host's own variables do not show. Shared: do not change what it returns."""
    values: dict[str, Any] = {}
    for path in sorted(checkout.glob("roles/*/defaults/main.yml")):
        values |= yaml.load(path.read_text(), LOADER) or {}
    return values


def node_variables(host: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Those of a host's variables, a role's default where the host has none. Raises SourceError."""
    defaults = role_defaults(root())
    found = {name: host.get(name, defaults.get(name)) for name in names}
    return {name: value for name, value in found.items() if value is not None}
