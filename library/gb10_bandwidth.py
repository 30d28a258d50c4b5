#!/usr/bin/python
"""Runs what measures links: servers that listen, clients one after the other, and the end of the servers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_bandwidth
short_description: Starts, uses and ends programs that measure links
description:
  - With O(servers) starts them and returns when each listens; their process ids are kept in O(record).
  - With O(transfers) runs them one after the other, each within its own time, and returns what they printed. A
    transfer that fails is told, not fatal.
  - With O(stop) ends what O(record) names, by process id and only if it still is the same process.
options:
  servers: {description: Each C(port) and C(argv)., type: list, elements: dict, default: []}
  transfers: {description: "Each C(argv), C(timeout) in seconds, and what else is to come back with it.", type: list,
    elements: dict, default: []}
  stop: {description: End the servers., type: bool, default: false}
  record: {description: Where process ids are kept., type: path, default: /run/gb10-fabric-test.json}
  timeout: {description: Seconds servers have to listen., type: int, default: 15}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: A server listens
  gb10_bandwidth:
    servers: [{port: 5201, argv: [iperf3, --server]}]
"""
RETURN = r"""
results: {description: Each transfer with rc, stdout, stderr and timed_out., returned: with transfers, type: list}
ended: {description: How many servers were ended., returned: with stop, type: int}
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

LONGEST = 100_000  # characters of output that come back
GRACE = 5  # seconds from TERM to KILL


def begun(pid):
    """When a process started, in clock ticks since boot; None where it is gone. Tells it from a later one of its id."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def listening():
    """TCP ports somebody listens on."""
    ports = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def start(servers, record, timeout):
    """Start servers, detached. Returns what is wrong, empty when all listen."""
    taken = sorted(listening() & {int(s["port"]) for s in servers})
    if taken:
        return f"port {taken[0]} is taken; end what listens there, or give another fabric_test_port"
    held, outputs = [], {}
    for server in servers:
        output = Path(f"{record}.{server['port']}.log")
        with output.open("wb") as stream:
            try:
                process = subprocess.Popen(
                    server["argv"], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
                )
            except OSError as problem:
                return f"{server['argv'][0]}: {problem}"
        held.append({"pid": process.pid, "begun": begun(process.pid), "log": str(output)})
        outputs[int(server["port"])] = (process, output)
        Path(record).write_text(json.dumps(held))
    end = time.monotonic() + timeout
    while not set(outputs) <= listening():
        for port, (process, output) in outputs.items():
            if process.poll() is not None:
                words = output.read_text(errors="replace").split("\n")
                return f"the server on port {port} ended: {' '.join(filter(None, words))[-200:]}"
        if time.monotonic() > end:
            missing = sorted(set(outputs) - listening())
            return f"nothing listens on port {missing[0]} after {timeout} s"
        time.sleep(0.05)
    return ""


def stop(record):
    """End the servers of the record; returns how many of them still ran."""
    path = Path(record)
    held = json.loads(path.read_text()) if path.exists() else []
    alive = [item for item in held if item["begun"] and begun(item["pid"]) == item["begun"]]
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = [item for item in alive if begun(item["pid"]) == item["begun"]]
        for item in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(item["pid"], number)
        end = time.monotonic() + GRACE
        while left and time.monotonic() < end and any(begun(i["pid"]) == i["begun"] for i in left):
            time.sleep(0.05)
    for item in held:
        Path(item["log"]).unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    return len(alive)


def transfer(item):
    """Run one client within its time."""
    result = {**item, "rc": None, "stdout": "", "stderr": "", "timed_out": False}
    try:
        done = subprocess.run(item["argv"], capture_output=True, text=True, timeout=item["timeout"], check=False)
        result.update(rc=done.returncode, stdout=done.stdout[-LONGEST:], stderr=done.stderr[-LONGEST:])
    except subprocess.TimeoutExpired:
        result["timed_out"] = True
    except OSError as problem:
        result["stderr"] = str(problem)
    return result


def main():
    """Entry of the Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "servers": {"type": "list", "elements": "dict", "default": []},
            "transfers": {"type": "list", "elements": "dict", "default": []},
            "stop": {"type": "bool", "default": False},
            "record": {"type": "path", "default": "/run/gb10-fabric-test.json"},
            "timeout": {"type": "int", "default": 15},
        }
    )
    p = module.params
    if p["stop"]:
        module.exit_json(changed=False, ended=stop(p["record"]))
    if p["servers"]:
        stop(p["record"])  # of a run that was broken off
        problem = start(p["servers"], p["record"], p["timeout"])
        if problem:
            stop(p["record"])
            module.fail_json(msg=f"error [test-server-failed] {problem}.")
    module.exit_json(changed=False, results=[transfer(item) for item in p["transfers"]])


if __name__ == "__main__":
    main()
