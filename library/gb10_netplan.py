#!/usr/bin/python
"""Writes a netplan file only if netplan accepts all files together, and applies it only if the node stays reachable."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_netplan
short_description: A netplan file, checked before it is written and rolled back when it cuts the node off
description:
  - The file is written with mode 0600 after C(netplan generate) accepted it together with all other files, in a
    directory of its own.
  - With O(apply) it is applied then. If within O(timeout) the addresses of O(expect) do not come, one that was there
    before is gone, or whoever is logged in by ssh can no longer be reached, the old file comes back, is applied, and
    the module fails. This is decided on the node, so that it also happens when the connection is lost.
options:
  path: {description: The file., type: path, required: true}
  content: {description: Its text., type: str, required: true}
  apply: {description: Apply it now., type: bool, default: false}
  expect: {description: IPv4 addresses the node has after it., type: list, elements: str, default: []}
  timeout: {description: Seconds each step may take., type: int, default: 60}
attributes:
  check_mode: {description: Can run in check mode and predicts., support: full}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: The rails have their addresses
  gb10_netplan:
    path: /etc/netplan/60-gb10-fabric.yaml
    content: "{{ text }}"
"""
RETURN = r"""
applied: {description: Whether netplan was applied., returned: always, type: bool}
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gb10 import whole

FOLDERS = ("lib/netplan", "etc/netplan", "run/netplan")
EXCERPT = 300


class Cut(Exception):
    """What is wrong after netplan was applied."""


def run(argv, timeout):
    """``(succeeded, last line of what it said)``."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.SubprocessError) as problem:
        return False, str(problem)
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error|invalid|unknown", line, re.IGNORECASE)]
    return done.returncode == 0, (errors or lines or [""])[-1][:EXCERPT]


def checked(netplan, path, content, timeout):
    """What netplan says against all files with this one among them; empty when it accepts them."""
    with tempfile.TemporaryDirectory() as scratch:
        for folder in FOLDERS:
            target = Path(scratch) / folder
            target.mkdir(parents=True)
            for source in Path("/", folder).glob("*.yaml"):
                shutil.copy(source, target / source.name)
        write(Path(scratch) / str(path).lstrip("/"), content)
        accepted, said = run([netplan, "generate", "--root-dir", scratch], timeout)
        return "" if accepted else said.replace(scratch, "")


def write(path, content):
    """Root's alone. What is beside it meanwhile is no *.yaml: netplan does not read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole.write(path, content.encode(), 0o600, durable=True)


def addresses():
    """IPv4 address -> its interface."""
    done = subprocess.run(
        ["ip", "-json", "-4", "address", "show"], capture_output=True, text=True, timeout=30, check=False
    )
    found = {}
    with contextlib.suppress(ValueError):
        for link in json.loads(done.stdout or "[]"):
            found.update({entry["local"]: link["ifname"] for entry in link.get("addr_info", [])})
    return found


def ssh_client():
    """Who is logged in by ssh here: the address in the environment of a process above this one; sudo takes it out."""
    pid = os.getpid()
    while pid > 1:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                name, _, value = entry.decode(errors="replace").partition("=")
                if name == "SSH_CONNECTION" and value:
                    return value.split()[0]
        try:
            pid = int(re.search(r"^PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE).group(1))
        except (OSError, AttributeError):
            return ""
    return ""


def answers(address):
    """Whether the address answers a ping."""
    return bool(address) and run(["ping", "-n", "-q", "-c", "1", "-W", "2", address], 10)[0]


def wait_whole(before, client, expect, timeout):
    """Wait until the node is as it should be. Raises Cut with what is missing."""
    end = time.monotonic() + timeout
    while True:
        held = addresses()
        lost = sorted(set(before) - set(held))
        missing = sorted(set(expect) - set(held))
        silent = bool(client) and not answers(client)
        if not lost and not missing and not silent:
            return
        if time.monotonic() > end:
            words = [f"{', '.join(missing)} did not come"] if missing else []
            words += [f"{', '.join(lost)} went"] if lost else []
            words += [f"{client}, logged in by ssh, was cut off"] if silent else []
            raise Cut("; ".join(words))
        time.sleep(1)


def main():
    """Entry of the Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "content": {"type": "str", "required": True},
            "apply": {"type": "bool", "default": False},
            "expect": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    p = module.params
    path = Path(p["path"])
    netplan = module.get_bin_path("netplan")
    if not netplan:
        module.fail_json(msg="error [netplan-missing] netplan is not there. Install netplan.io.")
    old = path.with_name(f".{path.name}.old")  # a second name of the old file: to go back takes no space on the disk
    try:
        there = path.exists()
        differs = not there or path.read_bytes() != p["content"].encode() or path.stat().st_mode & 0o777 != 0o600
        said = checked(netplan, path, p["content"], p["timeout"])
    except OSError as problem:
        module.fail_json(msg=f"error [netplan-unwritten] {path} was not written: {problem}.")
    if said:
        module.fail_json(msg=f"error [netplan-refused] {path} was not written: netplan says: {said}")
    if module.check_mode or not (differs or p["apply"]):
        module.exit_json(changed=differs or p["apply"], applied=False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the connection may go; what was begun is ended
    before = {a for a, name in addresses().items() if name not in p["content"]}
    client = ssh_client()
    client = client if answers(client) else ""
    try:
        old.unlink(missing_ok=True)
        if there:
            old.hardlink_to(path)
        write(path, p["content"])
    except OSError as problem:
        old.unlink(missing_ok=True)
        module.fail_json(msg=f"error [netplan-unwritten] {path} was not written: {problem}.")
    if p["apply"]:
        try:
            applied, said = run([netplan, "apply"], p["timeout"])
            if not applied:
                raise Cut(f"netplan apply failed: {said}")
            wait_whole(before, client, p["expect"], p["timeout"])
        except Cut as cut:
            if there:
                old.replace(path)
            else:
                path.unlink()
            back, _said = run([netplan, "apply"], p["timeout"])
            how = "the old files are in force again" if back else "the old files are back but could not be applied"
            module.fail_json(msg=f"error [netplan-rolled-back] {path}: {cut}; {how}.")
    old.unlink(missing_ok=True)
    module.exit_json(changed=True, applied=p["apply"])


if __name__ == "__main__":
    main()
