#!/usr/bin/python
"""A checkpoint on this node: compared with its manifest, brought from a directory, staged for Engram, cleaned up."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_weights
short_description: A checkpoint on a node against its manifest
description:
  - C(look) compares size and sha256 of every file with the manifest. A receipt beside the checkpoint remembers what was
    read by size, times and inode, so that a second look costs no reading; the relay writes and believes the same one.
    Symbolic links are wrong by themselves, for a copied link carries no weights. Writes nothing but the receipt, and
    that not in check mode.
  - C(import) puts the files O(paths) of O(source) to their places, each when all its bytes were read and are right.
  - C(stage) writes this rank's rows of the Engram tables into a file of their own, unless it is there and right.
  - C(prune) removes what no manifest names, C(look) with O(prune) lists it.
options:
  action: {description: What to do., type: str, choices: [look, import, stage, prune], default: look}
  node: {description: "Inventory name of this node, for errors.", type: str, default: ""}
  path: {description: Directory of the checkpoint., type: path, required: true}
  files: {description: "Manifest: list of {path, size, sha256}.", type: list, elements: dict, required: true}
  read:
    description: Which files are read (look). C(none) believes receipts; C(changed) reads those without one; C(all) all.
    type: str
    choices: [none, changed, all]
    default: changed
  reserve: {description: Bytes that stay free on a disk., type: int, default: 0}
  judge_room: {description: Refuse what does not fit (look)., type: bool, default: false}
  source: {description: Directory to bring files from (import)., type: path}
  paths: {description: Which files (import)., type: list, elements: str}
  move: {description: Move the files; the directory is ours and on the same file system (import)., type: bool}
  stage: {description: "What to stage (look, stage): {rank, tensor_parallel, rows, folder, pattern}.", type: dict}
  prune: {description: List what no manifest names (look)., type: bool, default: false}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: The checkpoint is compared with the manifest
  gb10_weights:
    path: /data/models/deepseek-v4.1-flash
    files: "{{ (lookup('file', 'manifest.json') | from_json).files }}"
"""
RETURN = r"""
wrong: {description: Paths to bring again., returned: look, type: list}
reasons: {description: Why, by path., returned: look, type: dict}
unread: {description: Paths of the right size whose bytes were not read (O(read=none))., returned: look, type: list}
hashed: {description: Files that were read., returned: look, type: int}
missing: {description: Bytes still to be written., returned: look, type: int}
free: {description: Bytes free on the file system where the checkpoint is or would be., returned: look, type: int}
unnamed: {description: Files no manifest names., returned: look and prune, type: list}
staged: {description: The staged file., returned: stage, type: dict}
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gb10 import weights_files, weights_stage
from ansible.module_utils.gb10.relay.index import checked
from ansible.module_utils.gb10.relay.problem import Problem
from ansible.module_utils.gb10.relay.receipt import read_receipts, write_receipts


def look(p, check_mode):
    """Nothing changes but the receipt."""
    folder = Path(p["path"])
    found, seen = weights_files.compare(folder, p["files"], p["read"])
    if found.hashed and not check_mode and seen != read_receipts(folder):
        write_receipts(folder, seen)
    result = found.as_dict() | {"free": weights_files.free(folder)}
    if p["judge_room"]:
        weights_files.room(folder, found.missing, p["reserve"], "weights")
    if p["stage"]:
        result["stage"] = weights_stage.lacking(
            folder, p["files"], p["stage"], found.missing, p["reserve"], keep=not check_mode
        )
    if p["prune"]:
        result["unnamed"] = weights_files.unnamed(folder, p["files"])
    return result


def bring(p, check_mode):
    """Files of a directory take their places."""
    entries = [entry for entry in checked(p["files"]) if entry[0] in p["paths"]]
    source, folder = Path(p["source"]), Path(p["path"])
    weights_files.at_hand(source, entries)
    weights_files.room(folder, sum(size for _path, size, _sha256 in entries), p["reserve"], "weights")
    if entries and not check_mode:
        weights_files.bring(source, folder, entries, p["move"])
    return {"changed": bool(entries)}


def stage(p, check_mode):
    """This rank's rows in a file of their own."""
    folder = Path(p["path"])
    if not weights_stage.lacking(folder, p["files"], p["stage"], 0, p["reserve"], keep=not check_mode):
        return {}
    staged = {} if check_mode else weights_stage.stage(folder, p["files"], p["stage"])
    return {"changed": True, "staged": staged}


def prune(p, check_mode):
    """What no manifest names is gone."""
    folder = Path(p["path"])
    found = weights_files.unnamed(folder, p["files"])
    if not check_mode:
        weights_files.remove(folder, found)
    return {"changed": bool(found), "unnamed": found}


ACTIONS = {"look": look, "import": bring, "stage": stage, "prune": prune}


def main():
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": ["look", "import", "stage", "prune"], "default": "look"},
            "node": {"type": "str", "default": ""},
            "path": {"type": "path", "required": True},
            "files": {"type": "list", "elements": "dict", "required": True},
            "read": {"type": "str", "choices": ["none", "changed", "all"], "default": "changed"},
            "reserve": {"type": "int", "default": 0},
            "judge_room": {"type": "bool", "default": False},
            "source": {"type": "path"},
            "paths": {"type": "list", "elements": "str", "default": []},
            "move": {"type": "bool", "default": False},
            "stage": {"type": "dict", "default": {}},
            "prune": {"type": "bool", "default": False},
        },
        required_if=[("action", "import", ["source"]), ("action", "stage", ["stage"])],
        supports_check_mode=True,
    )
    where = f"{module.params['node']}: " if module.params["node"] else ""
    try:
        result = ACTIONS[module.params["action"]](module.params, module.check_mode)
    except Problem as problem:
        module.fail_json(msg=f"error [{problem.code}] {where}{problem.text}")
    except OSError as problem:
        what = f"{problem.filename or module.params['path']}: {problem.strerror or problem}"
        module.fail_json(msg=f"error [weights-blocked] {where}{what}. Look there, and run again.")
    module.exit_json(**({"changed": False} | result))


if __name__ == "__main__":
    main()
