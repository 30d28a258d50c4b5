#!/usr/bin/python
"""Keeps on the node what the change history says of it: the newest entry, and what was deployed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_anchor
short_description: The node keeps the newest entry of the change history, and what was deployed on it
description:
  - Writes the anchor to a file of local facts and to the system's log. That is record, not configuration, so it never
    counts as a change, and a node that cannot write it warns instead of stopping a run.
  - With O(record) it also keeps what was deployed, which is a change where it differs.
options:
  anchor: {description: What to keep of the newest entry; empty leaves it., type: dict, default: {}}
  path: {description: Where., type: path, default: /etc/ansible/facts.d/gb10_history.fact}
  record: {description: Text of the record of the deployment; empty writes none., type: str, default: ""}
  record_path: {description: Where., type: path, default: /var/lib/gb10/deployment.json}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: The node knows of this run
  gb10_anchor:
    anchor: "{{ change_history__opened.anchor }}"
"""
RETURN = r"""
kept: {description: Whether the anchor was written., returned: always, type: bool}
"""

import json
import syslog
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gb10 import whole


def write(path, text):
    """For everybody to read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    whole.write(path, text.encode(), durable=True)


def held(path):
    """Text of a file, None where there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def keep(module, anchor, path):
    """Writes the anchor; whether that worked."""
    try:
        write(path, json.dumps(anchor, indent=1, sort_keys=True) + "\n")
    except OSError as problem:
        module.warn(f"{path} cannot be written ({problem.strerror}): this node does not know of this run.")
        return False
    words = " ".join(f"{name}={anchor[name]}" for name in sorted(anchor))
    syslog.openlog("gb10-history")
    syslog.syslog(syslog.LOG_NOTICE, words)
    return True


def main():
    """Entry of the Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "anchor": {"type": "dict", "default": {}},
            "path": {"type": "path", "default": "/etc/ansible/facts.d/gb10_history.fact"},
            "record": {"type": "str", "default": ""},
            "record_path": {"type": "path", "default": "/var/lib/gb10/deployment.json"},
        },
        supports_check_mode=True,
    )
    given = module.params
    record_path = Path(given["record_path"])
    before = held(record_path) if given["record"] else None
    changed = bool(given["record"]) and before != given["record"]
    result = {"changed": changed, "kept": False}
    if changed:
        result["diff"] = {"before": before or "", "after": given["record"], "after_header": str(record_path)}
    if not module.check_mode:
        if changed:
            try:
                write(record_path, given["record"])
            except OSError as problem:
                module.fail_json(msg=f"{record_path} cannot be written: {problem.strerror}.")
        if given["anchor"]:
            result["kept"] = keep(module, given["anchor"], Path(given["path"]))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
