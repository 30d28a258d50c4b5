"""Files from node to node: who gives what to whom, and the role itself, with real relays on loopback addresses."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from modules import run_action
from support import ROOT

from gb10 import spread

ADDRESSES = {f"n{i}": f"192.168.0.{i}" for i in range(5)}
FILES = [{"path": name, "size": size, "sha256": "0" * 64} for name, size in (("a", 10), ("b", 200), ("c", 3))]


def planned(source: str, wants: dict[str, list[str]], speeds: dict[str, float] | None = None) -> list[tuple[Any, ...]]:
    found, findings = spread.runs("r", source, FILES, wants, ADDRESSES, speeds or {})
    assert not findings
    return [(one["line"], [e["path"] for e in one["files"]], one["bytes"]) for one in found]


@pytest.mark.parametrize(
    ("source", "wants", "lines"),
    [
        ("n0", {}, []),
        ("n0", {"n0": ["a"]}, []),
        ("n0", {"n2": ["a", "b", "c"], "n1": ["a", "b", "c"]}, [(["n0", "n1", "n2"], ["a", "b", "c"], 213)]),
        # The largest share first; who lacks the same stands in one line.
        (
            "n1",
            {"n0": ["a"], "n2": ["a", "b"], "n4": ["b", "a"]},
            [(["n1", "n2", "n4"], ["b"], 200), (["n1", "n0", "n2", "n4"], ["a"], 10)],
        ),
    ],
)
def test_those_that_lack_the_same_stand_in_one_line(
    source: str, wants: dict[str, list[str]], lines: list[tuple[Any, ...]]
) -> None:
    assert planned(source, wants) == lines


def test_a_slow_node_stands_last() -> None:
    wants = {f"n{i}": ["a"] for i in range(1, 5)}
    speeds = {"n1": 10.0, "n2": 100.0, "n3": 99.0, "n4": 101.0}
    assert planned("n0", wants, speeds)[0][0] == ["n0", "n2", "n3", "n4", "n1"]


@pytest.mark.parametrize(
    ("source", "wants", "said"),
    [("x", {"n1": ["a"]}, "x is to take part"), ("n0", {"y": ["a"]}, "y is to"), ("n0", {"n1": ["z"]}, "have z")],
)
def test_what_makes_no_sense_is_said(source: str, wants: dict[str, list[str]], said: str) -> None:
    found, findings = spread.runs("r", source, FILES, wants, ADDRESSES, {})
    assert (found, [f.code for f in findings]) == ([], ["fanout-settings"])
    assert said in findings[0].message


def test_a_nodes_speed_is_that_of_its_slower_way_on_its_best_rail() -> None:
    """n1 sends slowly; rail 1 of n2 is broken; n3 was not measured."""
    rail = [[None, 90, 90, None], [20, None, 20, None], [90, 90, None, None], [None] * 4]
    half = [[None, 80, 0, None], [20, None, 0, None], [0, 0, None, None], [None] * 4]
    matrix = {"nodes": ["n0", "n1", "n2", "n3"], "rails": {"0": {"gbps": rail, "us": rail}, "1": {"gbps": half}}}
    assert spread.speeds_of(matrix) == {"n0": 55.0, "n1": 20.0, "n2": 55.0}
    assert spread.speeds_of({}) == {}


def test_trouble_names_node_step_and_code_once() -> None:
    failed = {"failed": True, "code": "fanout-port", "msg": "error [fanout-port] 10.0.0.1 port 1:\n taken."}
    assert spread.trouble("n1", "checking", failed) == "error [fanout-port] n1: checking: 10.0.0.1 port 1: taken."
    assert spread.trouble("n1", "checking", {"msg": "well"}) == ""
    assert spread.trouble("n1", "checking", {"unreachable": True}).startswith("error [fanout-lost] n1: checking: ")


# --- the role --------------------------------------------------------------------------------------------------------

WAIT = 90.0  # s; bounds what would hang, decides nothing
SIZE = 20 << 20


class Play:
    """Nodes that are this machine, each with a loopback address and a directory of its own."""

    HOST = "{{ inventory_hostname }}"

    def __init__(self, root: Path, count: int) -> None:
        tag = f"{random.SystemRandom().randrange(1 << 32):08x}"
        net = f"127.{int(tag[:2], 16) % 250 + 2}.{int(tag[2:4], 16)}"
        self.root, self.names = root, [f"sp{tag}n{n}" for n in range(count)]
        self.content = {f"shard-{n}": random.Random(n).randbytes(SIZE + n) for n in range(3)}
        self.source = root / self.names[0]
        self.source.mkdir()
        for name, data in self.content.items():
            (self.source / name).write_bytes(data)
        hosts = {
            name: {
                "ansible_connection": "local",
                "ansible_python_interpreter": sys.executable,
                "node_rank": n,
                "fabric_address": f"{net}.{n + 1}",
                "target": str(root / name),
            }
            for n, name in enumerate(self.names)
        }
        (root / "hosts.yml").write_text(yaml.safe_dump({"gb10": {"hosts": hosts}}))
        self.addresses = [host["fabric_address"] for host in hosts.values()]
        self.process: subprocess.Popen[str] | None = None

    def start(self, wants: dict[str, list[str]] | None = None, **given: Any) -> None:
        """The play, in a directory that is not the checkout's."""
        files = [
            {"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in self.content.items()
        ]
        variables = {
            "spread_source": self.names[0],
            "spread_from": str(self.source),
            "spread_to": "{{ target }}",
            "spread_files": files,
            "spread_wants": wants or {name: list(self.content) for name in self.names[1:]},
            "spread_processes": 2,
            "spread_progress": 2,
        } | given
        tasks: list[dict[str, Any]] = [
            {"name": "Spread", "ansible.builtin.include_role": {"name": "spread"}, "vars": variables},
            {"name": "Told", "ansible.builtin.debug": {"msg": f"TOLD {self.HOST} {{{{ gb10_spread | to_json }}}}"}},
        ]
        play = {"name": "P", "hosts": "gb10", "gather_facts": False, "any_errors_fatal": True, "tasks": tasks}
        (self.root / "play.yml").write_text(yaml.safe_dump([play]))
        command = [Path(sys.executable).parent / "ansible-playbook", "-vvv", "-i", "hosts.yml", "play.yml"]
        environment = os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        environment |= {"ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_LOCAL_TEMP": str(self.root / "controller")}
        self.process = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdout=(self.root / "out").open("w"),
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def end(self) -> tuple[int, str]:
        """Exit code and output."""
        assert self.process
        code = self.process.wait(timeout=WAIT)
        return code, (self.root / "out").read_text()

    def run(self, wants: dict[str, list[str]] | None = None, **given: Any) -> tuple[int, str]:
        self.start(wants, **given)
        return self.end()

    def told(self, out: str) -> dict[str, dict[str, Any]]:
        """``gb10_spread`` by node's number."""
        found = {}
        for name, text in re.findall(r'"msg": "TOLD (\S+) (\{.*\})"', out):
            found[name.rpartition("n")[2]] = json.loads(text.replace('\\"', '"'))
        return found

    def held(self, node: int) -> dict[str, bytes]:
        folder = self.root / self.names[node]
        files = [path for path in folder.rglob("*") if path.is_file() and path.name not in (".gb10-verified.json",)]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    def run_dirs(self) -> list[Path]:
        return sorted(Path("/run").glob(f"gb10-relay-*-{self.names[0].rpartition('n')[0]}n*"))

    def pids(self, node: int) -> list[int]:
        """The node's relay and its processes; empty while there is none."""
        for path in self.run_dirs():
            if path.name.endswith(self.names[node]) and (path / "status.json").exists():
                parent = json.loads((path / "status.json").read_text())["pid"]
                with suppress(OSError):
                    children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
                    return [parent, *map(int, children.split())]
        return []

    def clean(self) -> None:
        """No relay is left, nor a directory of one."""
        assert self.run_dirs() == []
        for address in self.addresses:
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, 29700))


def until(what: Callable[[], Any]) -> Any:
    """The first truth of ``what``."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        if got := what():
            return got
        time.sleep(0.005)
    raise AssertionError("waited in vain")


def told_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def command_lines() -> Iterator[str]:
    """Of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_text(errors="replace")


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    made = Play(tmp_path, 4)
    yield made
    if made.process and made.process.poll() is None:
        os.killpg(made.process.pid, signal.SIGKILL)
        made.process.wait()
    for node in range(4):
        told_all(made.pids(node), signal.SIGKILL)
    for path in made.run_dirs():
        shutil.rmtree(path, ignore_errors=True)


def test_each_node_gets_what_it_wants_and_the_source_sends_it_once(play: Play) -> None:
    some, every = ["shard-1"], list(play.content)
    code, out = play.run({play.names[1]: every, play.names[2]: some, play.names[3]: every})
    assert code == 0, out[-3000:]
    assert [play.held(n) for n in (1, 3)] == [play.content] * 2
    assert play.held(2) == {"shard-1": play.content["shard-1"]}
    total, told = sum(map(len, play.content.values())), play.told(out)
    assert [told[n]["taken"] for n in "123"] == [total, SIZE + 1, total]
    assert total <= told["0"]["sent"] <= 1.1 * total
    assert re.search(r"n1: done, \d.* of ", out)
    play.clean()


def test_a_port_of_somebody_else_is_said_before_anything_moves(play: Play) -> None:
    with socket.socket() as other:
        other.bind((play.addresses[2], 29701))
        other.listen()
        code, out = play.run()
    assert code != 0
    held = f"held by {Path('/proc/self/comm').read_text().strip()} (pid {os.getpid()})"
    assert f"error [fanout-port] {play.names[2]}: checking: {play.addresses[2]} port 29701: " in out
    assert held in out
    assert [play.held(n) for n in (1, 2, 3)] == [{}] * 3
    play.clean()


def test_a_source_that_is_not_what_it_should_be_gives_nothing_and_all_are_told(play: Play) -> None:
    (play.source / "shard-1").write_bytes(bytes(SIZE + 1))
    code, out = play.run(spread_fatal=False)
    assert code == 0, out[-3000:]
    told = play.told(out)
    assert f"error [fanout-source] {play.names[0]}: proving the source: {play.source}/shard-1 has sha256" in out
    assert all(f"{play.names[0]} serves nothing" in told[n]["trouble"] for n in "123")
    assert [play.held(n) for n in (1, 2, 3)] == [{}] * 3
    play.clean()


def test_a_node_that_fails_on_the_way_is_named_and_holds_nobody_back(play: Play) -> None:
    """Something else stands in a file's place, which is found when it is looked at; the node after it gets all."""
    (play.root / play.names[2] / "shard-1").mkdir(parents=True)
    code, out = play.run()
    assert code != 0
    assert f"error [fanout-blocked] {play.names[2]}: fetching: {play.root / play.names[2]}/shard-1 is a direct" in out
    assert [play.held(n) for n in (1, 3)] == [play.content] * 2
    assert "shard-1" not in play.held(2)
    play.clean()


def test_a_relay_that_dies_is_started_again_and_goes_on(play: Play) -> None:
    play.start()
    told_all(until(lambda: play.pids(3)), signal.SIGKILL)
    (held,) = (play.root / "controller").rglob("gb10-spread-*.secret")
    secret = held.read_text()
    assert held.stat().st_mode & 0o077 == 0
    assert secret not in "".join(command_lines())
    code, out = play.end()
    assert code == 0, out[-3000:]
    assert f"{play.names[3]}: the relay died and is started again" in out
    assert [play.held(n) for n in (1, 2, 3)] == [play.content] * 3
    assert secret not in out  # however much is printed
    play.clean()


def test_when_the_playbook_is_killed_every_relay_ends_by_itself(play: Play) -> None:
    """One node stands still, so that the run is not over before."""
    play.start(spread_lease=4, spread_stall=4)
    frozen = until(lambda: play.pids(3))
    told_all(frozen, signal.SIGSTOP)
    try:
        assert play.process
        assert play.process.poll() is None
        os.killpg(play.process.pid, signal.SIGKILL)
        play.process.wait()
        until(lambda: len(play.run_dirs()) == 1)
    finally:
        told_all(frozen, signal.SIGCONT)
    until(lambda: not play.run_dirs())
    play.clean()
    for node in (1, 2, 3):
        assert set(play.held(node)) <= set(play.content)  # whole files or none; no part


# --- from the controller ---------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", disk], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(source: Path, target: Path, **given: Any) -> dict[str, Any]:
    files = [{"path": "sha256/a", "size": 70 << 20}]
    return run_action(
        "gb10_fill",
        **{"source": str(source), "target": str(target), "files": files, "timeout": 60, "progress": 5} | given,
    )


def test_the_controller_brings_what_is_missing_and_goes_on_from_what_is_there(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(70 << 20)
    (tmp_path / "real").write_bytes(data)
    source, target = tmp_path / "source", tmp_path / "new/target"
    (source / "sha256").mkdir(parents=True)
    (source / "sha256/a").symlink_to(tmp_path / "real")
    assert fill(source, target)["trouble"] == ""
    assert (target / "sha256/a").read_bytes() == data
    begun = b"what a killed run brought"
    (target / "sha256/a").write_bytes(begun)
    assert fill(source, target)["trouble"] == ""
    assert (target / "sha256/a").read_bytes() == begun + data[len(begun) :]


def test_what_stops_the_controller_is_said_in_one_line(tmp_path: Path, small_disk: Path) -> None:
    source = tmp_path / "source"
    step = "localhost: bringing files from the controller: "
    assert fill(source, tmp_path)["trouble"].startswith(f"error [fanout-source] {step}{source}/sha256/a: No such file")
    (source / "sha256").mkdir(parents=True)
    (source / "sha256/a").write_bytes(bytes(70 << 20))
    late = fill(source, tmp_path / "late", timeout=0)["trouble"]
    assert late.startswith(f"error [fanout-limit] {step}67108864 of 73400320 bytes after ")
    full = fill(source, small_disk)["trouble"]
    assert full.startswith(f"error [fanout-disk-full] {step}")
    assert "No space left on device" in full
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert fill(source, small_disk)["trouble"].startswith(f"error [fanout-read-only] {step}")


@pytest.mark.parametrize("folder", ["", "playbooks"])
def test_what_nodes_and_controller_share_is_found_from_any_directory(folder: str, tmp_path: Path) -> None:
    """Beside site.yml and beside the playbooks, without the configuration of the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "ANSIBLE_CONFIG"}
    command = [Path(sys.executable).parent / "ansible", "localhost", "-i", "localhost,", "-c", "local", "-o"]
    command += ["--playbook-dir", ROOT / folder, "-e", f"ansible_python_interpreter={sys.executable}"]
    command += ["-m", "gb10_relay", "-a", f"action=status run_dir={tmp_path}/none"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT, check=False
    )
    assert "error [fanout-lost]" in done.stdout, done.stdout + done.stderr
