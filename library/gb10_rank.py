#!/usr/bin/python
"""The rank container of this node: its state, how far its log says it is, and the acts of an ordered start and stop."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_rank
short_description: Reads, stops, removes and starts this node's rank container
description:
  - Works through Docker's API socket. What was there or is now is returned in any case.
  - With O(wait) it returns early when the container stops, when a fault shows in its log, or when the phase moves on
    from O(phase).
  - In check mode nothing is done; what would be is in RV(changed).
options:
  state:
    description:
      - V(read) changes nothing. V(stopped) and V(absent) are well where there is no container.
      - V(started) starts the container that was made; it fails where there is none.
    type: str
    choices: [read, stopped, absent, started]
    default: read
  name: {description: Name of the container., type: str, default: gb10-rank}
  docker_socket: {description: Docker's API socket., type: path, default: /var/run/docker.sock}
  image: {description: Id of an image; whether the node holds it is told., type: str, default: ""}
  stop_timeout: {description: Seconds the rank has to end by itself before it is killed., type: int, default: 20}
  wait: {description: Seconds to wait for something to happen., type: float, default: 0}
  phase: {description: The phase already known., type: str, default: ""}
  signs:
    description: "What to look for in the log: phases, faults, figures, notes (data/engine_log.yml), and cause."
    type: dict
    default: {}
  lines: {description: How many last lines of the log to return., type: int, default: 20}
  keep_lines:
    description: Last lines of the log to return compressed, after a stop but before a removal; 0 for none.
    type: int
    default: 0
  record: {description: File that keeps what should run here., type: path, default: ""}
  wanted: {description: Text for O(record); written before the act. Empty leaves the file., type: str, default: ""}
  needs:
    description: What the rank was told to use here, as lists V(interfaces), V(hcas) and V(addresses).
    type: dict
    default: {}
  node: {description: Memory and clocks of the node are told too., type: bool, default: false}
  key:
    description: "The API key the rank should carry, empty for none. Without it: the one in O(key_file)."
    type: str
  key_file: {description: The file that keeps it., type: path, default: /var/lib/gb10/api/key.env}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: The rank's state is known
  gb10_rank:
  register: rank
- name: The rank is stopped and its log kept
  gb10_rank:
    state: stopped
    keep_lines: 20000
"""
RETURN = r"""
rank:
  description: What was found. V(exists) alone is false where there is no container or no Docker (then with a problem).
  returned: always
  type: dict
  sample: {exists: true, running: true, exit_code: 0, image_id: "sha256:...", phase: ready, key_differs: false}
log_gz: {description: "The log, gzip in base64.", returned: with O(keep_lines) where there is a container, type: str}
key_file: {description: O(key_file) where it holds a key; else empty., returned: always, type: str}
record: {description: The text of O(record); empty where there is none., returned: with O(record), type: str}
image_held: {description: Whether the node holds O(image)., returned: with O(image), type: bool}
lacks:
  description: What of O(needs) this node does not have, in words.
  returned: with O(needs)
  type: list
  sample: ["interface eth1 (it has eth0, lo)"]
node:
  description: total_kib and available_kib of memory, uptime_s, and of each GPU sm_mhz and max_mhz.
  returned: with O(node)
  type: dict
"""

import base64
import calendar
import gzip
import shutil
import socket
import subprocess
import time
import urllib.parse
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gb10 import engine_log, key_file, rank_container, whole
from ansible.module_utils.gb10.docker_socket import Docker, Refused, container

TAIL = 2000  # lines of log that are searched
SIGNS = {"phases": [], "faults": [], "figures": [], "notes": [], "cause": ""}


def log(docker, name, lines):
    """Last lines of the container's log, with what Docker frames them in."""
    return docker.call("GET", f"{container(name)}/logs?stdout=1&stderr=1&tail={lines}")[1]


def names(docker, name):
    """Rank containers of this node, whoever started them: the one that counts first; ``name`` where there is none."""
    try:
        listed = docker.get(rank_container.LISTED)
    except Refused:
        listed = []
    return rank_container.names(listed or [], name) or [name]


def read(docker, params):
    """One reading."""
    name = names(docker, params["name"])[0]
    try:
        info = docker.get(container(name) + "/json")
        if info is None:
            return {"exists": False}
        lines = engine_log.lines_of(log(docker, name, TAIL)) if params["lines"] else []
    except Refused as problem:
        return {"exists": False, "problem": str(problem)}
    state, signs = info["State"], SIGNS | params["signs"]
    labels = rank_container.labels(info["Config"].get("Labels"))
    try:
        asleep = bool(state.get("Running")) and rank_container.asleep(
            labels, lambda: docker.get(container(name) + "/top")
        )
    except Refused:  # it ended meanwhile
        asleep = False
    return {
        "exists": True,
        "running": bool(state.get("Running")) and not asleep,
        "status": rank_container.ASLEEP if asleep else state.get("Status"),
        "exit_code": state.get("ExitCode"),
        "error": rank_container.NO_ENGINE if asleep else state.get("Error") or "",
        "started_at": state.get("StartedAt"),
        "finished_at": state.get("FinishedAt"),
        "age_s": age(state.get("StartedAt")),
        "id": info["Id"],
        "image_id": info.get("Image"),
        "labels": labels,
        "key_differs": key_file.key_in(info["Config"].get("Env") or []) != params["key"],
        "phase": engine_log.phase_of(lines, signs["phases"]),
        "fault": engine_log.fault_of(lines, signs["faults"]),
        "cause": engine_log.cause_of(lines, signs["cause"]),
        "figures": engine_log.figures_of(lines, signs["figures"]),
        "notes": engine_log.notes_of(lines, signs["notes"]),
        "log": [line[: engine_log.LONGEST] for line in lines[-params["lines"] :]] if params["lines"] else [],
    }


def age(started):
    """Seconds since a time as Docker writes it (UTC, nanoseconds); None where there is none."""
    try:
        return time.time() - calendar.timegm(time.strptime(str(started)[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def watched(docker, params):
    """The reading in which something has happened, or the last one within ``wait``."""
    end = time.monotonic() + params["wait"]
    while True:
        rank = read(docker, params)
        moved = not rank.get("running") or rank["fault"] or rank["phase"] != params["phase"]
        if moved or time.monotonic() >= end:
            return rank
        time.sleep(min(1, max(0, end - time.monotonic())))


def act(docker, params, before):
    """What the state asks for. Raises Refused."""
    seconds = params["stop_timeout"]
    if params["state"] == "started":
        docker.act("POST", container(params["name"]) + "/start")
        return
    for name in names(docker, params["name"]) if before["exists"] else []:
        here = container(name)
        if params["state"] == "stopped":
            docker.act("POST", f"{here}/stop?t={seconds}", seconds + 30, done=(204, 304, 404))
            continue
        docker.act("DELETE", here + "?force=true", 60, done=(204, 404, 409))
        if docker.get(here + "/json") is not None:
            raise Refused(f"{name} is still there")


def changes(params, before):
    """Whether the state is not there yet."""
    wanted = {"read": False, "stopped": before.get("running"), "absent": before["exists"]}
    return bool(wanted.get(params["state"], not before.get("running")))


def write(path, text):
    """For root alone."""
    Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    whole.write(Path(path), text.encode(), 0o600, durable=True)


def text_of(path):
    """The file's text, empty where there is none."""
    try:
        return Path(path).read_text()
    except (OSError, ValueError):
        return ""


def lacks(needs):
    """What of ``needs`` the node does not have."""
    found = []
    for kind, word, folder in (("interfaces", "interface", "net"), ("hcas", "HCA", "infiniband")):
        path = Path("/sys/class") / folder
        have = sorted(one.name for one in path.iterdir()) if path.is_dir() else []
        missing = [name for name in needs.get(kind, []) if name not in have]
        found += [f"{word} {name} (it has {', '.join(have) or 'none'})" for name in missing]
    return found + [f"address {one}" for one in needs.get("addresses", []) if not is_own(one)]


def is_own(address):
    """Whether an address is one of this node's."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind((address, 0))
    except OSError:
        return False
    return True


def node():
    """Memory, time since boot and GPU clocks."""
    memory = dict(line.split(":", 1) for line in text_of("/proc/meminfo").splitlines() if ":" in line)
    facts = {name: int(memory.get(key, "0").split()[0]) for name, key in MEMORY.items()}
    uptime = text_of("/proc/uptime").split()
    return {**facts, "uptime_s": float(uptime[0]) if uptime else None, "gpus": clocks()}


MEMORY = {"total_kib": "MemTotal", "available_kib": "MemAvailable"}


def clocks():
    """Clock of every GPU now and at most, in MHz; empty without nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if not program:
        return []
    argv = [program, "--query-gpu=clocks.sm,clocks.max.sm", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]
    return [{"sm_mhz": row[0], "max_mhz": row[1]} for row in rows if len(row) == 2]


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["read", "stopped", "absent", "started"], "default": "read"},
            "name": {"type": "str", "default": "gb10-rank"},
            "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
            "image": {"type": "str", "default": ""},
            "stop_timeout": {"type": "int", "default": 20},
            "wait": {"type": "float", "default": 0},
            "phase": {"type": "str", "default": ""},
            "signs": {"type": "dict", "default": {}},
            "lines": {"type": "int", "default": 20},
            "keep_lines": {"type": "int", "default": 0},
            "record": {"type": "path", "default": ""},
            "wanted": {"type": "str", "default": ""},
            "needs": {"type": "dict", "default": {}},
            "node": {"type": "bool", "default": False},
            "key": {"type": "str", "no_log": True},
            "key_file": {"type": "path", "default": key_file.PATH, "no_log": False},
        },
        supports_check_mode=True,
    )
    params = dict(module.params)  # a copy: Ansible's own come back with the result, and the kept key must not
    docker = Docker(params["docker_socket"])
    try:
        kept = key_file.read(params["key_file"])
    except OSError as problem:
        module.fail_json(msg=f"The API key cannot be read: {problem.filename}: {problem.strerror}")
    params["key"] = kept if params["key"] is None else params["key"]
    rank = watched(docker, params)
    result = {"changed": changes(params, rank), "rank": rank, "key_file": params["key_file"] if kept else ""}
    if rank.get("problem") and params["state"] != "read":
        module.fail_json(msg=rank["problem"], **result)
    try:
        if params["wanted"] and params["state"] == "read":
            result["changed"] = text_of(params["record"]) != params["wanted"]
        if params["wanted"] and not module.check_mode:
            write(params["record"], params["wanted"])
        if result["changed"] and params["state"] in ("stopped", "started") and not module.check_mode:
            act(docker, params, rank)
        if params["keep_lines"] and rank["exists"]:
            stream = log(docker, names(docker, params["name"])[0], params["keep_lines"])
            text = "\n".join(engine_log.lines_of(stream)) + "\n"
            result["log_gz"] = base64.b64encode(gzip.compress(text.encode(), 6)).decode()
        if result["changed"] and params["state"] == "absent" and not module.check_mode:
            act(docker, params, rank)
        if result["changed"] and params["state"] != "read" and not module.check_mode:
            result["rank"] = read(docker, params | {"lines": 0})
        if params["image"]:
            name = urllib.parse.quote(params["image"], safe=":/")
            result["image_held"] = not rank.get("problem") and docker.get(f"/images/{name}/json") is not None
    except (Refused, OSError) as problem:
        module.fail_json(msg=f"{params['name']}: {problem}", **result)
    if params["record"]:
        result["record"] = text_of(params["record"])
    if params["needs"]:
        result["lacks"] = lacks(params["needs"])
    if params["node"]:
        result["node"] = node()
    module.exit_json(**result)


if __name__ == "__main__":
    main()
