"""The Ansible inventory of the running lab, written as a real cluster's would be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from lab.nodes import USER, Keys, Node


def write(path: Path, nodes: list[Node], keys: Keys, *, engine: Path, weights: Path, images: Path) -> bool:
    """Write the inventory to ``path`` and what this lab brings to group_vars beside it; return whether one changed.

    Args:
        engine: the engine tree on the controller.
        weights: the directory of the checkpoint and its manifest.json on the controller.
        images: the OCI layout with the rank images on the controller.
    """
    # What group_vars/all gives too must stand in group_vars beside the inventory: that wins over it, the file does not.
    sources = {"lab_engine_dir": engine, "weights_source": weights, "images_source": images}
    texts = {
        path: render(nodes, keys),
        path.parent / "group_vars" / "lab.yml": lines_of({name: str(place) for name, place in sources.items()}),
    }
    return put(texts)


def put(texts: Mapping[Path, str]) -> bool:
    """Write each text to its path; return whether one was not there yet."""
    if all(target.exists() and target.read_text() == text for target, text in texts.items()):
        return False
    for target, text in texts.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return True


def lines_of(variables: Mapping[str, str | int], indent: str = "") -> str:
    """Variables as YAML lines. A JSON scalar is a YAML scalar, quoted where it must be."""
    return "".join(f"{indent}{name}: {json.dumps(value)}\n" for name, value in variables.items())


def render(
    nodes: list[Node], keys: Keys, group: str = "lab", own: Mapping[str, Mapping[str, str | int]] | None = None
) -> str:
    """Return the inventory as YAML.

    Args:
        nodes: the hosts, with their ranks.
        keys: the ssh keys, whose paths the login variables name.
        group: the child of group gb10 that holds them.
        own: further variables, by node.
    """
    variables: dict[str, str | int] = {
        "ansible_user": USER,
        "ansible_ssh_private_key_file": str(keys.login),
        "ansible_ssh_common_args": " ".join(keys.options()),
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_group_priority": 100,
    }
    lines = ["# Written by `python -m lab up`.", "gb10:", "  children:", f"    {group}:", "      hosts:"]
    for node in nodes:
        lines.append(f"        {node.name}:")
        lines += [f"          ansible_host: {node.address}", f"          node_rank: {node.rank}"]
        lines += [f"          ansible_port: {node.port}"] if node.port != 22 else []
        lines += lines_of((own or {}).get(node.name, {}), indent="          ").splitlines()
    lines.append("      vars:")
    return "\n".join(lines) + "\n" + lines_of(variables, indent="        ")
