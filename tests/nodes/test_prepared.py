"""Nodes are as declared: Docker, limits, kernel parameters, memory guard, sessions, mounts. Changes nothing.

What is looked at is the running system, by its own tools, and not what the roles wrote.
"""

from __future__ import annotations

import json
from typing import Any

import pytest


def busctl(host: Any, name: str) -> str:
    """A property of logind, as it runs."""
    argv = "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
    return str(host.check_output(f"{argv} {name}"))


def contains(held: Any, wanted: Any) -> bool:
    """Whether every key that is wanted is there with that value, mappings key by key."""
    if isinstance(wanted, dict):
        return isinstance(held, dict) and all(key in held and contains(held[key], v) for key, v in wanted.items())
    return bool(held == wanted)


def test_docker_runs_and_starts_at_boot(host: Any) -> None:
    assert host.service("docker").is_running
    assert host.service("docker").is_enabled


def test_docker_is_configured_and_was_restarted_since(host: Any, declared: dict[str, Any]) -> None:
    with host.sudo():
        file = host.file("/etc/docker/daemon.json")
        held = json.loads(file.content_string)
        info = json.loads(host.check_output("docker info --format '{{json .}}'"))
        started = int(
            host.check_output("systemctl show docker -p ActiveEnterTimestamp --timestamp=unix --value").strip("@")
        )
        modified = int(host.check_output("stat -c %Y /etc/docker/daemon.json"))
    assert contains(held, declared["docker_daemon"])
    assert info["LoggingDriver"] == declared["docker_daemon"].get("log-driver", info["LoggingDriver"])
    if declared["docker_data_root"]:
        assert info["DockerRootDir"] == declared["docker_data_root"]
    for name, limit in declared["docker_default_ulimits"].items():
        soft, _, hard = str(limit).partition(":")
        assert held["default-ulimits"][name] == {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}
    assert started >= modified


def test_docker_starts_after_the_mounts(host: Any, declared: dict[str, Any]) -> None:
    places = [declared["storage_weights_mount"], *(mount["path"] for mount in declared["storage_mounts"])]
    wanted = [place for place in (*places, declared["docker_data_root"]) if place]
    held = host.check_output("systemctl show docker --property=RequiresMountsFor --value").split()
    assert set(wanted) <= set(held)


def test_users_are_in_the_docker_group_where_asked(host: Any, declared: dict[str, Any]) -> None:
    for name in declared["docker_users"]:
        assert "docker" in host.user(name).groups
        assert len(host.user(name).groups) > 1  # appended, not replaced


def test_login_sessions_have_the_limits(host: Any, declared: dict[str, Any]) -> None:
    wanted = str(declared["host_limits_nofile"])
    assert host.check_output("ulimit -Hn") == wanted
    assert host.check_output("ulimit -Sn") == wanted


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_the_pinned_memory_of_sessions_is_declared(host: Any, declared: dict[str, Any], kind: str) -> None:
    lines = host.file("/etc/security/limits.d/90-gb10.conf").content_string.splitlines()
    assert ["*", kind, "memlock", str(declared["host_limits_memlock"])] in [line.split() for line in lines]


def test_kernel_parameters_are_set_now_and_at_boot(host: Any, declared: dict[str, Any]) -> None:
    kept = host.file("/etc/sysctl.d/90-gb10.conf")
    for name, value in declared["host_limits_sysctls"].items():
        assert str(host.sysctl(name)) == str(value)
        assert f"{name}={value}" in kept.content_string.splitlines()


def test_the_memory_guard_runs_with_our_arguments_and_sshd_is_safe(host: Any, declared: dict[str, Any]) -> None:
    if declared["host_limits_memory_guard"] == "none":
        assert "90-gb10" in host.check_output("ls /etc/security/limits.d")  # declared away, and the role was here
        return
    assert host.service("earlyoom").is_running
    assert host.service("earlyoom").is_enabled
    (process,) = host.process.filter(comm="earlyoom")
    for word in " ".join(declared["host_limits_guard_arguments"]).split():
        assert word in process.args.split()
    with host.sudo():
        pid = host.check_output("systemctl show ssh --property=MainPID --value")
        assert int(host.file(f"/proc/{pid}/oom_score_adj").content_string) <= -900


def test_sessions_leave_what_they_share(host: Any, declared: dict[str, Any]) -> None:
    if declared["host_limits_keep_ipc"]:
        assert busctl(host, "RemoveIPC") == "b false"
    for name in declared["host_limits_linger"]:
        assert host.check_output(f"loginctl show-user {name} --property=Linger --value") == "yes"


def test_file_systems_are_mounted_by_uuid(host: Any, declared: dict[str, Any]) -> None:
    for mount in declared["storage_mounts"]:
        held = host.mount_point(mount["path"])
        assert held.exists
        assert held.filesystem == mount.get("fstype", "ext4")
        assert "noatime" in held.options
        uuid = host.check_output(f"findmnt --noheadings --output UUID {mount['path']}")
        assert uuid == mount.get("uuid", uuid).lower()
        lines = [line.split() for line in host.file("/etc/fstab").content_string.splitlines() if line.strip()]
        (line,) = [line for line in lines if line[1:2] == [mount["path"]]]
        assert line[0] == f"UUID={uuid}"
        assert {"nofail", "x-systemd.device-timeout=30s"} <= set(line[3].split(","))


def test_weights_and_compiled_kernels_have_their_places(host: Any, declared: dict[str, Any]) -> None:
    if declared["storage_weights_mount"]:
        assert host.mount_point(declared["storage_weights_mount"]).exists
    if declared["storage_cache_path"]:
        assert host.file(declared["storage_cache_path"]).is_directory


def test_what_was_changed_is_on_record_for_root_alone(host: Any) -> None:
    with host.sudo():
        record = host.file("/var/lib/gb10/originals/originals.json")
        assert record.mode == 0o600
        items = json.loads(record.content_string)["items"]
        for item in items.values():
            if item["kind"] == "file" and item["was"].get("sha256"):
                assert host.file(f"/var/lib/gb10/originals/{item['was']['sha256']}").sha256sum == item["was"]["sha256"]
    assert "file:/etc/security/limits.d/90-gb10.conf" in items
