"""Our Ansible modules: loaded from library/ for their functions, or run whole as Ansible runs them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from support import ROOT

import gb10


def load_module(name: str) -> ModuleType:
    """The module's own functions; what it shares with the controller is found where Ansible puts it."""
    sys.modules.setdefault("ansible.module_utils.gb10", gb10)
    spec = importlib.util.spec_from_file_location(name, ROOT / f"library/{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_module(name: str, *more: str, **arguments: Any) -> dict[str, Any]:
    """What ``ansible localhost -m name`` brings back, failures included."""
    command = [Path(sys.executable).parent / "ansible", "localhost", "-i", "localhost,", "-c", "local", "-m", name]
    command += ["-e", f"ansible_python_interpreter={sys.executable}", "-a", json.dumps(arguments), "-o", *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    _host, _, result = done.stdout.partition("=> ")
    assert result, done.stdout + done.stderr
    decoded: dict[str, Any] = json.loads(result)
    return decoded
