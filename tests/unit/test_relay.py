"""The relay as real processes on loopback, one address a node: whole, resumed, repaired, refused, ended."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from modules import run_module

from gb10.relay import wire
from gb10.relay.index import INDEX, Index, checked, make_index
from gb10.relay.node import birth, watch
from gb10.relay.ports import holder
from gb10.relay.problem import Problem
from gb10.relay.receipt import RECEIPT
from gb10.relay.serve import Server
from gb10.relay.store import Store

SECRET = "a secret of this run"
PORT = 29700
CHUNK = 1 << 16
WAIT = 60.0  # s; bounds what would hang, decides nothing


def content(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


FILES = {
    "model-00001-of-00002.safetensors": content(40 * CHUNK + 11, 1),
    "model-00002-of-00002.safetensors": content(25 * CHUNK, 2),
    "engram/table.bin": content(3 * CHUNK + 1, 3),
    "config.json": b"{}",
    "empty": b"",
}
TOTAL = sum(map(len, FILES.values()))
SHARD = "model-00001-of-00002.safetensors"


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def manifest(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [
        {"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()
    ]


def visible(folder: Path) -> dict[str, bytes]:
    """Everything in a directory but the receipt and the index; a temporary file would be seen."""
    paths = [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.name not in (RECEIPT, INDEX)}


def until(what: Callable[[], Any]) -> Any:
    """The first truth of ``what``."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        if got := what():
            return got
        time.sleep(0.02)
    raise AssertionError("waited in vain")


class Cluster:
    """Nodes 0..n-1 on their own addresses of 127/8, node 0 the source; a program of its own for each."""

    def __init__(self, root: Path, count: int) -> None:
        net = f"127.{random.SystemRandom().randrange(1, 255)}.{os.getpid() % 251}"
        self.root, self.line = root, [f"{net}.{n + 1}" for n in range(count)]
        self.digest, self.started, self.servers = "", set[int](), list[socket.socket]()
        write(self.folder(0), FILES)

    def folder(self, node: int) -> Path:
        return self.root / f"node{node}"

    def run_dir(self, node: int) -> Path:
        return self.root / f"run{node}"

    def program(self, **given: Any) -> dict[str, Any]:
        command = [sys.executable, "-m", "gb10.relay"]
        done = subprocess.run(
            command, input=json.dumps(given), capture_output=True, text=True, timeout=WAIT, check=False
        )
        assert done.stdout, done.stderr
        assert not done.stderr, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def index(self, **given: Any) -> dict[str, Any]:
        told = self.program(
            action="index", path=str(self.folder(0)), files=manifest(FILES), chunk=CHUNK, processes=2, **given
        )
        self.digest = told.get("digest", "")
        return told

    def start(self, *nodes: int, **given: Any) -> dict[str, Any]:
        if not self.digest:
            self.index()
        for node in nodes:
            given = {"processes": 2, "secret": SECRET, "digest": self.digest, "line": self.line, "stall": 30} | given
            own = {"path": str(self.folder(node)), "run_dir": str(self.run_dir(node)), "address": self.line[node]}
            told = self.program(action="start", port=PORT, **own, **given)
            if "error" not in told:
                self.started.add(node)
        return told

    def status(self, node: int) -> dict[str, Any]:
        return self.program(action="status", run_dir=str(self.run_dir(node)))

    def ends(self, *nodes: int, phase: str = "done") -> list[dict[str, Any]]:
        """Their status once each of them is in that phase; another end fails."""

        def there() -> list[dict[str, Any]]:
            seen = [json.loads((self.run_dir(n) / "status.json").read_text()) for n in nodes]
            for status in seen:
                assert phase == "failed" or not status["error"], status
            return seen if all(status["phase"] == phase for status in seen) else []

        ended: list[dict[str, Any]] = until(there)
        return ended

    def pids(self, node: int) -> list[int]:
        """The relay and its processes."""
        parent = json.loads((self.run_dir(node) / "status.json").read_text())["pid"]
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [parent, *map(int, children)]

    def stop(self, node: int) -> dict[str, Any]:
        self.started.discard(node)
        return self.program(action="stop", run_dir=str(self.run_dir(node)))

    def serve(self, node: int, held: int = 1 << 30, folder: Path | None = None) -> Server:
        """A real server of the first chunks only: the middle of a transfer, without a clock."""
        if not self.digest:
            self.index()
        index = Index.load((self.folder(0) / INDEX).read_bytes())
        store = Store(folder or self.folder(0), index, list(range(len(FILES))), lambda *_: None)
        store.hold(range(min(held, index.count)))
        sock = wire.listen(self.line[node], PORT)
        self.servers.append(sock)
        positions = {address: n for n, address in enumerate(self.line)}
        topic = wire.topic(self.digest, 0)
        server = Server(sock, store, positions, SECRET.encode(), topic, lambda: (-1, True, False))
        server.start()
        return server

    def close(self) -> None:
        for sock in self.servers:
            sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.servers.clear()
        time.sleep(0.1)


@pytest.fixture(name="cluster")
def _cluster(tmp_path: Path) -> Iterator[Callable[[int], Cluster]]:
    made: list[Cluster] = []

    def make(count: int) -> Cluster:
        made.append(Cluster(tmp_path, count))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()
        for node in list(cluster.started):
            cluster.stop(node)


# --- the good way ----------------------------------------------------------------------------------------------------


def test_seven_nodes_get_all_and_the_source_does_not_send_it_to_each(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(8)
    nodes.start(*range(8))
    statuses = nodes.ends(*range(8))
    for node in range(1, 8):
        assert visible(nodes.folder(node)) == FILES
        assert sum(statuses[node]["taken"].values()) == TOTAL
    assert sum(statuses[0]["sent"].values()) <= 3 * TOTAL  # a star: 7; the line: 1, and a late start costs little


def test_a_second_run_brings_nothing_and_touches_nothing(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    nodes.start(0, 1)
    nodes.ends(1)
    nodes.stop(1)

    def found() -> dict[str, tuple[int, ...]]:
        stats = {path.name: path.stat() for path in nodes.folder(1).iterdir() if path.is_file()}
        return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}

    before = found()
    nodes.start(1)
    (status,) = nodes.ends(1)
    assert status["taken"] == {}
    nodes.stop(1)
    assert found() == before


def test_links_at_the_source_are_read_through(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    blobs = nodes.root / "blobs"
    blobs.mkdir()
    for number, path in enumerate(p for p in nodes.folder(0).rglob("*") if p.is_file()):
        path.rename(blobs / str(number))
        path.symlink_to(blobs / str(number))
    nodes.start(0, 1)
    nodes.ends(1)
    assert visible(nodes.folder(1)) == FILES
    assert not any(path.is_symlink() for path in nodes.folder(1).rglob("*"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def fool(folder: Path) -> None:
    """A receipt that swears the damaged file is right: what a disk does that rots in silence."""
    flip(folder / SHARD, 7 * CHUNK)
    seen = json.loads((folder / RECEIPT).read_text())
    stat = (folder / SHARD).stat()
    seen[SHARD][:4] = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    (folder / RECEIPT).write_text(json.dumps(seen))


def link(folder: Path) -> None:
    (folder / SHARD).rename(folder.parent / "elsewhere")
    (folder / SHARD).symlink_to(folder.parent / "elsewhere")


LAST = len(FILES[SHARD]) % CHUNK


@pytest.mark.parametrize(
    ("damage", "given", "taken"),
    [
        (lambda f: flip(f / SHARD, 7 * CHUNK), {}, CHUNK),
        (lambda f: (flip(f / SHARD, 0), flip(f / SHARD, 40 * CHUNK)), {}, CHUNK + LAST),
        (lambda f: (f / SHARD).write_bytes(FILES[SHARD][:-24]), {}, CHUNK + LAST),
        (lambda f: (f / SHARD).write_bytes(FILES[SHARD] + b"more"), {}, 0),
        (lambda f: (f / SHARD).write_bytes(bytes(len(FILES[SHARD]))), {}, len(FILES[SHARD])),
        (lambda f: (f / SHARD).unlink(), {}, len(FILES[SHARD])),
        (lambda f: (f / "empty").write_bytes(b"x"), {}, 0),
        (link, {}, len(FILES[SHARD])),
        (fool, {"verify_all": True}, CHUNK),
        (lambda f: (f / RECEIPT).unlink(), {}, 0),
        (lambda f: (f / RECEIPT).write_text("no receipt"), {}, 0),
    ],
)
def test_only_what_is_wrong_is_brought_again(
    cluster: Callable[[int], Cluster], damage: Callable[[Path], Any], given: dict[str, Any], taken: int
) -> None:
    nodes = cluster(2)
    write(nodes.folder(1), FILES)
    nodes.start(0, 1)
    nodes.ends(1)
    nodes.stop(1)
    damage(nodes.folder(1))
    nodes.start(1, **given)
    (status,) = nodes.ends(1)
    assert sum(status["taken"].values()) == taken
    assert visible(nodes.folder(1)) == FILES
    assert not (nodes.folder(1) / SHARD).is_symlink()


def test_a_receipt_is_believed_until_all_is_to_be_read(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    write(nodes.folder(1), FILES)
    nodes.start(0, 1)
    nodes.ends(1)
    nodes.stop(1)
    fool(nodes.folder(1))
    nodes.start(1)
    (status,) = nodes.ends(1)
    assert status["taken"] == {}


# --- broken half-way -------------------------------------------------------------------------------------------------


def half(nodes: Cluster, node: int, **given: Any) -> Server:
    """A node that has the first half and waits for the rest."""
    server = nodes.serve(0, HELD)
    nodes.start(node, processes=1, **given)
    until(lambda: json.loads((nodes.run_dir(node) / "status.json").read_text())["have"] == HALF)
    return server


# By path: config.json, empty and the table whole, then 31 chunks of the first shard.
HELD = 1 + 4 + 31
HALF = 2 + 3 * CHUNK + 1 + 31 * CHUNK


def test_a_killed_receiver_goes_on_from_what_it_had(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    write(nodes.folder(1), {SHARD: b"the old shard"})
    half(nodes, 1)
    for pid in nodes.pids(1):
        os.kill(pid, signal.SIGKILL)
    assert nodes.status(1)["phase"] == "lost"
    assert (nodes.folder(1) / SHARD).read_bytes() == b"the old shard"
    nodes.close()
    nodes.start(0, 1, processes=1)
    (status,) = nodes.ends(1)
    assert sum(status["taken"].values()) == TOTAL - HALF
    assert visible(nodes.folder(1)) == FILES


def test_parts_of_another_content_are_not_counted_and_go(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    half(nodes, 1)
    for pid in nodes.pids(1):
        os.kill(pid, signal.SIGKILL)
    parts = nodes.folder(1) / ".gb10-part"
    for part in parts.iterdir():
        part.write_bytes(bytes(part.stat().st_size))
    (parts / "stale").write_bytes(b"x")
    nodes.close()
    nodes.start(0, 1, processes=1)
    (status,) = nodes.ends(1)
    assert sum(status["taken"].values()) == TOTAL - HALF + 31 * CHUNK
    assert visible(nodes.folder(1)) == FILES


def test_when_the_relay_dies_its_processes_do(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    half(nodes, 1)
    parent, *children = nodes.pids(1)
    assert children
    os.kill(parent, signal.SIGKILL)
    until(lambda: all(birth(pid) == -1 for pid in [parent, *children]))


def test_when_a_process_dies_the_relay_says_so(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    half(nodes, 1)
    os.kill(nodes.pids(1)[1], signal.SIGKILL)
    (status,) = nodes.ends(1, phase="failed")
    assert "process 0 of the relay ended" in status["error"]


def test_a_sender_that_dies_fails_the_node_and_leaves_the_old(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    write(nodes.folder(1), {SHARD: b"the old shard"})
    half(nodes, 1, stall=3)
    nodes.close()
    (status,) = nodes.ends(1, phase="failed")
    assert status["code"] == "fanout-stalled"
    for word in ("no data for", "chunks here", nodes.line[0]):
        assert word in status["error"]
    assert (nodes.folder(1) / SHARD).read_bytes() == b"the old shard"
    assert set(visible(nodes.folder(1))) <= set(FILES)  # and no temporary file


def test_a_stopped_run_leaves_no_process_no_temporary_file_and_the_old(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    write(nodes.folder(1), {SHARD: b"the old shard"})
    half(nodes, 1)
    pids = nodes.pids(1)
    assert nodes.stop(1)["phase"] == "stopped"
    assert [birth(pid) for pid in pids] == [-1] * len(pids)
    assert not nodes.run_dir(1).exists()
    assert visible(nodes.folder(1))[SHARD] == b"the old shard"
    assert set(visible(nodes.folder(1))) <= set(FILES)


def test_a_frozen_relay_is_ended_too(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    half(nodes, 1)
    pids = nodes.pids(1)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    nodes.stop(1)
    until(lambda: all(birth(pid) == -1 for pid in pids))


def test_a_relay_that_stands_still_is_lost(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    nodes.start(0, 1)
    pids = nodes.pids(1)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    long_ago = time.time() - 100
    os.utime(nodes.run_dir(1) / "status.json", (long_ago, long_ago))
    status = nodes.status(1)
    assert (status["phase"], status["code"], status["alive"]) == ("lost", "fanout-lost", True)
    assert status["error"].startswith("the relay stands still for 10")
    nodes.stop(1)
    assert all(birth(pid) == -1 for pid in pids)


def test_a_relay_nobody_asks_ends_by_itself(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    nodes.start(0, 1, idle=4)
    pids = nodes.pids(0) + nodes.pids(1)
    until(lambda: all(birth(pid) == -1 for pid in pids))
    assert nodes.status(1)["phase"] == "done"
    assert visible(nodes.folder(1)) == FILES


def test_a_relay_nobody_looks_at_ends_by_itself_and_leaves_nothing(cluster: Callable[[int], Cluster]) -> None:
    """Whatever it is at: the first node serves, the second waits for chunks that never come."""
    nodes = cluster(3)
    nodes.serve(0, 0)
    nodes.start(1, processes=1, lease=2)
    nodes.start(2, processes=1, lease=3600)
    pids = nodes.pids(1)
    until(lambda: all(birth(pid) == -1 for pid in pids))
    assert not nodes.run_dir(1).exists()
    assert visible(nodes.folder(1)) == {"empty": b""}
    assert nodes.status(2)["alive"]


def test_a_look_at_the_status_renews_the_lease_and_ends_with_the_transfer(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    nodes.serve(0)
    nodes.start(1, processes=1, lease=5, idle=1)
    end = time.monotonic() + 8
    while time.monotonic() < end:  # more than lease and idle
        status = watch(nodes.run_dir(1), 60)
        time.sleep(0.1)
    assert (status["phase"], status["alive"]) == ("done", True)


def test_a_relay_ends_at_its_limit(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    nodes.serve(0, 0)
    nodes.start(1, processes=1, limit=1)
    (status,) = nodes.ends(1, phase="failed")
    assert status["code"] == "fanout-limit"


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "node1"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=True, timeout=WAIT)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True, timeout=WAIT)


def fill(disk: Path, spare: int) -> None:
    """All but ``spare`` bytes."""
    with (disk / "filler").open("wb") as stream:
        try:
            while True:
                stream.write(bytes(1 << 16))
                stream.flush()
        except OSError as problem:
            if problem.errno != errno.ENOSPC:
                raise
    os.truncate(disk / "filler", (disk / "filler").stat().st_size - spare)


def test_a_disk_that_fills_half_way(small_disk: Path, cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    write(small_disk, {SHARD: b"the old shard"})
    server = half(nodes, 1)
    fill(small_disk, 4 * CHUNK)
    server.store.trust()
    (status,) = nodes.ends(1, phase="failed")
    assert status["code"] == "fanout-disk-full"
    assert str(small_disk) in status["error"]
    assert visible(small_disk)[SHARD] == b"the old shard"
    assert set(visible(small_disk)) <= {*FILES, "filler"}
    nodes.stop(1)
    (small_disk / "filler").unlink()
    nodes.start(1, processes=1)
    nodes.ends(1)
    assert visible(small_disk) == FILES


def test_a_disk_too_small_is_refused_before_anything_is_brought(
    small_disk: Path, cluster: Callable[[int], Cluster]
) -> None:
    nodes = cluster(2)
    fill(small_disk, TOTAL // 2)
    told = nodes.start(0, 1)
    assert told["code"] == "fanout-disk-full"
    assert f"{TOTAL} bytes are missing" in told["error"]
    assert set(visible(small_disk)) == {"filler"}


def test_a_read_only_target_is_refused(small_disk: Path, cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    write(small_disk, {SHARD: b"the old shard"})
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True, timeout=WAIT)
    told = nodes.start(0, 1)
    assert told["code"] == "fanout-read-only"
    assert str(small_disk) in told["error"]


# --- others that are slow, gone or bad --------------------------------------------------------------------------------


def test_those_after_a_node_that_never_came_get_all(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(4)
    nodes.start(0, 2, 3)
    nodes.ends(2, 3)
    assert visible(nodes.folder(2)) == visible(nodes.folder(3)) == FILES


def test_those_after_a_frozen_node_get_all(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(4)
    server = nodes.serve(0, HELD)
    nodes.start(1, 2, 3, processes=1)
    until(lambda: all(json.loads((nodes.run_dir(n) / "status.json").read_text())["have"] == HALF for n in (1, 2, 3)))
    frozen = nodes.pids(1)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    server.store.trust()
    nodes.ends(2, 3)
    assert visible(nodes.folder(2)) == visible(nodes.folder(3)) == FILES
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    nodes.ends(1)
    assert visible(nodes.folder(1)) == FILES


def test_a_node_that_sends_other_bytes_is_found_out_and_left(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(3)
    other = nodes.root / "other"
    write(other, {name: bytes(len(data)) for name, data in FILES.items()})
    nodes.start(0, processes=1)
    nodes.serve(1, folder=other)
    nodes.start(2, processes=1)
    (status,) = nodes.ends(2)
    assert status["refused"] == {nodes.line[1]: 3}
    assert status["taken"] == {nodes.line[0]: TOTAL}
    assert visible(nodes.folder(2)) == FILES


def test_a_source_that_changed_is_refused(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    nodes.start(0, processes=1)
    flip(nodes.folder(0) / SHARD, 20 * CHUNK)
    nodes.start(1, processes=1, stall=3)
    (status,) = nodes.ends(1, phase="failed")
    assert SHARD in status["error"]
    assert "sent 3 chunks with another sha256" in status["error"]
    assert SHARD not in visible(nodes.folder(1))


def test_a_source_that_changed_before_it_starts_is_refused(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    nodes.index()
    flip(nodes.folder(0) / SHARD, 20 * CHUNK)
    told = nodes.start(0)
    assert told["code"] == "fanout-source"
    assert SHARD in told["error"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"secret": "another secret of a run"}, "closed the connection"),
        ({"digest": "0" * 64}, "closed the connection"),
    ],
)
def test_another_secret_or_index_gets_nothing(
    cluster: Callable[[int], Cluster], other: dict[str, str], words: str
) -> None:
    nodes = cluster(2)
    nodes.start(0)
    known = {"secret": SECRET, "digest": nodes.digest} | other
    with pytest.raises(OSError, match=words):
        wire.call(
            nodes.line[0], PORT, nodes.line[1], known["secret"].encode(), wire.topic(known["digest"], 0), 2.0
        ).close()


def test_a_server_that_does_not_know_the_secret_is_not_believed(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    server = nodes.serve(0)
    server.secret = b"another secret of a run"
    with pytest.raises(OSError, match=r"closed the connection|secret"):
        wire.call(nodes.line[0], PORT, nodes.line[1], SECRET.encode(), server.topic, 2.0).close()


def test_a_server_that_only_says_that_all_is_well_is_not_believed() -> None:
    with wire.listen("127.0.0.1", 0) as server:

        def pretend() -> None:
            client, _ = server.accept()
            with client:
                client.sendall(wire.MAGIC + bytes(wire.NONCE))
                wire.take(client, wire.NONCE + wire.PROOF)
                client.sendall(bytes(wire.PROOF))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(wire.Refused, match="does not know the secret"):
            wire.call("127.0.0.1", server.getsockname()[1], "127.0.0.1", SECRET.encode(), b"topic", 5.0)
        thread.join()


def test_an_address_not_in_the_line_is_not_even_greeted(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    nodes.start(0)
    stranger = nodes.line[0].rpartition(".")[0] + ".99"
    with socket.create_connection((nodes.line[0], PORT), timeout=WAIT, source_address=(stranger, 0)) as sock:
        assert sock.recv(1) == b""
    with socket.create_connection((nodes.line[0], PORT), timeout=WAIT, source_address=(nodes.line[1], 0)) as sock:
        assert sock.recv(1) == wire.MAGIC[:1]


def test_it_listens_on_its_own_address_only(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    nodes.start(0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((nodes.line[1], PORT), timeout=WAIT)


@pytest.mark.parametrize("request_", [b"x\0\0\0\0\0\0", b"g\xff\xff\xff\xff\0\0"])
def test_nonsense_ends_the_connection_and_nothing_else(cluster: Callable[[int], Cluster], request_: bytes) -> None:
    nodes = cluster(2)
    nodes.start(0)
    for _ in range(2):
        topic = wire.topic(nodes.digest, 0)
        with wire.call(nodes.line[0], PORT, nodes.line[1], SECRET.encode(), topic, 5.0) as sock:
            sock.sendall(request_)
            assert sock.recv(1) == b""


# --- refused at the start --------------------------------------------------------------------------------------------


def test_a_port_of_somebody_else_is_named(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    nodes.index()
    with socket.create_server((nodes.line[0], PORT + 1)):
        told = nodes.start(0)
    assert told["code"] == "fanout-port"
    assert f"{nodes.line[0]} port {PORT + 1}" in told["error"]
    assert f"held by {Path('/proc/self/comm').read_text().strip()} (pid {os.getpid()})" in told["error"]


def test_a_port_of_another_run_is_told_from_a_strangers(cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    nodes = cluster(2)
    nodes.start(0)
    told = nodes.program(action="check", address=nodes.line[0], port=PORT, path=str(tmp_path))
    assert told["code"] == "fanout-port"
    assert re.search(r"held by gb10-relay \(pid \d+\). It is another run's", told["error"])
    assert nodes.program(action="check", address=nodes.line[1], port=PORT, path=str(tmp_path))["free"] > 0


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_whoever_listens_there_is_found(address: str) -> None:
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
        port, own = sock.getsockname()[1], f"(pid {os.getpid()})"
        assert holder("127.0.0.1", port).endswith(own)
        assert holder("127.0.0.2", port).endswith(own) is (address != "127.0.0.1")
    assert holder("127.0.0.1", port) == ""


@pytest.mark.parametrize(
    ("place", "size", "code"),
    [
        ("new/deep", 0, ""),
        ("file", 0, "fanout-blocked"),
        ("file/under", 0, "fanout-blocked"),
        ("new", 1 << 60, "fanout-disk-full"),
        ("/proc/x", 0, "fanout-blocked"),
    ],
)
def test_a_target_is_checked_without_a_change(
    cluster: Callable[[int], Cluster], tmp_path: Path, place: str, size: int, code: str
) -> None:
    nodes, root = cluster(1), tmp_path / "there"
    write(root, {"file": b"x"})
    told = nodes.program(action="check", address=nodes.line[0], port=PORT, path=str(root / place), size=size)
    assert told.get("code", "") == code
    assert visible(root) == {"file": b"x"}


def test_a_second_relay_in_the_same_run_is_refused(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    nodes.start(0)
    assert nodes.start(0)["code"] == "fanout-running"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"line": ["127.0.0.9", "127.0.0.8"]}, "ours among them"),
        ({"line": ["spark-1", "127.0.0.8"]}, "ours among them"),
        ({"secret": "short"}, "5 bytes"),
        ({"processes": 0}, "processes=0"),
        ({"stall": 0}, "stall=0"),
    ],
)
def test_settings_are_refused_by_name(cluster: Callable[[int], Cluster], given: dict[str, Any], words: str) -> None:
    nodes = cluster(2)
    nodes.index()
    told = nodes.start(0, **given)
    assert told["code"] == "fanout-settings"
    assert words in told["error"]


def test_a_directory_reached_by_a_link_out_of_the_target_is_refused(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    outside = nodes.root / "outside"
    outside.mkdir()
    nodes.folder(1).mkdir()
    (nodes.folder(1) / "engram").symlink_to(outside)
    told = nodes.start(0, 1)
    assert told["code"] == "fanout-blocked"
    assert list(outside.iterdir()) == []


def test_a_directory_in_the_place_of_a_file_is_named(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    (nodes.folder(1) / SHARD).mkdir(parents=True)
    nodes.start(0, 1)
    (status,) = nodes.ends(1, phase="failed")
    assert f"{SHARD} is a directory" in status["error"]


# --- the index -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/x",
        "a/../../x",
        "",
        ".",
        "a//b",
        "a/./b",
        "a/",
        "x\0y",
        ".gb10-part/x",
        ".gb10-verified.json",
        ".gb10-index",
    ],
)
def test_paths_that_lead_elsewhere_are_refused(path: str) -> None:
    with pytest.raises(Problem) as refused:
        checked([{"path": path, "size": 1, "sha256": "0" * 64}])
    assert refused.value.code == "manifest-path"


@pytest.mark.parametrize(
    "entries",
    [
        [{"path": "a", "size": -1, "sha256": "0" * 64}],
        [{"path": "a", "size": "many", "sha256": "0" * 64}],
        [{"path": "a", "sha256": "0" * 64}],
        [{"path": "a", "size": 1, "sha256": "0" * 63}],
        [{"path": "a", "size": 1, "sha256": "g" * 64}],
        [{"path": "a", "size": 1, "sha256": "0" * 64}] * 2,
        [{"path": "a", "size": 1, "sha256": "0" * 64}, {"path": "a/b", "size": 1, "sha256": "0" * 64}],
    ],
)
def test_a_manifest_without_sense_is_refused(entries: list[dict[str, Any]]) -> None:
    with pytest.raises(Problem) as refused:
        checked(entries)
    assert refused.value.code == "manifest-wrong"


def dangle(folder: Path) -> None:
    (folder / SHARD).unlink()
    (folder / SHARD).symlink_to("nowhere")


def folder_instead(folder: Path) -> None:
    (folder / SHARD).unlink()
    (folder / SHARD).mkdir()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / SHARD).unlink(), ["is missing"]),
        (dangle, ["a link to nothing"]),
        (folder_instead, ["is no file"]),
        (
            lambda f: (f / SHARD).write_bytes(FILES[SHARD][:-24]),
            [str(len(FILES[SHARD]) - 24), str(len(FILES[SHARD]))],
        ),
        (lambda f: flip(f / SHARD, 5), ["has sha256", hashlib.sha256(FILES[SHARD]).hexdigest()[:12]]),
    ],
)
def test_a_source_unlike_its_manifest_names_file_and_numbers(
    cluster: Callable[[int], Cluster], damage: Callable[[Path], Any], words: list[str]
) -> None:
    nodes = cluster(1)
    damage(nodes.folder(0))
    told = nodes.index()
    assert told["code"] == "fanout-source"
    for word in [SHARD, *words]:
        assert word in told["error"]


def test_the_index_is_made_once_and_is_the_same_anywhere(tmp_path: Path) -> None:
    write(tmp_path / "a", FILES)
    write(tmp_path / "b", FILES)
    files = manifest(FILES)
    _, digest, read = make_index(tmp_path / "a", files, tmp_path / "a", CHUNK)
    assert read == len(FILES)
    assert make_index(tmp_path / "a", files, tmp_path / "a", CHUNK)[1:] == (digest, 0)
    assert make_index(tmp_path / "b", files[::-1], tmp_path / "state", CHUNK, processes=3)[1:] == (digest, len(FILES))
    os.utime(tmp_path / "a" / SHARD)
    assert make_index(tmp_path / "a", files, tmp_path / "a", CHUNK)[1:] == (digest, 1)
    assert make_index(tmp_path / "a", files, tmp_path / "a", CHUNK, verify_all=True)[1:] == (digest, len(FILES))
    assert make_index(tmp_path / "a", files, tmp_path / "a", 2 * CHUNK)[1] != digest
    assert visible(tmp_path / "b") == FILES  # with a place of its own nothing is written beside the source


def test_the_index_finds_every_byte(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    index = make_index(tmp_path, manifest(FILES), tmp_path, CHUNK)[0]
    index = Index.load(index.dump())
    joined = {entry.path: b"" for entry in index.entries}
    for chunk in range(index.count):
        number, offset, length = index.locate(chunk)
        path = index.entries[number].path
        piece = FILES[path][offset : offset + length]
        assert hashlib.sha256(piece).digest() == index.digest(chunk)
        assert len(joined[path]) == offset
        joined[path] += piece
    assert joined == FILES
    assert index.total == TOTAL


@pytest.mark.parametrize("blob", [b"", b"{}\n", b"[]\n", b'{"kind": "gb10-index-1", "chunk": 1024}\n', b"\xff\n"])
def test_no_index_is_no_index(blob: bytes) -> None:
    with pytest.raises(Problem):
        Index.load(blob)


def test_an_index_cut_short_is_no_index(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    blob = make_index(tmp_path, manifest(FILES), tmp_path, CHUNK)[0].dump()
    with pytest.raises(Problem, match="its files"):
        Index.load(blob[:-32])


# --- as Ansible runs it ----------------------------------------------------------------------------------------------


def test_the_module_brings_files_and_hides_the_secret(cluster: Callable[[int], Cluster]) -> None:
    nodes = cluster(2)
    made = run_module("gb10_relay", action="index", path=str(nodes.folder(0)), files=manifest(FILES), chunk=CHUNK)
    shared = {"line": nodes.line, "secret": SECRET, "digest": made["digest"], "port": PORT, "processes": 2}
    for node in (0, 1):
        own = {"path": str(nodes.folder(node)), "run_dir": str(nodes.run_dir(node)), "address": nodes.line[node]}
        started = run_module("gb10_relay", action="start", **own, **shared)
        nodes.started.add(node)
        assert started["changed"] is True
        assert SECRET not in json.dumps(started)
        arguments = Path(f"/proc/{nodes.pids(node)[0]}/cmdline").read_bytes()
        assert SECRET.encode() not in arguments
    nodes.ends(1)
    looked = run_module("gb10_relay", action="status", run_dir=str(nodes.run_dir(1)))
    assert looked["changed"] is False
    assert looked["relay"]["phase"] == "done"
    stopped = run_module("gb10_relay", action="stop", run_dir=str(nodes.run_dir(1)))
    assert stopped["relay"]["taken"] == {nodes.line[0]: TOTAL}
    assert visible(nodes.folder(1)) == FILES


def test_the_module_fails_in_one_line() -> None:
    failed = run_module("gb10_relay", action="status", run_dir="/nonexistent/run")
    assert failed["msg"] == "error [fanout-lost] no relay was started in /nonexistent/run."
