"""What a begin entry holds of the controller: operator, commit, command line, sums of inventory and variables.

Reads files and git of the checkout. Nothing here is a secret: overrides that may be one are named without their value.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from gb10 import checkout
from gb10.plan import canonical
from gb10.redact import HIDDEN, scrub, scrub_text

Document = dict[str, Any]

# Stands for the value of an override that is none of the repository's variables.
UNRECORDED = "(not recorded)"
GIT_SECONDS = 20
EXTRA = ("-e", "--extra-vars")


def controller() -> Document:
    """Who runs this, where."""
    try:
        operator = getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        operator = str(os.getuid())
    return {"operator": operator, "controller": socket.gethostname()}


def commit(root: Path) -> Document:
    """Commit of the checkout; whether tracked files differ from it, and the SHA-256 of that diff. Empty without git."""
    try:
        head = git(root, "rev-parse", "HEAD").decode().strip()
        changes = git(root, "diff", "--binary", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return {"commit": "", "dirty": False, "diff_hash": ""}
    return {"commit": head, "dirty": bool(changes), "diff_hash": sha256(changes).hexdigest() if changes else ""}


def git(root: Path, *words: str) -> bytes:
    """What git says of the checkout."""
    command = ["git", "-C", str(root), "--no-optional-locks", *words]
    return subprocess.run(command, capture_output=True, timeout=GIT_SECONDS, check=True).stdout


def files_hash(paths: Iterable[Path]) -> str:
    """One SHA-256 over all files of ``paths`` (files, or directories with all below), by name and content."""
    parts = {}
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                name = str(file.relative_to(path)) if path.is_dir() else file.name
                parts[f"{path.name}/{name}"] = sha256(file.read_bytes()).hexdigest()
    return sha256(canonical(parts).encode()).hexdigest() if parts else ""


def inventory_paths(sources: Iterable[str]) -> list[Path]:
    """Files and directories among inventory sources; a list of hosts is none."""
    return [Path(source) for source in sources if "," not in source and Path(source).exists()]


def variable_paths(root: Path, sources: Iterable[str]) -> list[Path]:
    """Directories of variables: the checkout's and those beside the inventories."""
    folders = [root]
    folders += [path if path.is_dir() else path.parent for path in inventory_paths(sources)]
    found = [folder / name for folder in dict.fromkeys(folders) for name in ("group_vars", "host_vars")]
    return [path for path in found if path.is_dir()]


def collections(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """Versions of the collections in requirements.yml, as far as ``paths`` hold them."""
    wanted = yaml.load((root / "requirements.yml").read_text(), checkout.LOADER)["collections"]
    found = {}
    for name in (item["name"] for item in wanted):
        for path in paths:
            manifest = Path(path) / "ansible_collections" / name.replace(".", "/") / "MANIFEST.json"
            if manifest.is_file():
                found[name] = str(json.loads(manifest.read_text())["collection_info"]["version"])
                break
    return found


def overrides(given: Mapping[str, Any], ours: Collection[str], known: Iterable[str]) -> tuple[Document, list[str]]:
    """Every override by name, and the names of those whose value is not (wholly) there."""
    shown, hidden = {}, []
    known = tuple(known)
    for name in sorted(given):
        shown[name] = scrub({name: given[name]}, known)[name] if name in ours else UNRECORDED
        if HIDDEN in canonical(shown[name]) or shown[name] == UNRECORDED:
            hidden.append(name)
    return shown, hidden


def command_line(argv: Iterable[str], known: Iterable[str]) -> list[str]:
    """The command as it was typed, without secrets; what ``-e`` gives stands in the overrides."""
    words: list[str] = []
    known = tuple(known)
    for word in argv:
        if words and words[-1] in EXTRA:
            words.append(extra(word))
        elif word.startswith("--extra-vars="):
            words.append("--extra-vars=" + extra(word.partition("=")[2]))
        elif word.startswith("-e") and word not in EXTRA:
            words.append("-e" + extra(word[2:]))
        else:
            words.append(word)
    first = [Path(words[0]).name] if words else []
    cleaned: list[str] = scrub([*first, *(scrub_text(word, known) for word in words[1:])], known)
    return cleaned


def extra(given: str) -> str:
    """A file of overrides by its name; of others the names alone."""
    if given.startswith("@"):
        return given
    if given.lstrip().startswith(("{", "[")):
        return "{...}"
    return " ".join(f"{word.partition('=')[0]}=..." for word in given.split() if "=" in word)


def digests(documents: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of each document."""
    return {name: sha256(canonical(document).encode()).hexdigest() for name, document in documents.items()}


def images(ranks: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Image name to node to what its store calls the image."""
    found: dict[str, dict[str, str]] = {}
    for rank in ranks:
        found.setdefault(str(rank["image"]), {})[str(rank["node"])] = str(rank["image_digest"])
    return found
