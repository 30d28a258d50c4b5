"""What a node lacks, from its facts: cases 19 and 25, and that a prepared node lacks nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gb10_node import Disk, container, running, spark
from wanted import acted, looked, settings, wanted

from gb10 import todo
from gb10.managed import idle
from gb10.prepared import read_prepared
from gb10.todo import (
    DAEMON_JSON,
    docker_todo,
    limits_todo,
    merged_daemon_json,
    storage_todo,
)

WANTED = {"log-driver": "json-file", "log-opts": {"max-size": "50m"}}
SERVING = running(container())
FULL = {
    "docker_default_ulimits": {"memlock": "-1:-1", "nofile": "1048576:1048576", "stack": "67108864"},
    "docker_users": ["nvidia"],
    "host_limits_sysctls": {"vm.min_free_kbytes": "1048576"},
    "host_limits_linger": ["nvidia"],
}


def paths(todo: dict[str, Any]) -> list[str]:
    return [file["path"] for file in todo["files"]]


def content(todo: dict[str, Any], path: str) -> str:
    (text,) = [file["content"] for file in todo["files"] if file["path"] == path]
    return str(text)


def codes(facts: dict[str, Any], **changes: Any) -> set[tuple[str, str, str]]:
    return {(f.level, f.node, f.code) for f in todo.node_findings("spark-153", facts, wanted(**changes))}


# --- Docker ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "result"),
    [
        (None, WANTED),
        ({}, WANTED),
        (WANTED, None),
        ({**WANTED, "runtimes": {"nvidia": {"path": "x"}}}, None),
        ({"runtimes": {"nvidia": {"path": "x"}}}, {"runtimes": {"nvidia": {"path": "x"}}, **WANTED}),
        (
            {"log-driver": "local", "log-opts": {"max-file": "9"}},
            {"log-driver": "json-file", "log-opts": {"max-file": "9", "max-size": "50m"}},
        ),
    ],
)
def test_daemon_json_is_merged_key_by_key(current: Any, result: Any) -> None:
    """Case 19."""
    merged = merged_daemon_json(current, WANTED)
    assert (None if merged is None else json.loads(merged)) == result


def test_a_fresh_node_gets_all_of_it(tmp_path: Path) -> None:
    facts = looked(tmp_path, spark(docker=None, daemon_json=None, requests=False), **FULL)
    done = docker_todo(facts, wanted(**FULL))
    assert done["packages"] == ["docker.io", "python3-requests"]
    assert (done["start"], done["restart"]) == (True, False)  # it starts with its files
    held = json.loads(content(done, DAEMON_JSON))
    assert held["log-driver"] == "json-file"
    assert held["default-ulimits"] == {
        "memlock": {"Name": "memlock", "Soft": -1, "Hard": -1},
        "nofile": {"Name": "nofile", "Soft": 1048576, "Hard": 1048576},
        "stack": {"Name": "stack", "Soft": 67108864, "Hard": 67108864},
    }
    assert "RequiresMountsFor=/data\n" in content(done, todo.DOCKER_MOUNTS)
    assert done["directories"] == ["/etc/docker", "/etc/systemd/system/docker.service.d"]
    assert done["users"] == ["nvidia"]
    limits = limits_todo(facts, wanted(**FULL))
    assert paths(limits) == [todo.LIMITS, todo.SYSCTLS, todo.LOGIND, todo.GUARD]
    assert "*    hard memlock unlimited\n" in content(limits, todo.LIMITS)
    assert limits["sysctls"] == {"vm.min_free_kbytes": "1048576"}
    assert (limits["packages"], limits["linger"], limits["guard"]) == (["earlyoom"], ["nvidia"], "restarted")
    assert limits["notify"] == ["Logind restarts"]
    assert storage_todo(facts, wanted(**FULL))["cache"] == "/var/cache/gb10"


def test_everything_about_to_change_is_on_record_first(tmp_path: Path) -> None:
    facts = looked(tmp_path, spark(docker=None, daemon_json=None, requests=False), **FULL)
    for done in todo.node_todo(facts, wanted(**FULL)).values():
        assert not idle(done)
        kept = {(item["kind"], item["name"]) for item in done["keep"]}
        assert kept >= {("file", path) for path in paths({"files": done.get("files", [])})}
        assert kept >= {("directory", folder) for folder in done.get("directories", [])}
        assert kept >= {("package", name) for name in done["packages"]}
        assert kept >= {("sysctl", name) for name in done.get("sysctls", {})}
        assert kept >= {("member", f"docker/{name}") for name in done.get("users", [])}
        assert kept >= {("linger", name) for name in done.get("linger", [])}


def test_a_prepared_node_lacks_nothing(tmp_path: Path) -> None:
    tree = spark(daemon_json=json.dumps(wanted().docker_daemon))
    prepared = wanted(host_limits_sysctls={"vm.min_free_kbytes": "67584"}, host_limits_memory_guard="none")
    facts = acted(tree, looked(tmp_path, tree, host_limits_sysctls={"vm.min_free_kbytes": "67584"}), prepared)
    for role, done in todo.node_todo(facts, prepared).items():
        assert idle(done), (role, done)
        for key in done:
            assert idle({**done, key: ["one"]}) == (key == "reach"), (role, key)


@pytest.mark.parametrize(
    ("held", "again"),
    [({"sha256": "0" * 64}, True), ({"mode": "0666"}, True), ({"owner": "nvidia"}, True), ({"kind": "file"}, False)],
)
def test_a_file_that_was_touched_is_written_again(tmp_path: Path, held: dict[str, str], again: bool) -> None:
    tree = spark()
    facts = acted(tree, looked(tmp_path, tree), wanted())
    facts["files"][todo.LOGIND] |= held
    assert (todo.LOGIND in paths(limits_todo(facts, wanted()))) == again


def test_a_broken_daemon_json_is_never_written_over(tmp_path: Path) -> None:
    """Case 19."""
    done = docker_todo(looked(tmp_path, spark(daemon_json='{"a": 1,}')), wanted())
    assert DAEMON_JSON not in paths(done)
    assert not done["restart"]


@pytest.mark.parametrize(
    ("tree", "changes", "refused"),
    [
        (spark(docker=SERVING), {}, {"docker-restart-refused", "install-refused"}),
        (spark(docker=SERVING), {"docker_restart_under_rank": "false"}, {"docker-restart-refused", "install-refused"}),
        (spark(docker=SERVING), {"docker_restart_under_rank": True}, set()),
        (spark(docker=SERVING), {"docker_restart_under_rank": "true"}, set()),
        (spark(), {}, set()),
        (spark(docker=SERVING), {"docker_daemon": {}, "host_limits_memory_guard": "none"}, set()),
        (spark(docker=running(container(state="exited"))), {}, set()),
    ],
)
def test_nothing_restarts_under_a_rank_unless_asked(
    tmp_path: Path, tree: Any, changes: dict[str, Any], refused: set[str]
) -> None:
    facts = looked(tmp_path, tree, **changes)
    assert codes(facts, **changes) == {("error", "spark-153", code) for code in refused}


def test_under_a_rank_units_wait_for_the_next_boot(tmp_path: Path) -> None:
    changes = {"docker_daemon": {}, "host_limits_memory_guard": "none"}
    facts = looked(tmp_path, spark(docker=SERVING), **changes)
    done = docker_todo(facts, wanted(**changes))
    assert (paths(done), done["notify"]) == ([todo.DOCKER_MOUNTS], [])
    assert limits_todo(facts, wanted(**changes))["notify"] == []
    idle = docker_todo(looked(tmp_path / "idle", spark(), **changes), wanted(**changes))
    assert idle["notify"] == ["Systemd knows its units"]


@pytest.mark.parametrize(("modified", "late"), [(200, True), (100, False), (50, False), (None, False)])
@pytest.mark.parametrize(
    ("path", "unit", "services"),
    [
        (DAEMON_JSON, "docker.service", ["docker"]),
        (todo.CONTAINERD, "containerd.service", ["containerd", "docker"]),
        (todo.LOGIND, "systemd-logind.service", ["logind"]),
        (todo.GUARD, "earlyoom.service", ["earlyoom"]),
    ],
)
def test_a_run_that_ended_before_a_restart_is_gone_on_with(
    tmp_path: Path, path: str, unit: str, services: list[str], modified: int | None, late: bool
) -> None:
    tree = spark(daemon_json=json.dumps(wanted().docker_daemon))
    facts = acted(tree, looked(tmp_path, tree), wanted())
    for other in (DAEMON_JSON, todo.CONTAINERD, todo.LOGIND, todo.GUARD):
        facts["files"][other] = {**facts["files"][other], "modified": modified if other == path else 1}
    for name in facts["units"]:
        facts["units"][name] |= {"active": "active", "enabled": "enabled", "since": 100}
    assert restarted(facts) == (services if late else [])
    facts["docker"]["containers"] = [{"ours": True, "state": "running"}]
    assert restarted(facts) == (services if late and services == ["earlyoom"] else [])


def restarted(facts: dict[str, Any]) -> list[str]:
    docker, limits = docker_todo(facts, wanted()), limits_todo(facts, wanted())
    names = [*docker["late"], *(["logind"] if limits["late"] else [])]
    return names + (["earlyoom"] if limits["guard"] == "restarted" else [])


@pytest.mark.parametrize("ranks", [[], [{"ours": True, "state": "running"}]])
def test_units_systemd_did_not_read_again_are_read_unless_a_rank_runs(tmp_path: Path, ranks: list[Any]) -> None:
    facts = looked(tmp_path, spark())
    assert not docker_todo(facts, wanted())["stale"]
    facts["units"]["docker.service"]["stale"] = True
    facts["docker"]["containers"] = ranks
    assert docker_todo(facts, wanted())["stale"] == (not ranks)


@pytest.mark.parametrize(
    ("docker", "root", "refused"),
    [
        ({}, "/data/docker", True),
        ({"/images/json": []}, "/data/docker", False),
        ({"/images/json": []}, "/var/lib/docker", False),
        ({}, "/var/lib/docker/", False),
        (running(container("other"), **{"/images/json": []}), "/data/docker", True),
        ({}, "", False),
    ],
)
def test_a_root_that_holds_something_is_not_left_behind(
    tmp_path: Path, docker: dict[str, Any], root: str, refused: bool
) -> None:
    facts = looked(tmp_path, spark(docker=docker), docker_data_root=root)
    assert (("error", "spark-153", "docker-root-not-empty") in codes(facts, docker_data_root=root)) == refused


FILLED = {"/info": {"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]], "DockerRootDir": "/data/docker"}}
CONTAINERD = {
    "/info": {"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]], "DockerRootDir": "/var/lib/docker"},
    "/images/json": [],
}


def test_the_containerd_store_moves_with_the_data_root(tmp_path: Path) -> None:
    moved = {"docker_data_root": "/data/docker"}
    fresh = docker_todo(looked(tmp_path / "a", spark(docker=CONTAINERD), **moved), wanted(**moved))
    assert content(fresh, todo.CONTAINERD) == 'version = 2\nroot = "/data/docker/containerd"\n'
    assert json.loads(content(fresh, DAEMON_JSON))["data-root"] == "/data/docker"
    assert fresh["notify"] == ["Systemd knows its units", "Containerd restarts", "Docker restarts"]
    held = 'disabled_plugins = ["cri"]\n#root = "/var/lib/containerd"\n[debug]\n  root = "x"\n'
    tree = spark(docker=CONTAINERD, system={todo.CONTAINERD: held})
    there = docker_todo(looked(tmp_path / "b", tree, **moved), wanted(**moved))
    assert todo.CONTAINERD not in paths(there)
    assert there["containerd_line"] == 'root = "/data/docker/containerd"'
    assert there["made"] == [{"kind": "file", "name": todo.CONTAINERD, "ours": "now"}]
    done = spark(docker=CONTAINERD, system={todo.CONTAINERD: 'root = "/data/docker/containerd"\n' + held})
    assert docker_todo(looked(tmp_path / "c", done, **moved), wanted(**moved))["containerd_line"] == ""
    assert docker_todo(looked(tmp_path / "d", spark(docker=CONTAINERD)), wanted())["containerd_line"] == ""


@pytest.mark.parametrize(
    ("docker", "asked", "moves"),
    [
        ({"/images/json": []}, {"features": {"containerd-snapshotter": True}}, True),  # in the run that turns it on
        ({"/images/json": []}, {}, False),
        (None, {}, True),  # Docker's own default comes with its first start
        (None, {"features": {"containerd-snapshotter": False}}, False),
        (None, {"storage-driver": "overlay2"}, False),
        (CONTAINERD, {"features": {"containerd-snapshotter": False}}, False),
    ],
)
def test_containerd_moves_where_its_store_is_or_will_be(
    tmp_path: Path, docker: Any, asked: dict[str, Any], moves: bool
) -> None:
    changes = {"docker_data_root": "/data/docker", "docker_daemon": asked}
    done = docker_todo(looked(tmp_path, spark(docker=docker, daemon_json=None), **changes), wanted(**changes))
    assert (todo.CONTAINERD in paths(done)) == moves
    assert ("Containerd restarts" in done["notify"]) == (moves and docker is not None)


def test_images_in_containerds_root_are_not_left_behind(tmp_path: Path) -> None:
    """Docker's own root is where it is to be already."""
    changes = {"docker_data_root": "/data/docker"}
    left = todo.node_findings("n", looked(tmp_path / "a", spark(docker=FILLED), **changes), wanted(**changes))
    (found,) = [finding for finding in left if finding.code == "docker-root-not-empty"]
    assert "under /var/lib/containerd, which docker_data_root /data/docker" in found.message
    tree = spark(docker=FILLED, system={todo.CONTAINERD: 'root = "/data/docker/containerd"\n'})
    assert codes(looked(tmp_path / "b", tree, **changes), **changes) == set()


@pytest.mark.parametrize(
    ("held", "asked", "conflict"),
    [
        ({"storage-driver": "overlay2"}, {"features": {"containerd-snapshotter": True}}, True),
        ({"features": {"containerd-snapshotter": True}}, {"storage-driver": "vfs"}, True),
        ({"features": {"containerd-snapshotter": True}, "storage-driver": "overlay2"}, {}, True),
        ({}, {"features": {"containerd-snapshotter": True}, "storage-driver": "overlay2"}, True),
        ({"storage-driver": "overlay2"}, {"features": {"cdi": True}}, False),
        ({"storage-driver": "overlayfs"}, {"features": {"containerd-snapshotter": True}}, False),
        ({"storage-driver": "overlay2"}, {"features": {"containerd-snapshotter": False}}, False),
        ({"features": {"containerd-snapshotter": True}, "storage-driver": "vfs"}, {"storage-driver": "zfs"}, False),
        ({"storage-driver": "overlay2"}, {}, False),
        ({"storage-driver": ["overlay2"], "features": ["containerd-snapshotter"]}, {}, False),
    ],
)
def test_a_driver_that_containerd_does_not_have_is_refused(
    tmp_path: Path, held: dict[str, Any], asked: dict[str, Any], conflict: bool
) -> None:
    docker = {"/images/json": [], "/containers/json?all=true": []}
    facts = looked(tmp_path, spark(docker=docker, daemon_json=json.dumps(held)), docker_daemon=asked)
    refused = ("error", "spark-153", "docker-store-conflict") in codes(facts, docker_daemon=asked)
    assert refused == conflict


@pytest.mark.parametrize(
    ("docker", "held", "asked", "refused"),
    [
        ({}, {}, {"features": {"containerd-snapshotter": True}}, True),
        ({}, {"features": {"containerd-snapshotter": True}}, {}, True),  # written, and Docker not yet restarted
        ({}, {}, {"features": {"containerd-snapshotter": False}}, False),
        ({}, {}, {"features": {"cdi": True}}, False),
        ({"/images/json": []}, {}, {"features": {"containerd-snapshotter": True}}, False),
        (FILLED, {}, {"storage-driver": "overlay2"}, True),  # which takes Docker 29 back to its classic store
        (FILLED, {}, {"storage-driver": "overlayfs"}, False),
        (FILLED, {}, {}, False),
    ],
)
def test_images_are_not_hidden_by_another_store(
    tmp_path: Path, docker: dict[str, Any], held: dict[str, Any], asked: dict[str, Any], refused: bool
) -> None:
    facts = looked(tmp_path, spark(docker=docker, daemon_json=json.dumps(held)), docker_daemon=asked)
    assert (("error", "spark-153", "docker-store-not-empty") in codes(facts, docker_daemon=asked)) == refused


@pytest.mark.parametrize(
    ("how", "toolkit", "held", "keys", "runs"),
    [
        ("none", True, "", {}, False),
        ("runtime", True, "", {"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}}, False),
        ("cdi", True, "", {"features": {"cdi": True}}, True),
        ("cdi", True, "/var/run/cdi/nvidia.yaml", {"features": {"cdi": True}}, False),
        ("cdi", False, "", {"features": {"cdi": True}}, False),
    ],
)
def test_the_gpu_reaches_containers_as_asked(
    tmp_path: Path, how: str, toolkit: bool, held: str, keys: dict[str, Any], runs: bool
) -> None:
    system = {path: "" for path in (held, "/usr/bin/nvidia-ctk" if toolkit else "") if path}
    facts = looked(tmp_path, spark(daemon_json="{}", system=system), docker_nvidia=how)
    done = docker_todo(facts, wanted(docker_nvidia=how))
    assert keys.items() <= json.loads(content(done, DAEMON_JSON)).items()
    assert bool(done["cdi"]) == runs
    assert (("error", "spark-153", "nvidia-ctk-missing") in codes(facts, docker_nvidia=how)) == (not toolkit)


def test_users_are_appended_where_asked_and_unknown_ones_refused(tmp_path: Path) -> None:
    """Case 25: nothing asks for the group by itself."""
    assert docker_todo(looked(tmp_path / "a", spark()), wanted())["users"] == []
    asked = {"docker_users": ["nvidia"]}
    facts = looked(tmp_path / "b", spark(), **asked)
    assert docker_todo(facts, wanted(**asked))["users"] == ["nvidia"]
    facts["users"]["nvidia"]["groups"].append("docker")
    assert docker_todo(facts, wanted(**asked))["users"] == []
    wrong = {"docker_users": ["nvidai"], "host_limits_linger": ["nvidia"]}
    found = todo.node_findings("spark-153", looked(tmp_path / "c", spark(), **wrong), wanted(**wrong))
    assert [(f.code, f.message) for f in found] == [("user-unknown", "There is no user nvidai.")]


# --- limits ----------------------------------------------------------------------------------------------------------


def test_sysctls_are_compared_as_the_kernel_shows_them(tmp_path: Path) -> None:
    asked = {"host_limits_sysctls": {"net.ipv4.tcp_rmem": "4096 131072  6291456", "vm.absent": 1}}
    tree = spark(system={"/proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n"})
    facts = looked(tmp_path, tree, **asked)
    assert limits_todo(facts, wanted(**asked))["sysctls"] == {"vm.absent": "1"}
    assert codes(facts, **asked) == {("error", "spark-153", "sysctl-unknown")}


def test_memory_that_will_no_longer_count_is_said(tmp_path: Path) -> None:
    asked = {"host_limits_sysctls": {"vm.min_free_kbytes": "1048576"}}
    facts = looked(tmp_path, spark(), **asked)
    (found,) = todo.node_findings("spark-153", facts, wanted(**asked))
    assert (found.level, found.code) == ("warning", "memory-reserve-grows")
    assert "from 67584 to 1048576: MemAvailable will be up to 1.4 GiB less" in found.message


@pytest.mark.parametrize(
    ("unit", "guard", "state"),
    [
        ({"active": "active", "enabled": "enabled"}, "earlyoom", ""),
        ({"active": "failed", "enabled": "enabled"}, "earlyoom", "started"),
        ({"active": "active", "enabled": "disabled"}, "earlyoom", "started"),
        ({"active": "inactive", "enabled": None}, "none", ""),
    ],
)
def test_the_memory_guard_runs(tmp_path: Path, unit: dict[str, Any], guard: str, state: str) -> None:
    tree = spark()
    facts = acted(tree, looked(tmp_path, tree), wanted())
    facts["units"]["earlyoom.service"] = unit
    assert limits_todo(facts, wanted(host_limits_memory_guard=guard))["guard"] == state


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("docker_nvidia", "yes", "one of runtime, cdi, none"),
        ("docker_users", "nvidia", "a list"),
        ("docker_users", ["a b"], "a list of user names"),
        ("docker_default_ulimits", {"nofile": "unlimited"}, "a mapping of limits"),
        ("docker_data_root", "data", "an absolute path"),
        ("host_limits_sysctls", {"vm.swappiness": True}, "a mapping of sysctls"),
        ("host_limits_sysctls", {"swappiness": "1"}, "a mapping of sysctls"),
        ("storage_mounts", [{"path": "/data", "uuid": "x", "disk": "y"}], "a list of {path"),
        ("storage_mounts", [{"path": "/", "uuid": "x"}], "a list of {path"),
        ("storage_mounts", [{"path": "/data", "disk": "x", "fstype": "btrfs"}], "ext4 or xfs"),
        ("storage_mounts", [{"path": "/data", "disk": "x; rm -rf /"}], "a list of {path"),
        (
            "storage_mounts",
            [{"path": "/data", "disk": "x"}, {"path": "/data/", "uuid": "y"}],
            "every path is there once",
        ),
        ("storage_format_allowed", "maybe", "true or false"),
        ("storage_probe", "sometimes", "true or false"),
    ],
)
def test_nonsense_is_refused_with_the_variable_and_the_node(name: str, value: Any, says: str) -> None:
    prepared, findings = read_prepared(settings(**{name: value}), "spark-153")
    assert prepared is None
    (found,) = findings
    assert (found.level, found.node, found.code) == ("error", "spark-153", "setting-invalid")
    assert found.message.startswith(f"{name} is ")
    assert says in found.message


# --- storage ---------------------------------------------------------------------------------------------------------


def test_an_empty_disk_is_formatted_then_mounted_then_left_alone(tmp_path: Path) -> None:
    asked = {
        "storage_mounts": [{"path": "/srv/fast", "disk": "S7NEW001", "fstype": "xfs"}],
        "storage_format_allowed": True,
    }
    disk = Disk()
    first = storage_todo(looked(tmp_path / "a", spark(disks=[disk]), **asked), wanted(**asked))
    assert first["format"] == [{"device": "/dev/nvme1n1", "fstype": "xfs", "opts": "-L gb10"}]
    assert (first["mounts"], first["packages"]) == ([], ["xfsprogs"])
    assert {"kind": "disk", "name": "/dev/nvme1n1 (S7NEW001)"} in first["keep"]
    formatted = replace(disk, fstype="xfs", uuid="ab-12", label="gb10")
    second = storage_todo(looked(tmp_path / "b", spark(disks=[formatted]), **asked), wanted(**asked))
    opts = "noatime,nofail,x-systemd.device-timeout=30s"
    mount = {"src": "UUID=ab-12", "path": "/srv/fast", "fstype": "xfs", "opts": opts, "state": "mounted"}
    assert second["mounts"] == [mount]
    assert second["format"] == []
    assert {"kind": "fstab", "name": "/srv/fast", "ours": f"UUID=ab-12 /srv/fast xfs {opts} 0 0"} in second["keep"]
    tree = spark(
        disks=[replace(formatted, mountpoints=["/srv/fast"], label="other")],
        system={"/etc/fstab": f"UUID=ab-12 /srv/fast xfs {opts} 0 0\n"},
    )
    facts = looked(tmp_path / "c", tree, **asked)
    third = storage_todo(facts, wanted(**asked))
    assert (third["mounts"], third["format"]) == ([], [])
    assert codes(facts, **asked) == set()
    renamed = replace(tree, disks=[replace(tree.disks[0], name="nvme7n1")])
    assert storage_todo(looked(tmp_path / "d", renamed, **asked), wanted(**asked))["mounts"] == []


@pytest.mark.parametrize(
    ("opts", "live", "again"),
    [
        ("noatime,nofail", "rw,noatime", False),
        ("noatime,nofail", "rw,relatime", True),
        ("noatime,nofail", "ro,noatime", False),  # the kernel's answer to a disk that fails
        ("noatime,nofail", "rw,nosuid,noatime", True),
        ("nofail", "rw,relatime", False),
        ("nofail", "rw,noatime", True),
    ],
)
def test_a_mount_with_other_options_than_its_line_is_remounted(
    tmp_path: Path, opts: str, live: str, again: bool
) -> None:
    asked = {"storage_mounts": [{"path": "/srv/fast", "disk": "S7NEW001", "fstype": "xfs", "opts": opts}]}
    disk = Disk(fstype="xfs", uuid="ab-12", label="gb10", mountpoints=["/srv/fast"])
    tree = spark(disks=[disk], system={"/etc/fstab": f"UUID=ab-12 /srv/fast xfs {opts} 0 0\n"})
    tree = replace(tree, mounts=[*tree.mounts, f"/dev/nvme1n1 /srv/fast xfs {live} 0 0"])
    todo = storage_todo(looked(tmp_path, tree, **asked), wanted(**asked))
    assert [mount["state"] for mount in todo["mounts"]] == ["remounted"] * again
    assert not [item for item in todo["keep"] if item["kind"] == "fstab"]


ENTRY = "UUID=ab-12 /srv/fast ext4 noatime,nofail,x-systemd.device-timeout=30s 0 0\n"


@pytest.mark.parametrize(
    ("fstab", "refused"),
    [
        ("", False),
        (ENTRY, False),
        ("UUID=gone-1 /srv/fast ext4 defaults 0 2\n", False),  # stale: replaced, and on record
        (f"# {ENTRY}{ENTRY}", False),
        (f"{ENTRY}UUID=gone-1 /srv/fast ext4 defaults 0 2\n", True),
        (ENTRY + ENTRY, True),
        ("UUID=gone-1 /srv/fast/ ext4 defaults 0 2\n", True),
        (f"{ENTRY}UUID=gone-1 /srv/faster ext4 defaults 0 2\n", False),
    ],
)
def test_a_mount_point_has_one_line_in_fstab(tmp_path: Path, fstab: str, refused: bool) -> None:
    asked = {"storage_mounts": [{"path": "/srv/fast", "disk": "S7NEW001"}]}
    disk = Disk(fstype="ext4", uuid="ab-12", label="gb10")
    facts = looked(tmp_path, spark(disks=[disk], system={"/etc/fstab": fstab}), **asked)
    assert (("error", "spark-153", "fstab-repeated") in codes(facts, **asked)) == refused
    if not refused:
        lines = [item["name"] for item in storage_todo(facts, wanted(**asked))["keep"] if item["kind"] == "fstab"]
        assert lines == ["/srv/fast"]  # its line as it was is kept before it is replaced
