"""What nodes are prepared for, as tests need it: the roles' defaults with changes, and facts that show all of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from gb10_node import NodeTree
from support import ROOT

from gb10.checkout import role_defaults
from gb10.prepared import NAMES, Prepared, look, read_prepared
from gb10.todo import node_todo


def settings(**changes: Any) -> dict[str, Any]:
    """Variables of one node: role defaults and these."""
    return {name: value for name, value in role_defaults(ROOT).items() if name in NAMES} | changes


def wanted(**changes: Any) -> Prepared:
    """The same, parsed."""
    prepared, findings = read_prepared(settings(**changes), "spark-153")
    assert prepared, findings
    return prepared


def looked(tmp_path: Path, tree: NodeTree, **changes: Any) -> dict[str, Any]:
    """Facts of a recorded node, with all that these settings need to be seen."""
    return tree.facts(tmp_path, **look(settings(**changes)))


def acted(tree: NodeTree, facts: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
    """The node's facts after the roles did what there was to do to files, sysctls, packages and directories."""
    done = {**facts, "files": dict(facts["files"]), "sysctls": dict(facts["sysctls"])}
    root = {"exists": True, "owner": "root", "group": "root", "modified": 1}
    for todo in node_todo(facts, prepared).values():
        for folder in [*todo.get("directories", []), todo.get("cache")]:
            done["files"][folder] = {**root, "kind": "directory", "mode": "0755", "sha256": None}
        for file in todo.get("files", []):
            total = hashlib.sha256(file["content"].encode()).hexdigest()
            done["files"][file["path"]] = {**root, "kind": "file", "mode": file["mode"], "sha256": total}
        done["sysctls"] |= todo.get("sysctls", {})
        done["packages"] = {**done["packages"], **dict.fromkeys(todo["packages"], "1.0")}
    return done
