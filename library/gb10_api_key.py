#!/usr/bin/python
"""The API key this node keeps for the head's rank: written whole, removed, or left; never shown."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_api_key
short_description: Keeps the endpoint's API key in a file for root alone
description: The file is what the rank's container gets its key from. In check mode nothing is written.
options:
  key: {description: "The key to keep. Empty: none. Without it what is there is left.", type: str}
  key_file: {description: The file., type: path, default: /var/lib/gb10/api/key.env}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: The API key is kept
  gb10_api_key:
    key: "{{ serve_api_key }}"
"""
RETURN = r"""
key_file: {description: The file that holds a key afterwards; empty where none does., returned: always, type: str}
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gb10 import key_file, whole


def keep(path, key):
    """Makes the file hold the key; without one there is no file, and no directory of its own."""
    if key:
        path.parent.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.parent.chmod(0o700)
        whole.write(path, key_file.text(key).encode(), 0o600, durable=True)
    elif path.parent.is_dir():
        path.unlink(missing_ok=True)
        if not any(path.parent.iterdir()):
            path.parent.rmdir()


def right(path, key):
    """Whether the file is as it should be, its mode too."""
    if not key:
        return not path.exists()
    return key_file.read(str(path)) == key and path.stat().st_mode & 0o777 == 0o600


def main():
    module = AnsibleModule(
        argument_spec={
            "key": {"type": "str", "no_log": True},
            "key_file": {"type": "path", "default": key_file.PATH, "no_log": False},
        },
        supports_check_mode=True,
    )
    path, key = Path(module.params["key_file"]), module.params["key"]
    changed = False
    try:
        changed = key is not None and not right(path, key)
        if changed and not module.check_mode:
            keep(path, key)
        module.exit_json(changed=changed, key_file=str(path) if key_file.read(str(path)) else "")
    except OSError as problem:
        module.fail_json(msg=f"The API key cannot be kept: {problem.filename}: {problem.strerror}", changed=changed)


if __name__ == "__main__":
    main()
