"""Our Ansible modules: loaded from library/ for their functions, or run whole."""

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


# What Ansible's wrapper does on a node: the module's own process, its arguments, our package where modules find it.
WRAPPER = """
import json, runpy, sys
from ansible import module_utils
from ansible.module_utils.testing import patch_module_args
module_utils.__path__.append(sys.argv[2])
with patch_module_args(json.load(sys.stdin)):
    runpy.run_path(sys.argv[1], run_name="__main__")
"""


def run_module(name: str, *, check: bool = False, **arguments: Any) -> dict[str, Any]:
    """What the module brings back, failures included."""
    given = json.dumps(arguments | {"_ansible_check_mode": check})
    command = [sys.executable, "-c", WRAPPER, ROOT / f"library/{name}.py", ROOT / "src"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    decoded: dict[str, Any] = {"changed": False, **json.loads(done.stdout)}
    return decoded


def run_action(name: str, **arguments: Any) -> dict[str, Any]:
    """What ``ansible localhost -m name`` brings back of an action, which has no process of its own."""
    command = [Path(sys.executable).parent / "ansible", "localhost", "-i", "localhost,", "-c", "local", "-m", name]
    command += ["-e", f"ansible_python_interpreter={sys.executable}", "-a", json.dumps(arguments), "-o"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    _host, _, result = done.stdout.partition("=> ")
    assert result, done.stdout + done.stderr
    decoded: dict[str, Any] = json.loads(result)
    return decoded
