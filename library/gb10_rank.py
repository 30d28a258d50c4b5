#!/usr/bin/python
"""Reads the rank container of this node: its state and how far its log says it is."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_rank
short_description: State, phase and last words of this node's rank container
description:
  - Reads one container through Docker's API socket. Changes nothing, works in check mode.
  - With O(wait) it returns early when the container stops, when a fault shows in its log, or when the phase moves on
    from O(phase).
options:
  name: {description: Name of the container., type: str, default: gb10-rank}
  docker_socket: {description: Docker's API socket., type: path, default: /var/run/docker.sock}
  wait: {description: Seconds to wait for something to happen., type: float, default: 0}
  phase: {description: The phase already known., type: str, default: ""}
  phases: {description: "List of {name, pattern} in the order of a boot.", type: list, elements: dict, default: []}
  faults: {description: "List of {code, pattern, remedy}.", type: list, elements: dict, default: []}
  cause: {description: Pattern of a line that tells why a rank ended; the first one counts., type: str, default: ""}
  lines: {description: How many last lines of the log to return., type: int, default: 20}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: The rank's state is known
  gb10_rank:
  register: rank
"""
RETURN = r"""
rank:
  description: What was found. V(exists) alone is false where there is no container or no Docker.
  returned: always
  type: dict
  sample: {exists: true, running: true, exit_code: 0, image_id: "sha256:...", labels: {}, phase: serving, fault: null}
"""

import http.client
import json
import re
import socket
import time
import urllib.parse

from ansible.module_utils.basic import AnsibleModule

TIMEOUT = 20  # seconds for one answer of the Docker daemon
TAIL = 2000  # lines of log that are searched


class DockerConnection(http.client.HTTPConnection):
    """HTTP over Docker's Unix socket."""

    def __init__(self, path):
        super().__init__("docker", timeout=TIMEOUT)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(self.path)


def get(path, url):
    """Status and body of a GET."""
    connection = DockerConnection(path)
    try:
        connection.request("GET", url)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def text_of(stream):
    """Lines of a log stream: Docker frames each chunk with 8 bytes (stream, length) unless the container has a tty."""
    out = b""
    while len(stream) >= 8 and stream[0] in (0, 1, 2) and stream[1:4] == b"\0\0\0":
        size = int.from_bytes(stream[4:8], "big")
        out += stream[8 : 8 + size]
        stream = stream[8 + size :]
    return (out or stream).decode(errors="replace").splitlines()


def phase_of(lines, phases):
    """Name of the furthest phase any line shows."""
    reached = ""
    for phase in phases:
        pattern = re.compile(phase["pattern"])
        if any(pattern.search(line) for line in lines):
            reached = phase["name"]
    return reached


def fault_of(lines, faults):
    """The first known fault a line shows, with that line."""
    for fault in faults:
        pattern = re.compile(fault["pattern"])
        for line in lines:
            if pattern.search(line):
                return {"code": fault["code"], "remedy": fault["remedy"], "line": line.strip()[:500]}
    return None


def cause_of(lines, pattern):
    """The first line that matches: what follows it in a log is its consequence."""
    found = (line.strip() for line in lines if re.search(pattern, line)) if pattern else iter(())
    return next(found, "")[:500]


def read(params):
    """One reading."""
    name = urllib.parse.quote(params["name"], safe="")
    try:
        status, body = get(params["docker_socket"], f"/containers/{name}/json")
        if status != 200:
            return {"exists": False}
        info = json.loads(body)
        lines = []
        if params["lines"]:
            _status, stream = get(params["docker_socket"], f"/containers/{name}/logs?stdout=1&stderr=1&tail={TAIL}")
            lines = text_of(stream)
    except (OSError, http.client.HTTPException, ValueError) as problem:
        return {"exists": False, "problem": str(problem)}
    state = info["State"]
    return {
        "exists": True,
        "running": bool(state.get("Running")),
        "exit_code": state.get("ExitCode"),
        "started_at": state.get("StartedAt"),
        "id": info["Id"],
        "image_id": info.get("Image"),
        "labels": info["Config"].get("Labels") or {},
        "phase": phase_of(lines, params["phases"]),
        "fault": fault_of(lines, params["faults"]),
        "cause": cause_of(lines, params["cause"]),
        "log": [line[:500] for line in lines[-params["lines"] :]] if params["lines"] else [],
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "default": "gb10-rank"},
            "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
            "wait": {"type": "float", "default": 0},
            "phase": {"type": "str", "default": ""},
            "phases": {"type": "list", "elements": "dict", "default": []},
            "faults": {"type": "list", "elements": "dict", "default": []},
            "cause": {"type": "str", "default": ""},
            "lines": {"type": "int", "default": 20},
        },
        supports_check_mode=True,
    )
    end = time.monotonic() + module.params["wait"]
    while True:
        rank = read(module.params)
        moved = not rank.get("running") or rank["fault"] or rank["phase"] != module.params["phase"]
        if moved or time.monotonic() >= end:
            break
        time.sleep(min(1, max(0, end - time.monotonic())))
    module.exit_json(changed=False, rank=rank)


if __name__ == "__main__":
    main()
