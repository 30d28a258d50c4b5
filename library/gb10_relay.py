#!/usr/bin/python
"""Brings a directory's files to many nodes in a line: tasks start each node's relay, look at it, and end it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_relay
short_description: Files from one node to all others, each chunk verified, each node serving what it has
description:
  - C(check) refuses what can be refused before anything is read or sent (ports, read-only, disk short).
  - C(index) reads the source once, proves every file against the manifest, and returns the digest all nodes check by.
  - C(start) refuses what can be refused (settings, port, read-only, disk short) and leaves a relay running that ends
    when told, when it failed, when nobody looked at its status for O(lease) seconds (without a lease, when nobody asked
    it for O(idle) seconds), or after O(limit) seconds.
  - C(status) says how far it is, at the latest after O(wait) seconds; C(stop) ends it, removes O(run_dir) and returns
    its last status.
  - What stood at the target stands until its successor is whole and on disk. An ended relay leaves no temporary file;
    a killed one leaves its parts in C(.gb10-part), and the next goes on from there.
options:
  action: {description: What to do., type: str, choices: [check, index, start, status, stop], required: true}
  path: {description: Directory of the files; read through links at the source., type: path}
  files: {description: "Manifest (index): list of {path, size, sha256}.", type: list, elements: dict}
  state: {description: Where the source keeps index and receipts; O(path) when not given., type: path}
  chunk: {description: Bytes per chunk (index)., type: int, default: 1048576}
  processes: {description: Processes per node; the same on all nodes., type: int, default: 4}
  verify_all: {description: Read every file again whatever the receipts say., type: bool, default: false}
  run_dir: {description: "This run's own directory (start, status, stop), such as one under /run.", type: path}
  address: {description: Our fabric address; the relay listens there only., type: str}
  line: {description: "Fabric addresses in order, the source first; nobody else is let in.", type: list, elements: str}
  port: {description: First of as many ports as there are processes., type: int, default: 29700}
  digest: {description: Digest of the index., type: str}
  secret: {description: Shared by the nodes of this run; 16 characters or more., type: str}
  stall: {description: Seconds without a new chunk that fail a node., type: int, default: 60}
  idle: {description: Seconds without a request after which a relay that has all ends., type: int, default: 300}
  lease: {description: Seconds without a look at its status after which it ends; 0 for none., type: int, default: 0}
  size: {description: Bytes that must fit at O(path) (check)., type: int, default: 0}
  wait: {description: Seconds to wait for its end (status)., type: int, default: 0}
  limit: {description: Seconds after which it ends in any case., type: int, default: 21600}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: The source's files are proved and indexed
  gb10_relay:
    action: index
    path: /data/models/deepseek-v4.1-flash
    files: "{{ manifest.files }}"
  register: index
- name: The relay runs
  gb10_relay:
    action: start
    path: /data/models/deepseek-v4.1-flash
    run_dir: /run/gb10-relay
    address: "{{ fabric_address }}"
    line: "{{ order }}"
    digest: "{{ index.digest }}"
    secret: "{{ secret }}"
"""
RETURN = r"""
digest: {description: Digest of the index., returned: index, type: str}
free: {description: Bytes free at the target., returned: check, type: int}
read: {description: Files that were read; the others are as their receipts say., returned: index, type: int}
relay:
  description: >-
    phase (starting, checking, fetching, done, failed, stopped, lost), have, total, rate (bytes/s), eta (s), upstream,
    taken and sent (bytes by address), refused (chunks by address), files, error, code.
  returned: status and stop
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gb10.relay.node import act
from ansible.module_utils.gb10.relay.problem import Problem

NEEDED = {
    "check": ["path", "address"],
    "index": ["path", "files"],
    "start": ["path", "run_dir", "address", "line", "digest", "secret"],
    "status": ["run_dir"],
    "stop": ["run_dir"],
}
OPTIONS = {
    "check": ["port", "processes", "size"],
    "index": ["state", "chunk", "processes", "verify_all"],
    "start": ["state", "port", "processes", "stall", "idle", "lease", "limit", "verify_all"],
    "status": ["wait"],
}


def main():
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": sorted(NEEDED), "required": True},
            "path": {"type": "path"},
            "files": {"type": "list", "elements": "dict"},
            "state": {"type": "path"},
            "chunk": {"type": "int", "default": 1 << 20},
            "processes": {"type": "int", "default": 4},
            "verify_all": {"type": "bool", "default": False},
            "run_dir": {"type": "path"},
            "address": {"type": "str"},
            "line": {"type": "list", "elements": "str"},
            "port": {"type": "int", "default": 29700},
            "digest": {"type": "str"},
            "secret": {"type": "str", "no_log": True},
            "stall": {"type": "int", "default": 60},
            "idle": {"type": "int", "default": 300},
            "lease": {"type": "int", "default": 0},
            "size": {"type": "int", "default": 0},
            "wait": {"type": "int", "default": 0},
            "limit": {"type": "int", "default": 21600},
        },
        required_if=[("action", action, needed) for action, needed in NEEDED.items()],
        supports_check_mode=True,
    )
    action = module.params["action"]
    names = ["action", *NEEDED[action], *OPTIONS.get(action, [])]
    given = {name: module.params[name] for name in names}
    if module.check_mode and action in ("start", "stop"):
        module.exit_json(changed=action == "start")
    try:
        result = act(given)
    except Problem as problem:
        module.fail_json(msg=f"error [{problem.code}] {problem.text}", code=problem.code)
    module.exit_json(changed=action == "start", **({"relay": result} if action in ("status", "stop") else result))


if __name__ == "__main__":
    main()
