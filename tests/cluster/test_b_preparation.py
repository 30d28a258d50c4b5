"""Preparation on the lab before anything was deployed: refused whole, done once at the price of a look, and undone."""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_run import BIN, INVENTORY, inventory_hosts, inventory_with, on_node, play, recap, run
from support import ROOT
from test_b_refusals import refused

PREPARE, UNPREPARE = "playbooks/prepare.yml", "playbooks/unprepare.yml"
LIMITS = "/etc/security/limits.d/90-gb10.conf"

# Everything preparation touches, as the node itself shows it: content and modes, not times.
STATE = """
for f in /etc/docker/daemon.json /etc/security/limits.d/* /etc/sysctl.d/* /etc/systemd/logind.conf.d/* /etc/fstab \
    /etc/systemd/system/docker.service.d/* /etc/group /etc/default/earlyoom /etc/gb10/*; do
  [ -e "$f" ] && { stat -c '%n %a %U %G' "$f"; sha256sum < "$f"; }; done
ls -d /var/cache/gb10 /etc/systemd/logind.conf.d /etc/systemd/system/docker.service.d /var/lib/gb10/originals /etc/gb10
ls /var/lib/systemd/linger
sysctl vm.min_free_kbytes vm.watermark_scale_factor
systemctl is-enabled docker; systemctl is-active docker; systemctl show docker --property=RequiresMountsFor
busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager RemoveIPC
"""


def states() -> dict[str, str]:
    """Each node's state."""
    return {node: on_node(node, "sh", "-c", STATE).stdout for node in inventory_hosts()}


def same(now: dict[str, str], before: dict[str, str]) -> None:
    """Every node is as it was; only what differs is said."""
    lines = {
        node: list(difflib.unified_diff(before[node].split("\n"), now[node].split("\n"), "before", "now", n=1))
        for node in now
    }
    assert not any(lines.values()), "\n".join(f"{node}: {line}" for node in lines for line in lines[node])


def changed(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """What a run that must end well changed, by node."""
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return {node: numbers["changed"] for node, numbers in recap(done).items() if node != "localhost"}


@pytest.fixture(autouse=True, scope="module")
def _undone() -> Iterator[None]:
    """What scenarios prepared is put back before; nodes are left prepared for what follows."""
    changed(play(UNPREPARE))
    yield
    play(PREPARE)


def test_prepared_unprepared_and_everything_is_as_it_was() -> None:
    before = states()
    predicted = changed(play(PREPARE, "--check"))
    assert all(predicted.values())
    same(states(), before)  # check mode changed nothing
    assert all(changed(play(PREPARE)).values())
    prepared = states()
    assert all(prepared[node] != before[node] for node in before)
    assert not any(changed(play(PREPARE, "--check")).values())
    assert all(changed(play(UNPREPARE, "--check")).values())
    same(states(), prepared)
    assert all(changed(play(UNPREPARE)).values())
    same(states(), before)
    assert not any(changed(play(UNPREPARE)).values())


def test_what_somebody_changed_stays_and_is_said() -> None:
    changed(play(PREPARE))
    on_node("spark-161", "sh", "-c", f"echo '# mine' >> {LIMITS}")
    done = play(UNPREPARE)
    changed(done)
    assert f"warning [original-kept] spark-161: {LIMITS} was changed" in " ".join(done.stdout.split())
    assert "# mine" in on_node("spark-161", "cat", LIMITS).stdout
    assert on_node("spark-162", "ls", LIMITS).returncode != 0
    on_node("spark-161", "rm", LIMITS)
    changed(play(UNPREPARE))
    assert on_node("spark-161", "ls", "/var/lib/gb10/originals").returncode != 0


def test_a_prepare_with_nothing_to_change_costs_little_more_than_a_look() -> None:
    """At most 12 ssh round trips a node; the time against a ping is printed."""
    changed(play(PREPARE))
    done = run([sys.executable, ROOT / "bench/converge.py", "--prepared"], 900)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


# --- refused on all nodes before the first change --------------------------------------------------------------------


@pytest.fixture(name="untouched")
def _untouched() -> Iterator[None]:
    before = states()
    yield
    same(states(), before)


def test_a_broken_daemon_json_on_one_node(untouched: None) -> None:
    """Case 19: the file is kept, and Docker is restarted on no node."""
    held = on_node("spark-162", "cat", "/etc/docker/daemon.json").stdout
    started = [on_node(n, "systemctl", "show", "docker", "-p", "MainPID").stdout for n in inventory_hosts()]
    try:
        on_node("spark-162", "sh", "-c", "echo '{\"dns\": [,]}' > /etc/docker/daemon.json")
        refused(play(PREPARE), "daemon-json-broken", "spark-162")
        assert on_node("spark-162", "cat", "/etc/docker/daemon.json").stdout == '{"dns": [,]}\n'
    finally:
        subprocess.run(
            ["docker", "exec", "-i", "spark-162", "sh", "-c", "cat > /etc/docker/daemon.json"],
            input=held, text=True, check=True, timeout=60,
        )  # fmt: skip
    assert [on_node(n, "systemctl", "show", "docker", "-p", "MainPID").stdout for n in inventory_hosts()] == started


@pytest.mark.parametrize(
    ("node", "change", "code"),
    [
        ("spark_158", {"docker_users": ["nvidai"]}, "user-unknown"),
        ("spark_158", {"storage_mounts": [{"path": "/srv/fast", "uuid": "no-such"}]}, "disk-absent"),
        ("spark_158", {"host_limits_sysctls": {"vm.no_such": "1"}}, "sysctl-unknown"),
        ("spark_158", {"docker_data_root": "data"}, "setting-invalid"),
        ("spark_158", {"docker_nvidia": "cdi"}, "nvidia-ctk-missing"),
        ("spark_158", {"storage_weights_mount": "/data"}, ""),
    ],
)
def test_a_wrong_setting_on_one_node(untouched: None, tmp_path: Path, node: str, change: Any, code: str) -> None:
    inventory = inventory_with(tmp_path, **{node: change})
    done = play(PREPARE, "--check", inventory=inventory)
    if code:
        refused(done, code, "spark-158")
    else:
        assert done.returncode == 0, done.stdout[-3000:]


def test_a_node_without_sudo(untouched: None) -> None:
    rule = on_node("spark-158", "cat", "/etc/sudoers.d/nvidia").stdout
    try:
        on_node("spark-158", "sh", "-c", "echo 'nvidia ALL=(ALL) ALL' > /etc/sudoers.d/nvidia")
        refused(play(PREPARE), "spark-158", "sudo")
    finally:
        on_node("spark-158", "sh", "-c", f"echo '{rule.strip()}' > /etc/sudoers.d/nvidia")


SLEEPER = """
set -e; cd /
files=$(ls -d bin lib lib64 usr/lib64 usr/bin/sleep usr/lib/ld-linux* usr/lib/*-linux-gnu/ld-linux* \\
    usr/lib/*-linux-gnu/libc.so.6) || :  # some of these are another processor's
tar -c $files | docker import - sleep:1
docker run --detach --network=host --name=gb10-rank sleep:1 /usr/bin/sleep 3600
sleep 2
docker inspect --format '{{.State.Running}}' gb10-rank
"""


def test_a_rank_keeps_docker_and_systemd_as_they_are() -> None:
    """A container of the rank's name serves as one: Docker must not restart, unprepare must not begin."""
    changed(play(PREPARE))
    try:
        started = on_node("spark-158", "sh", "-c", SLEEPER)
        assert started.stdout.endswith("true\n"), started.stdout + started.stderr
        before = states()
        pid = on_node("spark-158", "systemctl", "show", "docker", "-p", "MainPID").stdout
        more = ["-e", json.dumps({"docker_daemon": {"log-driver": "local"}})]
        refused(play(PREPARE, *more), "docker-restart-refused", "spark-158")
        done = play(UNPREPARE)
        assert done.returncode != 0
        assert "unprepare-under-rank" in done.stdout
        same(states(), before)
        assert on_node("spark-158", "systemctl", "show", "docker", "-p", "MainPID").stdout == pid
    finally:
        on_node("spark-158", "docker", "rm", "--force", "gb10-rank")
        on_node("spark-158", "docker", "rmi", "sleep:1")


# A mount Docker must wait for, which is not there. Whoever wakes Docker would find it: then both are up.
LOST_DISK = r"""
unit=/etc/systemd/system/docker.service.d/95-lost.conf
mkdir -p ${unit%/*}
printf '%s\n' '[Unit]' 'RequiresMountsFor=/gb10-lost' > $unit
printf '%s\n' '[Mount]' 'What=tmpfs' 'Type=tmpfs' 'Where=/gb10-lost' > '/etc/systemd/system/gb10\x2dlost.mount'
systemctl daemon-reload
"""
FOUND_DISK = r"""
systemctl reset-failed docker docker.socket
rm /etc/systemd/system/docker.service.d/95-lost.conf
systemctl stop 'gb10\x2dlost.mount'; rm '/etc/systemd/system/gb10\x2dlost.mount'; rmdir /gb10-lost
systemctl daemon-reload; systemctl start docker
"""
# The tests before have started it often: systemd counts.
DOCKER_STOPPED = "systemctl stop docker; systemctl reset-failed docker docker.socket"


def docker_seen(node: str) -> dict[str, Any]:
    """What one look at a node brings of its Docker."""
    command = ["env", "ANSIBLE_CALLBACK_RESULT_FORMAT=json", BIN / "ansible", node, "-i", INVENTORY]
    done = run([*command, "-b", "-m", "gb10_facts"], 90)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    docker: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])["gb10"]["docker"]
    return docker


def test_a_stopped_docker_is_looked_into_and_one_that_waits_for_its_disk_is_left() -> None:
    """What a stopped Docker holds must be known before anything is moved; a lost disk must not hold up a look."""
    on_node("spark-157", "sh", "-c", DOCKER_STOPPED)
    seen = docker_seen("spark-157")
    assert (seen["reachable"], seen["error"]) == (True, None)
    try:
        made = on_node("spark-157", "sh", "-ec", LOST_DISK)
        assert made.returncode == 0, made.stderr
        on_node("spark-157", "sh", "-c", DOCKER_STOPPED)
        seen = docker_seen("spark-157")
        assert (seen["installed"], seen["reachable"]) == (True, False)
        assert seen["error"] == "docker.service is inactive: it requires gb10\\x2dlost.mount"
        assert on_node("spark-157", "systemctl", "list-jobs", "--no-legend").stdout == ""
    finally:
        on_node("spark-157", "sh", "-c", FOUND_DISK)
    assert docker_seen("spark-157")["reachable"]


def test_a_node_that_dies_in_the_middle_is_finished_by_the_next_run() -> None:
    """Its files are written and Docker was not restarted: the next run does that on this node, and only there."""
    changed(play(PREPARE))
    before = {n: on_node(n, "systemctl", "show", "docker", "-p", "MainPID").stdout for n in inventory_hosts()}
    on_node("spark-166", "sh", "-c", "sleep 2; touch /etc/docker/daemon.json")
    assert {node for node, count in changed(play(PREPARE)).items() if count} == {"spark-166"}
    after = {n: on_node(n, "systemctl", "show", "docker", "-p", "MainPID").stdout for n in inventory_hosts()}
    assert {node for node in after if after[node] != before[node]} == {"spark-166"}
    assert not any(changed(play(PREPARE)).values())
