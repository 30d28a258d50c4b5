"""What an Ansible inventory says of the nodes, by Ansible's own classes: precedence and templating are Ansible's.

Contacts no node. Imports Ansible; the rest of the package does not.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.module_utils.common.collections import ImmutableDict
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import trust_as_template
from ansible.utils.path import unfrackpath
from ansible.utils.vars import load_extra_vars
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager

from gb10 import calibration, checkout
from gb10.findings import Finding, error
from gb10.layout import read_layout
from gb10.names import group_of, profile_findings
from gb10.planning import READ, Inputs
from gb10.settings import BadValue, plain
from gb10.sources import SourceError, checkpoint, manifest

GROUP = "gb10"

JINJA = re.compile(r"\{[{%#]|^#jinja2")

start_plugins = cache(init_plugin_loader)  # Ansible takes it once a process


def inputs(profile: str, hostvars: HostVars, names: Iterable[str]) -> Inputs:
    """What the plan reads of the hosts ``names``, templated, and what the controller holds. Raises SourceError."""
    hosts: dict[str, dict[str, Any]] = {}
    given: set[str] = set()
    # By identity: hosts share the very values of their groups, and templating those that are no templates costs most.
    literals: dict[int, tuple[Any, Any]] = {}
    for host in names:
        raw, templated = hostvars.raw_get(host), None
        given.update(map(str, raw))
        found = hosts[str(host)] = {}
        for name in (name for name in READ if name in raw):
            held = raw[name]
            if id(held) not in literals and literal(held):
                literals[id(held)] = held, plain(held)
            if id(held) in literals:
                found[name] = literals[id(held)][1]
            else:
                templated = templated or hostvars[host]
                found[name] = value(host, templated, name)
    first = next(iter(hosts.values()), {})
    source = str(first.get("images_source") or "")
    images = read_layout(source) if source else None
    weights = str(first.get("weights_source") or "")
    manifest(weights)
    model = checkpoint(str(first.get("model_config") or ""), weights)
    return Inputs(profile, hosts, frozenset(given), images, model, calibrated(str(first.get("calibration_file") or "")))


def calibrated(path: str) -> Mapping[str, Any] | None:
    """What this cluster measured; None without a file. Raises SourceError."""
    try:
        return calibration.read(path) if path else None
    except calibration.Unreadable as problem:
        remedy = "Move it away, or set calibration_file to another."
        raise SourceError(error("calibration-unreadable", f"calibration_file {problem}.", remedy)) from None


def value(host: str, variables: Mapping[str, Any], name: str) -> Any:
    """One variable as built-in types. Raises SourceError: it may not template, or YAML made a date of a word."""
    try:
        return plain(variables[name])
    except BadValue as bad:
        wanted = re.sub(r"_AnsibleTagged(\w+)", lambda kind: kind[1].lower(), str(bad))
        raise SourceError(error("setting-invalid", f"{name} must be {wanted}.", "Quote it.", str(host))) from None
    except AnsibleError as problem:
        message = f"{name} cannot be read: {first_line(problem)}."
        raise SourceError(error("variable-broken", message, "Correct its template or vault.", str(host))) from None


def literal(held: object) -> bool:
    """Whether Ansible's templating would leave a value as it is: plain YAML without anything of Jinja's."""
    if isinstance(held, dict):
        return all(map(literal, held)) and all(map(literal, held.values()))
    if isinstance(held, list):
        return all(map(literal, held))
    if isinstance(held, str):
        return not JINJA.search(held)
    return held is None or isinstance(held, bool | int | float)


def first_line(problem: object) -> str:
    """An Ansible error in one line, without the full stop, and the file and line it is about where it knows them."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    text = lines[0].rstrip(". ")
    if "surrogates not allowed" in text:  # how Ansible reads other bytes
        text = "it is no UTF-8 text"
    place = isinstance(problem, BaseException) and origin(problem)
    return f"{text} ({place})" if place else text


def origin(problem: BaseException | None) -> str:
    """``file:line`` of an error, or of what it was caused by; Ansible's own display shows it the same way."""
    while problem is not None:
        context = getattr(problem, "_formatted_source_context", None)
        if found := re.search(r"Origin: (/\S+)", str(context)):
            return found[1]
        problem = problem.__cause__ or problem.__context__
    return ""


class BadInventory(Exception):
    """An inventory, an override or a vault that cannot be read; the text says which and why, in one line."""


class Parsed(InventoryManager):  # type: ignore[misc]
    """An inventory that knows whether any parser understood it; Ansible only warns."""

    understood = False

    def parse_source(self, source: str, cache: bool = False) -> bool:
        """Called for the source, and for every file of a directory."""
        understood = bool(super().parse_source(source, cache=cache))
        self.understood = self.understood or understood
        return understood


class Reader:
    """Reads inventories of one checkout under the same overrides (``-e``) and vault passwords."""

    def __init__(self, root: Path, extra_vars: Sequence[str] = (), vault_password_files: Sequence[str] = ()) -> None:
        """Raises BadInventory for overrides that cannot be read. Relative ``@file`` are of the working directory."""
        start_plugins()
        self.root = root
        self.loader = DataLoader()
        if vault_password_files or constants.DEFAULT_VAULT_PASSWORD_FILE or constants.DEFAULT_VAULT_IDENTITY_LIST:
            self._unlock(list(vault_password_files))
        self.given = tuple(map(override, extra_vars))
        for given in self.given:
            self._extra_vars([given])  # one by one first, so that the one at fault can be named
        self.overrides: Mapping[str, Any] = self._extra_vars(self.given)

    def _unlock(self, files: list[str]) -> None:
        from ansible.cli import CLI  # slow to import, and rarely needed

        ids = list(constants.DEFAULT_VAULT_IDENTITY_LIST)
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                secrets = CLI.setup_vault_secrets(self.loader, ids, vault_password_files=files, auto_prompt=False)
        except (AnsibleError, OSError) as problem:
            raise BadInventory(f"the vault password cannot be read: {first_line(problem)}.") from None
        self.loader.set_vault_secrets(secrets)

    def _extra_vars(self, given: Sequence[str]) -> Mapping[str, Any]:
        """Ansible's reading of ``-e``. It keeps what it read for the process, which is what the variables then see."""
        context.CLIARGS = ImmutableDict(extra_vars=tuple(given))
        load_extra_vars.extra_vars = None
        try:
            read: Mapping[str, Any] = load_extra_vars(self.loader)
        except (AnsibleError, OSError, ValueError) as problem:
            raise BadInventory(f"-e {short(given[-1])}: {first_line(problem)}.") from None
        if "_raw_params" in read:  # a word without =, which Ansible would pass over in silence
            raise BadInventory(f"-e {short(given[-1])}: {short(repr(read['_raw_params']))} is no KEY=VALUE.")
        return read

    def read(self, source: str, profile: str = "") -> tuple[Inputs | None, list[Finding]]:
        """What the inventory ``source`` (a file, a directory, or hosts with a comma) says under one profile.

        Without ``profile`` the inventory or an override names it, as for the playbook. ``None`` with findings where
        there is no such profile or no node. Raises BadInventory and SourceError.
        """
        self._extra_vars([*self.given, json.dumps({"profile": profile})] if profile else self.given)
        parsed = self._parse(source)
        names = parsed.get_groups_dict().get(GROUP, [])
        if not names:
            return None, [error("no-nodes", f"Group {GROUP} of {source} has no host.", "Give an inventory with -i.")]
        self.loader.set_basedir(str(self.root / "playbooks"))
        try:
            hostvars = HostVars(parsed, VariableManager(loader=self.loader, inventory=parsed), self.loader)
            first = hostvars[names[0]]
            chosen = str(value(names[0], first, "profile") or "") if "profile" in first else ""
            places = [self.root, Path(str(first.get("inventory_dir") or "."))]
            findings = profile_findings(chosen, checkout.profiles(places))
            if findings:
                return None, findings
            parsed.add_group(group_of(chosen))
            for name in names:
                parsed.add_host(name, group_of(chosen))
            parsed.reconcile_inventory()
            return inputs(chosen, hostvars, names), []
        except AnsibleError as problem:
            raise BadInventory(f"inventory {source}: {first_line(problem)}.") from None

    def _parse(self, source: str) -> Parsed:
        """The inventory by itself, before any profile. Relative paths are of the working directory."""
        if "," not in source and not Path(source).exists():
            raise BadInventory(f"inventory {source}: no such file. Give a file or directory with -i.")
        self.loader.set_basedir(str(Path.cwd()))
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            parsed = Parsed(self.loader, sources=[source if "," in source else unfrackpath(source, follow=False)])
        if not parsed.understood:
            raise BadInventory(f"inventory {source} cannot be parsed: {reason(source, said.getvalue())}.")
        print(said.getvalue(), end="", file=sys.stderr)
        return parsed


def short(text: str) -> str:
    """As much of a text as a line can hold."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def override(given: str) -> str:
    """One ``-e`` as Ansible's command line hands it on: trusted to be a template, or a file by its whole path."""
    if not given.startswith("@"):
        trusted: str = trust_as_template(given)
        return trusted
    path = unfrackpath(given[1:])
    if not Path(path).is_file():
        raise BadInventory(f"-e {given}: no such file.")
    return f"@{path}"


def reason(source: str, said: str) -> str:
    """Of the complaints of all of Ansible's parsers that of the one meant for the file, with the line it names."""
    causes = re.findall(r"Failed to parse inventory with '(\w+)' plugin: (.*)", said)
    runs = Path(source).is_file() and os.access(source, os.X_OK)
    kind = "yaml" if Path(source).suffix in (".yml", ".yaml", ".json") else "script" if runs else "ini"
    meant = [cause for plugin, cause in causes if plugin == kind] or [cause for _plugin, cause in causes]
    where = re.search(r"Origin: \S+?:(\d+)", said)
    text = first_line(meant[0]) if meant else "no parser of Ansible takes it"
    return text + (f" (line {where[1]})" if where else "")
