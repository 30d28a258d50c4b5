#!/usr/bin/python
"""Compares a checkpoint on this node with its manifest; what was hashed once is not hashed again until it changes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_weights
short_description: Which files of a checkpoint are missing or wrong
description:
  - Size and sha256 of every file against the manifest. A receipt beside the checkpoint remembers what was hashed by
    size, times and inode, so that a second look costs no reading.
  - Symbolic links are wrong by themselves, for a copied link carries no weights.
  - Writes nothing but the receipt, and that not in check mode; never reports a change.
options:
  path: {description: Directory of the checkpoint., type: path, required: true}
  files: {description: "Manifest: list of {path, size, sha256}.", type: list, elements: dict, required: true}
  verify_all: {description: Hash every file again., type: bool, default: false}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: The checkpoint is compared with the manifest
  gb10_weights:
    path: /data/models/deepseek-v4.1-flash
    files: "{{ (lookup('file', 'manifest.json') | from_json).files }}"
"""
RETURN = r"""
wrong: {description: Paths to bring again., returned: always, type: list}
reasons: {description: Why, by path., returned: always, type: dict}
hashed: {description: Files that were read., returned: always, type: int}
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

RECEIPT = ".gb10-verified.json"
CHUNK = 1 << 22  # bytes


def sha256(path):
    """Hex digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def receipt_of(folder):
    """What was hashed before; empty when there is no readable receipt."""
    try:
        seen = json.loads((folder / RECEIPT).read_text())
    except (OSError, ValueError):
        return {}
    return seen if isinstance(seen, dict) else {}


def write_receipt(folder, seen):
    """Atomically."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=RECEIPT)
    with os.fdopen(handle, "w") as stream:
        json.dump(seen, stream, sort_keys=True)
    Path(name).replace(folder / RECEIPT)


def compare(folder, files, verify_all):
    """Reasons by path, the new receipt, and how many files were read."""
    before = {} if verify_all else receipt_of(folder)
    reasons, seen, hashed = {}, {}, 0
    for entry in files:
        name = entry["path"]
        path = folder / name
        if path.is_symlink():
            reasons[name] = "a symbolic link"
            continue
        try:
            stat = path.stat()
        except FileNotFoundError:
            reasons[name] = "missing"
            continue
        if not path.is_file():
            raise NotADirectoryError(f"{path} is no file")
        if stat.st_size != int(entry["size"]):
            reasons[name] = f"{stat.st_size} bytes, not {entry['size']}"
            continue
        mark = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        known = before.get(name)
        if known and known[:-1] == mark:
            digest = known[-1]
        else:
            digest, hashed = sha256(path), hashed + 1
        seen[name] = [*mark, digest]
        if digest != entry["sha256"]:
            reasons[name] = f"sha256 {digest[:12]}, not {entry['sha256'][:12]}"
    return reasons, seen, hashed


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "files": {"type": "list", "elements": "dict", "required": True},
            "verify_all": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    p = module.params
    for entry in p["files"]:
        if entry["path"].startswith("/") or ".." in entry["path"].split("/"):
            module.fail_json(
                msg=f"error [manifest-path] {entry['path']}: a manifest names files under the checkpoint only."
            )
    folder = Path(p["path"])
    try:
        reasons, seen, hashed = compare(folder, p["files"], p["verify_all"])
    except OSError as problem:
        module.fail_json(
            msg=f"error [weights-blocked] {problem}: a file of the checkpoint belongs there. Look, and move it away."
        )
    if hashed and not module.check_mode:
        write_receipt(folder, seen)
    module.exit_json(changed=False, wrong=sorted(reasons), reasons=reasons, hashed=hashed)


if __name__ == "__main__":
    main()
