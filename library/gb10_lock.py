#!/usr/bin/python
"""The lock of the cluster: a small file on the head, made, taken over or freed at once or not at all."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_lock
short_description: Takes, reads or frees the lock that keeps two runs apart
description:
  - Whether a lock that is held may be taken over is judged on the controller, by the action of the same name.
  - In check mode nothing is written.
options:
  state: {description: What to do., type: str, choices: [read, taken, free], default: read}
  path: {description: The file. In /run it is gone with a reboot., type: path, default: /run/gb10-lock.json}
  claim: {description: "What to write: who takes it, with the run's id as run.", type: dict, default: {}}
  replace: {description: Run whose lock may be replaced., type: str, default: ""}
  run: {description: Run whose lock is freed; any other is left., type: str, default: ""}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: The lock is taken
  gb10_lock:
    state: taken
    claim: {run: 20261130T120000Z-1, operator: ada, controller: desk}
"""
RETURN = r"""
held: {description: The claim in the file afterwards; null where there is none., returned: always, type: dict}
age: {description: Seconds since it was written., returned: where it is held, type: float}
taken: {description: Whether this call wrote it., returned: with V(taken), type: bool}
"""

import fcntl
import json
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gb10 import whole


def read(path):
    """The claim in the file: None where there is none, empty where it cannot be read as one."""
    try:
        held = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return held if isinstance(held, dict) else {}


def act(params, check):
    """What is asked for, and what is there then."""
    path, result = Path(params["path"]), {"changed": False}
    with path.with_suffix(".guard").open("w") as guard:  # nobody else is between looking and writing
        fcntl.flock(guard, fcntl.LOCK_EX)
        held = read(path)
        if params["state"] == "taken":
            mine = held is None or held.get("run", "unknown") in (params["replace"], params["claim"]["run"])
            if mine and not check:
                whole.write(path, (json.dumps(params["claim"], sort_keys=True) + "\n").encode())
            result |= {"taken": mine, "changed": mine}
        elif params["state"] == "free" and held is not None and held.get("run") == params["run"]:
            result["changed"] = True
            if not check:
                path.unlink()
        result["held"] = read(path)
        if result["held"] is not None:
            result["age"] = max(0.0, time.time() - path.stat().st_mtime)
    return result


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["read", "taken", "free"], "default": "read"},
            "path": {"type": "path", "default": "/run/gb10-lock.json"},
            "claim": {"type": "dict", "default": {}},
            "replace": {"type": "str", "default": ""},
            "run": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**act(module.params, module.check_mode))
    except OSError as problem:
        module.fail_json(msg=f"{module.params['path']}: {problem}")


if __name__ == "__main__":
    main()
