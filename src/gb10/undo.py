"""The way back: from a node's record of what was there before (library/gb10_original.py) to what must be put back.

What somebody else changed since we wrote it is left as it is and said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gb10.findings import Finding, line, warning
from gb10.todo import CDI, CONTAINERD, DAEMON_JSON

Document = Mapping[str, Any]

# A file of these makes Docker restart when it is put back.
DOCKER_READS = (DAEMON_JSON, CONTAINERD, CDI)


def undo_todo(
    node: str, items: Mapping[str, Document], directory: str, containers: int, packages: bool = True
) -> dict[str, Any]:
    """What to do on one node, by kind, ``notify`` (handlers) and ``said`` (one line a finding).

    ``items``: the record, each item with ``was``, ``ours`` and ``now``; ``directory``: where copies lie;
    ``containers``: how many the node has, which keep Docker installed; ``packages``: whether any are removed.
    ``forget`` are the items that are as they were once this is done.
    """
    todo: dict[str, Any] = {
        "units": [], "files": [], "links": [], "absent": [], "directories": [], "sysctls": [],
        "packages": [], "members": [], "linger": [], "fstab": [], "forget": [],
    }  # fmt: skip
    said: list[Finding] = []
    for _key, item in sorted(items.items(), reverse=True):  # a directory after what lies in it
        kept = put_back(todo, item, directory, containers, packages)
        if kept:
            said.append(replace(kept, node=node))
        if not kept or kept.code == "disk-formatted":
            todo["forget"].append({"kind": item["kind"], "name": item["name"]})
    changed = [*todo["absent"], *(file["path"] for file in [*todo["files"], *todo["links"]])]
    stopped = [unit["name"] for unit in todo["units"] if not unit["active"]]
    engine = "docker.service" not in stopped and not any(name.startswith("docker") for name in todo["packages"])
    todo["notify"] = [
        handler
        for handler, needed in (
            ("Systemd knows its units", any(path.startswith("/etc/systemd/system/") for path in changed)),
            ("Containerd restarts", CONTAINERD in changed and engine),
            ("Docker restarts", bool(set(changed) & set(DOCKER_READS)) and engine),
            ("Logind restarts", any(path.startswith("/etc/systemd/logind.conf.d/") for path in changed)),
        )
        if needed
    ]
    todo["said"] = [line(finding) for finding in said]
    return todo


def put_back(todo: dict[str, Any], item: Document, directory: str, containers: int, packages: bool) -> Finding | None:
    """Add what one item needs to ``todo``; a warning where it is left as it is."""
    kind, name, was, now, ours = (item[key] for key in ("kind", "name", "was", "now", "ours"))
    if kind == "disk":
        message = f"{name} was formatted on {item['since']}."
        return warning("disk-formatted", message, "That has no way back; the file system and its data stay.")
    if was == now:
        return None
    if kind == "file":
        return file_back(todo, item, directory)
    if kind == "directory":
        if not was["exists"]:
            todo["directories"].append(name)
    elif kind == "sysctl":
        if now not in ours:
            return foreign(f"{name} is {now}, which is not ours ({', '.join(ours)}); it was {was}")
        todo["sysctls"].append({"name": name, "value": was})
    elif kind == "unit":
        todo["units"].append({"name": name, "enabled": was["enabled"], "active": was["active"], "there": now["exists"]})
    elif kind == "package":
        if now is None or was is not None:  # gone, or upgraded since: not ours to turn back
            return None
        if not packages:
            return warning(
                "package-kept",
                f"{name} was installed by us.",
                "Remove it by hand, or without unprepare_packages=false.",
            )
        if name.startswith("docker") and containers:
            message = f"{name} was installed by us, and {containers} containers are on the node."
            return warning("package-kept", message, "Remove the containers, then run this again.")
        todo["packages"].append(name)
    elif kind == "member":
        group, _, user = name.partition("/")
        if not was:
            todo["members"].append({"group": group, "user": user})
    elif kind == "linger":
        if not was:
            todo["linger"].append(name)
    elif kind == "fstab":
        return fstab_back(todo, item)
    return None


def file_back(todo: dict[str, Any], item: Document, directory: str) -> Finding | None:
    """A file as it was, unless somebody changed it after us."""
    name, was, now, ours = (item[key] for key in ("name", "was", "now", "ours"))
    if now["exists"] and now.get("sha256") not in (*ours, was.get("sha256")):
        return foreign(f"{name} was changed after it was written here")
    if not now["exists"] and ours and was["exists"]:
        return foreign(f"{name} was removed after it was written here")
    owned = {key: was.get(key) for key in ("mode", "owner", "group")}
    if was.get("link"):
        todo["links"].append({"path": name, "src": was["link"]})
    elif was["exists"]:
        todo["files"].append({"path": name, "held": f"{directory}/{was['sha256']}", **owned})
    elif now["exists"]:
        todo["absent"].append(name)
    return None


def fstab_back(todo: dict[str, Any], item: Document) -> Finding | None:
    """The line of a mount point as it was; unmounted where nothing was mounted."""
    name, was, now, ours = (item[key] for key in ("name", "was", "now", "ours"))
    if now["line"] not in (None, was["line"], *ours):
        return foreign(f"The line of {name} in /etc/fstab was changed after it was written here")
    fields = (was["line"] or "").split()
    entry = dict(zip(("src", "path", "fstype", "opts", "dump", "passno"), fields, strict=False)) if fields else {}
    unmount = now["mounted"] and not was["mounted"]
    todo["fstab"].append({"path": name, "entry": entry, "unmount": unmount})
    return None


def foreign(what: str) -> Finding:
    """Left as it is, with the original in the record."""
    return warning(
        "original-kept", f"{what}: it stays.", "Put it back by hand; the original is in /var/lib/gb10/originals."
    )
