"""What is declared for a node: inventory, group_vars and role defaults, as Ansible merges them (not templated).

make check-nodes INVENTORY=inventory/hosts.yml
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from gb10.checkout import role_defaults


@functools.cache
def inventory(path: str) -> dict[str, dict[str, Any]]:
    """Every host's variables."""
    command = [Path(sys.executable).parent / "ansible-inventory", "-i", path, "--list", "--playbook-dir", "playbooks"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    hosts: dict[str, dict[str, Any]] = json.loads(done.stdout)["_meta"]["hostvars"]
    return hosts


@pytest.fixture(name="declared")
def _declared(host: Any, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Variables of the host under test, which testinfra knows by its name or its address."""
    known = inventory(request.config.getoption("--ansible-inventory"))
    here = host.backend.get_hostname()
    (own,) = [own for name, own in known.items() if here in (name, own.get("ansible_host"))]
    return {**role_defaults(ROOT), **own}
