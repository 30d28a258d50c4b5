#!/usr/bin/python
"""Keeps on the node what was there before our first change, writes our files, and tells what was for the way back."""

from __future__ import annotations

import contextlib
import grp
import hashlib
import json
import pwd
import re
import shutil
import stat
import subprocess
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gb10 import whole

DOCUMENTATION = r"""
---
module: gb10_original
short_description: Keep what was on a node before the first change, and write our files
description:
  - With O(state=kept) adds items to the node's record, each with its state of now. An item that is in the record
    already keeps the state it has there, so the first state is the original one; what we write (RV(items)) is added.
  - With O(state=read) returns the record, each item with its state then (C(was)) and now (C(now)).
  - With O(state=forgotten) takes items out, after they were put back; the last one takes the record with it.
  - With O(directories) and O(files) these are then made and written, root's; none before it is on record. Nothing else
    outside of the record's directory is ever changed.
options:
  directories:
    description: Directories that are made where they are not there, outermost first, with mode 0755.
    type: list
    elements: path
    default: []
  files:
    description: Files as they should be, each written whole or not at all.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where.
        type: path
        required: true
      content:
        description: The text.
        type: str
        required: true
      mode:
        description: Four octal digits.
        type: str
        default: "0644"
  items:
    description:
      - Each C(kind) and C(name), and C(ours) where what we write is known before - the sha256 of a file, the value of
        a sysctl, the line of an fstab entry. An C(ours) of V(now) is the sum the file has now, for files that a
        program writes.
      - Kinds are C(file), C(directory) (names are paths), C(sysctl), C(unit) (of systemd), C(package) (of dpkg),
        C(member) (C(group/user)), C(linger) (a user), C(fstab) (a mount point), C(disk) (formatted: no way back).
    type: list
    elements: dict
    default: []
  state:
    description: What to do with the record.
    type: str
    choices: [kept, read, forgotten]
    default: kept
  directory:
    description: Where the record is kept.
    type: path
    default: /var/lib/gb10/originals
attributes:
  check_mode:
    description: Can run in check mode and predicts.
    support: full
  diff_mode:
    description: Tells what changes in files.
    support: full
author:
  - gb10-cluster (@gb10-cluster)
"""

EXAMPLES = r"""
- name: What was there before is on record
  gb10_original:
    items:
      - {kind: file, name: /etc/docker/daemon.json, ours: "<sha256>"}
      - {kind: sysctl, name: vm.min_free_kbytes, ours: "1048576"}
    files:
      - {path: /etc/docker/daemon.json, content: "{}\n"}

- name: The record is known
  gb10_original:
    state: read
  register: original
"""

RETURN = r"""
items:
  description: The record by C(kind:name), each with C(kind), C(name), C(was), C(ours), C(since), C(now).
  returned: when O(state=read)
  type: dict
directory:
  description: Where copies of files lie, named by their sha256.
  returned: always
  type: str
"""

KINDS = ("file", "directory", "sysctl", "unit", "package", "member", "linger", "fstab", "disk")
SECONDS = 30


# --- states: what a kind of thing is like now ------------------------------------------------------------------------


def read_path(name):
    """A file or directory: whether it is there, its sum, mode and owners (names; numbers without one)."""
    path = Path(name)
    try:
        status = path.lstat()
    except OSError:
        return {"exists": False}
    state = {"exists": True, "mode": f"{stat.S_IMODE(status.st_mode):04o}"}
    state["owner"], state["group"] = str(status.st_uid), str(status.st_gid)
    with contextlib.suppress(KeyError):
        state["owner"] = pwd.getpwuid(status.st_uid).pw_name
    with contextlib.suppress(KeyError):
        state["group"] = grp.getgrgid(status.st_gid).gr_name
    if stat.S_ISLNK(status.st_mode):
        state["link"] = str(path.readlink())
    elif stat.S_ISREG(status.st_mode):
        state["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return state


def read_sysctl(name):
    """The value as text with single spaces, None where the kernel has none."""
    try:
        return " ".join(Path("/proc/sys/" + name.replace(".", "/")).read_text().split())
    except OSError:
        return None


def read_unit(name):
    """Whether systemd has the unit, starts it at boot, runs it."""
    said = command(["systemctl", "show", "--property=LoadState,UnitFileState,ActiveState", name])
    told = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    return {
        "exists": told.get("LoadState") not in (None, "", "not-found"),
        "enabled": told.get("UnitFileState") in ("enabled", "enabled-runtime"),
        "active": told.get("ActiveState") in ("active", "activating", "reloading"),
    }


def read_package(name):
    """The installed version, None without."""
    said = command(["dpkg-query", "--show", "--showformat=${db:Status-Abbrev} ${Version}", name])
    return said.split()[-1] if said.startswith("ii") else None


def read_member(name):
    """Whether the user is in the group (``group/user``), by the group's own list."""
    group, _, user = name.partition("/")
    try:
        return user in grp.getgrnam(group).gr_mem
    except KeyError:
        return False


def read_fstab(name):
    """The line of a mount point in /etc/fstab and whether something is mounted there."""
    lines = [line for line in Path("/etc/fstab").read_text().splitlines() if target_of(line) == name]
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return {"line": " ".join(lines[-1].split()) if lines else None, "mounted": name in mounted}


def target_of(line):
    """The mount point of a line of fstab; None of a comment."""
    fields = line.split()
    return fields[1] if len(fields) > 3 and not fields[0].startswith("#") else None


def command(argv):
    """What a command printed; empty where it is missing or fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def state_of(kind, name):
    """The state of one thing now; None for what has no way back."""
    readers = {
        "file": read_path,
        "directory": read_path,
        "sysctl": read_sysctl,
        "unit": read_unit,
        "package": read_package,
        "member": read_member,
        "linger": lambda user: Path(f"/var/lib/systemd/linger/{user}").exists(),
        "fstab": read_fstab,
        "disk": lambda _name: None,
    }
    return readers[kind](name)


# --- the record ------------------------------------------------------------------------------------------------------


class Record:
    """``originals.json`` and the copies of files beside it."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.file = self.directory / "originals.json"
        self.items = json.loads(self.file.read_text())["items"] if self.file.exists() else {}

    def keep(self, kind, name, ours, now):
        """Add an item, or to an item what we write. Returns whether that is new."""
        key = f"{kind}:{name}"
        if ours == "now":
            ours = now.get("sha256")
        if key not in self.items:
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self.items[key] = {"kind": kind, "name": name, "was": now, "ours": [], "since": since}
        elif ours is None or ours in self.items[key]["ours"]:
            return False
        if ours is not None:
            self.items[key]["ours"].append(ours)
        return True

    def save(self):
        """Copies first, then the record whole or not at all; what is no longer needed is gone."""
        if not self.items:
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        copies = {copy: item for item in self.items.values() if (copy := self.copy_of(item))}
        for path in self.directory.iterdir():
            if path not in (self.file, *copies):
                path.unlink()
        for copy, item in copies.items():
            if not copy.exists():
                data = Path(item["name"]).read_bytes()
                if hashlib.sha256(data).hexdigest() != copy.name:
                    raise ValueError(f"{item['name']} changed while it was read; run again.")
                write(copy, data)
        text = json.dumps({"schema": 1, "items": self.items}, indent=2, sort_keys=True) + "\n"
        write(self.file, text.encode())

    def copy_of(self, item):
        """Where the original's content is kept; None where there was no file."""
        was = item["was"]
        return self.directory / was["sha256"] if item["kind"] == "file" and was.get("sha256") else None


def write(path, data):
    """A file of root's eyes only."""
    whole.write(path, data, 0o600, durable=True)


# --- our files -------------------------------------------------------------------------------------------------------


class Ours:
    """One of our files: what is there (``held``) and what should be."""

    def __init__(self, file):
        self.path, self.data = Path(file["path"]), file["content"].encode()
        self.mode = int(file["mode"], 8)
        self.held = read_path(self.path)
        owned = {"mode": f"{self.mode:04o}", "owner": "root", "group": "root"}
        self.wanted = {"exists": True, **owned, "sha256": hashlib.sha256(self.data).hexdigest()}

    def diff(self):
        """The two texts; who may read it, where that alone differs."""
        before = self.path.read_text(errors="replace") if self.held.get("sha256") else ""
        sides = [before, self.data.decode()]
        if self.held.get("sha256") == self.wanted["sha256"]:
            sides = [f"{state['mode']} {state['owner']}:{state['group']}\n" for state in (self.held, self.wanted)]
        if self.held.get("link"):
            sides[0] = f"-> {self.held['link']}\n"
        return {"before": sides[0], "after": sides[1], "before_header": str(self.path), "after_header": str(self.path)}

    def write(self):
        """A link is replaced, not followed."""
        whole.write(self.path, self.data, self.mode, durable=True, root=True)


class Folder:
    """One of our directories, not there yet."""

    def __init__(self, path):
        self.path = path

    def diff(self):
        """It appears."""
        return {"before": "", "after": "a directory\n", "after_header": str(self.path)}

    def write(self):
        """For all to read, whatever the umask."""
        self.path.mkdir()
        self.path.chmod(0o755)


def lay(directories, files, check_mode):
    """Our directories made, our files written where they differ: the diffs of what was done, what ended it or None."""
    lacking = [Folder(folder) for folder in map(Path, dict.fromkeys(directories)) if not folder.exists()]
    lacking += [ours for ours in map(Ours, files) if ours.held != ours.wanted]
    diffs = [one.diff() for one in lacking]
    for done, one in enumerate(lacking if not check_mode else []):
        try:
            one.write()
        except OSError as problem:
            return diffs[:done], problem
    return diffs, None


def checked(items):
    """``[(kind, name, ours)]``. Raises ValueError for what is none."""
    found = []
    for item in items:
        kind, name = item.get("kind"), item.get("name")
        if kind not in KINDS or not isinstance(name, str) or not name or set(item) - {"kind", "name", "ours"}:
            raise ValueError(f"{item} is no item: give kind (one of {', '.join(KINDS)}), name, and ours or nothing.")
        if kind in ("file", "directory", "fstab") and not re.match(r"/[^/]", name):
            raise ValueError(f"{kind} {name} is no absolute path.")
        found.append((kind, name, item.get("ours")))
    return found


def main():
    """Entry of the Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "items": {"type": "list", "elements": "dict", "default": []},
            "state": {"type": "str", "choices": ["kept", "read", "forgotten"], "default": "kept"},
            "directory": {"type": "path", "default": "/var/lib/gb10/originals"},
            "directories": {"type": "list", "elements": "path", "default": []},
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str", "required": True},
                    "mode": {"type": "str", "default": "0644"},
                },
            },
        },
        supports_check_mode=True,
    )
    directory, state = module.params["directory"], module.params["state"]
    try:
        wanted = checked(module.params["items"])
        record = Record(directory)
        if state == "read":
            items = {k: {**item, "now": state_of(item["kind"], item["name"])} for k, item in record.items.items()}
            module.exit_json(changed=False, items=items, directory=directory)
        if state == "kept":
            changed = [record.keep(kind, name, ours, state_of(kind, name)) for kind, name, ours in wanted]
        else:
            changed = [record.items.pop(f"{kind}:{name}", None) is not None for kind, name, _ours in wanted]
        if any(changed) and not module.check_mode:
            record.save()
    except (OSError, ValueError, KeyError, TypeError) as problem:
        module.fail_json(msg=f"error [original-unkept] {directory}: {problem} Nothing else was changed by this step.")
    diffs, problem = [], None
    if state == "kept":
        try:
            diffs, problem = lay(module.params["directories"], module.params["files"], module.check_mode)
        except (OSError, ValueError) as unread:
            problem = unread
    told = {"changed": any(changed) or bool(diffs), "directory": directory, "diff": diffs}
    if problem:
        module.fail_json(msg=f"error [file-unwritten] {problem}. What was there is on record in {directory}.", **told)
    module.exit_json(**told)


if __name__ == "__main__":
    main()
