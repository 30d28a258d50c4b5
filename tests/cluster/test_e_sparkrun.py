"""The ranks launched by the real sparkrun: the plan's, seen and stopped as ours; what is left half done is righted."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest
import yaml
from lab_run import inventory_hosts, on_node, play
from support import ROOT

from gb10 import sparkrun

# The lab's image has no `kill`, by which sparkrun looks whether the engine lives: the shell's own stands in.
KILL = {"source": "/home/nvidia/gpu/kill", "target": "/usr/local/bin/kill", "read_only": True}
MOUNTS = [*yaml.safe_load((ROOT / "group_vars/lab.yml").read_text())["container_mounts"], KILL]
SETTINGS = {"serve_launcher": "sparkrun", "docker_users": ["nvidia"], "container_mounts": MOUNTS}
LAUNCHER = ("-e", json.dumps(SETTINGS))
# sparkrun counts GPUs by nvidia-smi before it starts anything, and the lab's nodes have none. For login sessions alone.
GPU = """set -e; mkdir -p /home/nvidia/gpu
printf '%s\\n' '#!/bin/sh' 'case "$*" in *name,mem*) echo "NVIDIA GB10, [N/A]";; *cap*) echo 12.1;; *) exit 9;; esac' \\
    > /home/nvidia/gpu/nvidia-smi
printf '%s\\n' '#!/bin/sh' 'kill "$@"' > /home/nvidia/gpu/kill
chmod 755 /home/nvidia/gpu/nvidia-smi /home/nvidia/gpu/kill
touch /home/nvidia/.bashrc; cp /home/nvidia/.bashrc /home/nvidia/gpu/bashrc
{ echo 'PATH=/home/nvidia/gpu:$PATH'; cat /home/nvidia/gpu/bashrc; } > /home/nvidia/.bashrc"""
NO_GPU = "cp /home/nvidia/gpu/bashrc /home/nvidia/.bashrc; rm -r /home/nvidia/gpu; gpasswd -d nvidia docker || true"
# The engine's process as it runs, known by the word `serve` of its own (shells have it in a script): arguments, a line,
# environment. Looked for from the node: the image has no grep.
ENGINE = """for p in /proc/[0-9]*; do
if tr '\\0' '\\n' < $p/cmdline | grep -qx serve; then
tr '\\0' '\\n' < $p/cmdline; echo ==; tr '\\0' '\\n' < $p/environ; exit; fi; done"""


@pytest.fixture(autouse=True)
def _gpu() -> Iterator[None]:
    for node in inventory_hosts():
        made = on_node(node, "sh", "-c", GPU)
        assert made.returncode == 0, made.stderr
    yield
    for node in inventory_hosts():
        on_node(node, "sh", "-c", NO_GPU)


def containers() -> dict[str, list[str]]:
    """Names of all containers by node."""
    return {
        node: on_node(node, "docker", "ps", "-a", "--format", "{{.Names}}").stdout.split() for node in inventory_hosts()
    }


def test_deployed_seen_and_stopped() -> None:
    """One boot. First a rank that sparkrun left half done under an old plan is in the way."""
    image = on_node("spark-158", "docker", "images", "-q", "--no-trunc").stdout.split()
    if image:
        labels = ["--label", "gb10.plan-hash=0", "--label", "sparkrun.cluster_id=x", "--label", "sparkrun.rank=3"]
        left = ["--name", f"sparkrun_{'0' * 16}_{'0' * 12}_node_3", "--network", "none", "--entrypoint", "sleep"]
        made = on_node("spark-158", "docker", "run", "-d", *left, *labels, image[0], "3600")
        assert made.returncode == 0, made.stderr
    done = play("site.yml", *LAUNCHER)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    found = containers()
    hosts = inventory_hosts()
    assert all(len(names) == 1 and names[0].endswith(f"_node_{hosts[n]['node_rank']}") for n, names in found.items())
    inspected = json.loads(on_node("spark-158", "docker", "inspect", *found["spark-158"]).stdout)[0]
    assert inspected["HostConfig"]["RestartPolicy"]["Name"] == "no"
    assert "Application startup complete" in on_node("spark-153", "docker", "logs", *found["spark-153"]).stdout
    planned = json.loads(on_node("spark-153", "cat", "/var/lib/gb10/wanted.json").stdout)["deployment"]
    for rank in planned["ranks"]:
        argv, _, environment = on_node(rank["node"], "sh", "-c", ENGINE).stdout.partition("==\n")
        words = argv.split("\n")[:-1]
        rest, managed = sparkrun.split(words[words.index("serve") + 1 :])
        assert (["vllm", "serve", *rest], managed) == (sparkrun.command(planned), sparkrun.split(rank["argv"])[1])
        assert {f"{key}={value}" for key, value in rank["env"].items()} <= set(environment.splitlines())

    again = play("playbooks/serve.yml", *LAUNCHER)
    assert again.returncode == 0, again.stdout[-3000:]
    assert containers() == found
    status = play("playbooks/status.yml")
    assert status.returncode == 0, status.stdout[-4000:]
    own = subprocess.run([ROOT / ".sparkrun/lab/sparkrun", "status"], capture_output=True, text=True, check=False)
    assert sparkrun.job(planned).removeprefix("sparkrun_") in own.stdout, own.stdout + own.stderr

    dies = "kill -9 $(cat /tmp/sparkrun_serve.pid)"
    assert on_node("spark-166", "docker", "exec", *found["spark-166"], "sh", "-c", dies).returncode == 0
    end = time.monotonic() + 60
    running = ("docker", "ps", "-q", "--filter", "status=running")
    while on_node("spark-166", *running).stdout and time.monotonic() < end:
        time.sleep(1)
    assert not on_node("spark-166", *running).stdout, "the container of a dead engine runs on"
    assert "exited" in play("playbooks/status.yml").stdout

    stopped = play("playbooks/stop.yml")
    assert stopped.returncode == 0, stopped.stdout[-4000:]
    assert not any(containers().values())
