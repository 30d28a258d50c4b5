"""The secrets a run knows: of its variables, of vaults, of its environment. Imports Ansible; keeps nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.parsing.vault import EncryptedString, VaultedValue
from ansible.template import Templar

from gb10.redact import HIDDEN, known_in
from gb10.settings import BadValue, plain

# What a run registers of its nodes: large, and gb10_facts has hidden what may be a secret.
REGISTERED = ("gb10_node", "gb10_todo")


def of_play(play: Any) -> frozenset[str]:
    """Those of the variables every host has in a play, as callbacks are given it."""
    manager = play.get_variable_manager()
    hosts = manager._inventory.get_hosts()
    variables = [manager.get_vars(play=play, host=host, include_hostvars=False) for host in hosts]
    return secrets(variables, Templar(loader=manager._loader, variables=variables[0] if variables else {}))


def vaulted(value: Any) -> bool:
    """Whether a value comes out of a vault."""
    return isinstance(value, EncryptedString) or VaultedValue.is_tagged_on(value)


def shown(value: Any) -> Any:
    """A value as built-in types, with what comes out of a vault, or is no plain YAML, hidden."""
    if vaulted(value):
        return HIDDEN
    if isinstance(value, Mapping):
        return {str(name): shown(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    try:
        return plain(value)
    except BadValue:
        return HIDDEN


def secrets(hosts: Iterable[Mapping[str, Any]], templar: Any) -> frozenset[str]:
    """Values under the name of a secret or out of a vault, in all forms. ``hosts``: raw variables of each host."""

    def reveal(value: Any, named: bool) -> str | None:
        if not isinstance(value, str | EncryptedString):
            return None
        if not (named or vaulted(value)):
            return None
        try:
            found = templar.template(value)
        except Exception:  # an undefined name, a vault without its password: then nobody can write the value
            return value if isinstance(value, str) else None
        return str(found) if isinstance(found, str) else None

    held = known_in(dict(os.environ))
    seen: set[int] = set()
    for variables in hosts:
        for name, value in variables.items():
            if name not in REGISTERED and id(value) not in seen:  # hosts share the values of their groups
                seen.add(id(value))
                held |= known_in({str(name): value}, reveal)
    return frozenset(held)
