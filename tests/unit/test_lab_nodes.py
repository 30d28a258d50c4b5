"""The lab's own parts that need no Docker: package sources, capabilities, keys of the cache, the inventory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from support import ROOT

sys.path.insert(0, str(ROOT))  # the lab is run from the checkout and not installed

from lab import dockerd, host, inventory, node_image, nodes
from lab.cache import atomic_dir, cache_dir, digest
from lab.node_image import Source
from lab.run import LabError, run

ALL = (1 << len(nodes.CAPABILITIES)) - 1


def bit(name: str) -> int:
    return 1 << nodes.CAPABILITIES.index(name)


# --- apt sources


@pytest.mark.parametrize(
    ("line", "sources"),
    [
        ("deb http://m/debian trixie main", [Source("http://m/debian", "trixie", ("main",))]),
        (
            "deb [arch=amd64 signed-by=/k/a.gpg,/k/b.gpg] http://m/d bookworm main contrib # why",
            [Source("http://m/d", "bookworm", ("main", "contrib"), "/k/a.gpg")],
        ),
        ("  deb\thttp://m/d  x  main ", [Source("http://m/d", "x", ("main",))]),
        ("deb-src http://m/d x main\n# deb http://m/d y main\n\n", []),
    ],
)
def test_one_line_sources(line: str, sources: list[Source]) -> None:
    assert list(node_image.parse_one_line(line)) == sources


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        (
            "Types: deb deb-src\n# a comment\nURIs: http://m/d http://n/d\nSuites: x x-updates\nComponents: main\n"
            "Signed-By: /k/a.gpg\n",
            [
                Source("http://m/d", "x", ("main",), "/k/a.gpg"),
                Source("http://m/d", "x-updates", ("main",), "/k/a.gpg"),
                Source("http://n/d", "x", ("main",), "/k/a.gpg"),
                Source("http://n/d", "x-updates", ("main",), "/k/a.gpg"),
            ],
        ),
        ("types: deb\nuris: http://m/d\nSuites:\n x\nComponents: main\n universe\n", [("http://m/d", "x")]),
        ("Types: deb\nEnabled: no\nURIs: http://m/d\nSuites: x\nComponents: main\n", []),
        ("Types: deb-src\nURIs: http://m/d\nSuites: x\nComponents: main\n", []),
        ("Types: deb\nURIs: http://m/d\nSuites: x\nSigned-By:\n -----BEGIN PGP\n .\n xyz\n", [("http://m/d", "x")]),
        ("Types: deb\nURIs: http://a\nSuites: x\n \n\nTypes: deb\nURIs: http://b\nSuites: y\n", None),
    ],
    ids=["several", "continued", "disabled", "source-only", "embedded-key", "two-paragraphs"],
)
def test_deb822_sources(text: str, sources: list[Source] | list[tuple[str, str]] | None) -> None:
    found = list(node_image.parse_deb822(text))
    if sources is None:
        assert [(source.uri, source.suite) for source in found] == [("http://a", "x"), ("http://b", "y")]
    elif sources and isinstance(sources[0], tuple):
        assert [(source.uri, source.suite) for source in found] == sources
        assert [source.keyring for source in found] == [""]
    else:
        assert found == sources


def test_sources_are_read_from_both_kinds_of_files_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://a x main\n")
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "b.list").write_text("deb http://b x main\n")
    (parts / "c.sources").write_text("Types: deb\nURIs: http://c\nSuites: x\nComponents: main\n")
    (parts / "d.list.disabled").write_text("deb http://d x main\n")
    (parts / "e.sources.save").write_text("Types: deb\nURIs: http://e\nSuites: x\nComponents: main\n")
    assert [source.uri for source in node_image.read_sources(tmp_path)] == ["http://a", "http://b", "http://c"]


@pytest.mark.parametrize(
    ("release", "chosen"),
    [
        ({"ID": "debian", "VERSION_CODENAME": "trixie"}, Source("http://deb", "trixie", ("main",), "/k")),
        ({"ID": "ubuntu", "VERSION_CODENAME": "noble"}, Source("http://ubu", "noble", ("main", "universe"))),
    ],
)
def test_the_machines_own_source_is_chosen(release: dict[str, str], chosen: Source) -> None:
    sources = [
        Source("http://extra", "trixie", ("stable",)),
        Source("http://deb", "trixie", ("main", "contrib"), "/k"),
        Source("http://sec", "trixie-security", ("main",)),
        Source("http://ubu", "noble", ("main",)),
    ]
    assert node_image.choose_source(sources, release) == chosen


def test_no_source_for_the_own_suite_is_refused_with_what_there_is() -> None:
    with pytest.raises(LabError, match=r"'bookworm' \(found: trixie\)"):
        node_image.choose_source([Source("http://a", "trixie", ("main",))], {"VERSION_CODENAME": "bookworm"})


# --- nodes


def test_capabilities_of_a_machine_without_sys_resource() -> None:
    options = nodes.capability_options(ALL & ~bit("SYS_RESOURCE"))
    assert "--cap-add=SYS_ADMIN" in options
    assert "--cap-add=NET_ADMIN" in options
    assert not [option for option in options if "SYS_RESOURCE" in option or option.startswith("--cap-drop")]
    assert not [option for option in options if option.removeprefix("--cap-add=") in nodes.DOCKER_DEFAULT]


def test_a_default_capability_the_machine_lacks_is_dropped() -> None:
    assert "--cap-drop=MKNOD" in nodes.capability_options(ALL & ~bit("MKNOD"))
    assert "--cap-add=SYS_RESOURCE" in nodes.capability_options(ALL)


def test_capability_numbers_are_the_kernels() -> None:
    numbers = {"SYS_ADMIN": 21, "SYS_RESOURCE": 24, "MKNOD": 27, "AUDIT_READ": 37, "CHECKPOINT_RESTORE": 40}
    assert {name: nodes.CAPABILITIES.index(name) for name in numbers} == numbers
    assert set(nodes.CAPABILITIES) > nodes.DOCKER_DEFAULT


def test_bounding_set_is_read_from_the_status() -> None:
    assert nodes.bounding_set("Name:\tx\nCapBnd:\t000001fffeffffff\nCapAmb:\t0\n") == ALL & ~bit("SYS_RESOURCE")
    with pytest.raises(LabError):
        nodes.bounding_set("Name:\tx\n")


@pytest.mark.parametrize(
    ("bounding", "nr_open", "limits"),
    [
        (ALL, 1 << 30, ["nofile=1048576:1048576", "memlock=-1:-1"]),
        (ALL, 65536, ["nofile=65536:65536", "memlock=-1:-1"]),
        (ALL & ~bit("SYS_RESOURCE"), 1 << 30, ["nofile=20000:20000", "memlock=8388608:8388608"]),
    ],
    ids=["real", "few-files", "cannot-raise"],
)
def test_limits_are_as_high_as_the_machine_allows(bounding: int, nr_open: int, limits: list[str]) -> None:
    expected = [f"--ulimit={limit}" for limit in limits]
    assert nodes.limit_options(bounding, 20000, 8 << 20, nr_open) == expected


def test_node_names_and_addresses_in_rank_order() -> None:
    all_nodes = nodes.first(8)
    assert [(node.rank, node.name) for node in all_nodes[:3]] == [(0, "spark-153"), (1, "spark-147"), (2, "spark-157")]
    assert [node.address for node in all_nodes] == [f"10.77.1.{n}" for n in (153, 147, 157, 158, 161, 162, 166, 148)]
    assert nodes.first(2) == all_nodes[:2]


@pytest.mark.parametrize("count", [0, 9, -1])
def test_other_node_counts_are_refused(count: int) -> None:
    with pytest.raises(LabError, match="1 to 8 nodes"):
        nodes.first(count)


def test_inventory_is_yaml_with_ranks_and_checked_host_keys(tmp_path: Path) -> None:
    keys = nodes.Keys(tmp_path / "a dir: x" / "ssh")
    text = inventory.render(nodes.first(2), keys)
    data = yaml.safe_load(text)
    lab = data["gb10"]["children"]["lab"]
    assert lab["hosts"] == {
        "spark-153": {"ansible_host": "10.77.1.153", "node_rank": 0},
        "spark-147": {"ansible_host": "10.77.1.147", "node_rank": 1},
    }
    variables = lab["vars"]
    assert variables["ansible_user"] == "nvidia"
    assert variables["ansible_ssh_private_key_file"] == str(keys.login)
    assert "StrictHostKeyChecking=yes" in variables["ansible_ssh_common_args"]
    assert str(keys.known_hosts) in variables["ansible_ssh_common_args"]
    assert variables["ansible_group_priority"] == 100


def test_inventory_is_written_only_when_it_differs(tmp_path: Path) -> None:
    keys, path = nodes.Keys(tmp_path / "ssh"), tmp_path / "inventory" / "hosts.yml"

    def write(count: int) -> bool:
        return inventory.write(path, nodes.first(count), keys, engine=tmp_path, weights=tmp_path, images=tmp_path)

    assert [write(2), write(2), write(1)] == [True, False, True]
    variables = yaml.safe_load((path.parent / "group_vars/lab.yml").read_text())
    assert variables == dict.fromkeys(("lab_engine_dir", "weights_source", "images_source"), str(tmp_path))


def test_keys_are_made_once_and_every_host_is_known_by_name_and_address(tmp_path: Path) -> None:
    keys = nodes.Keys(tmp_path / "ssh")
    keys.ensure(nodes.first(2))
    before = {path: path.read_bytes() for path in keys.directory.rglob("*") if path.is_file()}
    keys.ensure(nodes.first(2))
    assert {path: path.read_bytes() for path in keys.directory.rglob("*") if path.is_file()} == before
    lines = keys.known_hosts.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["spark-153,10.77.1.153", "spark-147,10.77.1.147"]
    assert len({line.split()[2] for line in lines}) == 2
    assert keys.login.stat().st_mode & 0o077 == 0
    assert keys.archive(nodes.first(1)[0]) == keys.archive(nodes.first(1)[0])


# --- the machine


def test_memory_is_read_in_gib() -> None:
    assert host.memory_total_gib("MemTotal:       25165824 kB\nMemFree: 1 kB\n") == 24.0


def test_too_little_memory_names_both_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GB10_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(host, "MEMORY_NODE_GIB", 1e6)
    assert "8 nodes need 8000002.0 GiB of memory, there are" in host.resource_problems(8)[0]
    with pytest.raises(LabError, match=r"cannot run the lab:\n  - 8 nodes"):
        host.require(host.resource_problems(8))


def test_mounts_under_the_labs_directories_are_found_innermost_first() -> None:
    mounts = "x / ext4 rw 0 0\nx /c/docker ext4 rw 0 0\no /c/docker/a\\040b overlay rw 0 0\nx /c/dockers ext4 rw 0 0\n"
    assert dockerd.mounts_under((Path("/c/docker"), Path("/r")), mounts) == ["/c/docker/a b", "/c/docker"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["up", "--nodes", "9"], "1 to 8 nodes, not 9"), (["check", "--nodes", "x"], "invalid int value: 'x'")],
)
def test_wrong_arguments_are_refused_in_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lab", *arguments]
    environment = {**os.environ, "GB10_LAB_CACHE": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert words in done.stderr.splitlines()[-1]


# --- running commands


def test_a_failing_command_is_quoted_with_its_last_lines() -> None:
    with pytest.raises(LabError, match=r"`cat /nowhere ...` failed with exit code 1:\n  cat: /nowhere: No such file"):
        run(["cat", "/nowhere"], timeout=10)


def test_a_missing_command_says_so() -> None:
    with pytest.raises(LabError, match="no-such-command is not installed"):
        run(["no-such-command"], timeout=10)


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys; open(sys.argv[1], 'w').write(str(os.getpid())); subprocess.run(['sleep', '60'])"
    )
    with pytest.raises(LabError, match="did not end within 1 s"):
        run([sys.executable, "-c", script, str(tmp_path / "pid")], timeout=1)
    group = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10  # the last signal is sent, the kernel still has to act on it
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(group) == []


def alive(group: int) -> list[str]:
    """The processes of a process group that are more than an entry in the table."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, leader, *_ = path.read_text().rpartition(")")[2].split()
            if int(leader) == group and state != "Z":
                found.append(path.parent.name)
    return found


# --- the cache


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GB10_LAB_CACHE", str(tmp_path / "named"))
    assert cache_dir() == tmp_path / "named"
    assert cache_dir().is_dir()
    monkeypatch.setenv("GB10_LAB_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "gb10-lab"


def test_digest_keeps_parts_apart_and_reads_files(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("content")
    assert digest(file) == digest("content") == digest(b"content")
    assert digest("ab", "c") != digest("a", "bc")
    assert len(digest()) == 12
    assert int(digest("x"), 16) >= 0


def test_atomic_dir_appears_whole(tmp_path: Path) -> None:
    dest = tmp_path / "deep" / "thing"
    with atomic_dir(dest) as work:
        (work / "file").write_text("x")
        assert not dest.exists()
        assert work.parent == dest.parent
    assert [path.name for path in dest.parent.iterdir()] == ["thing"]
    with atomic_dir(dest) as work:
        (work / "other").write_text("y")
    assert [path.name for path in dest.iterdir()] == ["other"]
    assert [path.name for path in dest.parent.iterdir()] == ["thing"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_atomic_dir_leaves_nothing_after_a_failure(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / "old").write_text("kept")

    def fail() -> None:
        with atomic_dir(tmp_path / "thing") as work:
            (work / "file").write_text("x")
            raise error

    with pytest.raises(error):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]
    assert (tmp_path / "thing" / "old").read_text() == "kept"
