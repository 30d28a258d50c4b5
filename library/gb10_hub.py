#!/usr/bin/python
"""A download by Hugging Face's own tool on this node: begun or gone on with, looked at, ended."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_hub
short_description: Files of a repository by the hf tool, resumed, under supervision
description:
  - C(start) begins the download or goes on with the one that runs, waits O(seconds) and says how far it is; the action
    plugin of the same name calls it until it ended. The tool ends when nobody looked for O(lease) seconds.
  - C(stop) ends it. What it brought stays in O(folder) for the next; it is not verified.
options:
  action: {description: What to do., type: str, choices: [start, stop], default: start}
  folder: {description: Where the tool downloads to., type: path, required: true}
  program: {description: Path of the hf tool., type: path}
  repository: {description: "OWNER/NAME on the hub.", type: str}
  revision: {description: "Commit, branch or tag; empty for the default branch.", type: str}
  paths: {description: Files to bring., type: list, elements: str}
  endpoint: {description: "Address of the hub, where it is not the public one.", type: str}
  token: {description: Access token; reaches the tool by its environment only., type: str}
  lease: {description: Seconds the tool lives on when nobody looks., type: int, default: 120}
  seconds: {description: Seconds to wait for the end., type: int, default: 15}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: The checkpoint is downloaded
  gb10_hub:
    folder: /data/models/deepseek-v4.1-flash/.gb10-download
    program: /var/lib/gb10/hub/bin/hf
    repository: deepseek-ai/DeepSeek-V4.1-Flash
    paths: [config.json]
"""
RETURN = r"""
hub: {description: "running, code, have (bytes), said.", returned: start, type: dict}
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gb10 import weights_hub
from ansible.module_utils.gb10.relay.problem import Problem


def main():
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": ["start", "stop"], "default": "start"},
            "folder": {"type": "path", "required": True},
            "program": {"type": "path"},
            "repository": {"type": "str"},
            "revision": {"type": "str", "default": ""},
            "paths": {"type": "list", "elements": "str", "default": []},
            "endpoint": {"type": "str", "default": ""},
            "token": {"type": "str", "default": "", "no_log": True},
            "lease": {"type": "int", "default": 120},
            "seconds": {"type": "int", "default": 15},
        },
        required_if=[("action", "start", ["program", "repository"])],
        supports_check_mode=True,
    )
    p = module.params
    folder = Path(p["folder"])
    if module.check_mode:
        module.exit_json(changed=True, hub={"running": False, "code": 0, "have": 0, "said": ""})
    if p["action"] == "stop":
        weights_hub.stop(folder)
        module.exit_json(changed=True)
    command = weights_hub.argv(p["program"], p["repository"], p["revision"], folder, p["paths"])
    try:
        weights_hub.start(folder, command, weights_hub.environment(folder, p["endpoint"], p["token"]), p["lease"])
    except Problem as problem:
        module.fail_json(msg=f"error [{problem.code}] {problem.text}")
    end = time.monotonic() + p["seconds"]
    while (found := weights_hub.status(folder, p["paths"]))["running"] and time.monotonic() < end:
        time.sleep(0.25)
    module.exit_json(changed=True, hub=found)


if __name__ == "__main__":
    main()
