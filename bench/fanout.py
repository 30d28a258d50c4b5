"""Fan-out measured: one source and up to seven receivers, each in a network namespace behind a link of given speed.

    python -m bench.fanout [--mb 600] [--mbit 200] [--repeat 1] [--rows line,killed,...] [--dir DIR]

Needs root, iproute2 and rsync. Prints one table of ratios; numbers of one run on one machine, nothing is judged. Rows:
``line`` (1 and 7 receivers, and a second run with nothing to do), ``killed`` (after 6 s, started again 4 s later),
``gone`` (for good), ``slow`` (a link of a quarter, its speed unknown and known), ``free`` (no shaping: processes
against one rsync stream, files in memory), ``disk`` (the same on the disk, where a relay waits until all is on it and
rsync does not unless told).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gb10.fanout import line_order

PORT = 29700
RSYNC_PORT = 29873
FILES = 8
LIMIT = 900.0  # s for one measurement
KILL, AGAIN = 6.0, 10.0  # s


def command(*argv: object, check: bool = True) -> str:
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=LIMIT, check=False)
    if check and done.returncode:
        raise SystemExit(f"error: {' '.join(map(str, argv))}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Net:
    """Namespaces n0..n7 on a bridge in a namespace of its own, so that no firewall of the host is in the way."""

    count: int = 8
    name: str = field(default_factory=lambda: f"gb10fo{os.getpid()}")

    def space(self, node: int | str) -> str:
        return f"{self.name}-{node}"

    def address(self, node: int) -> str:
        return f"10.213.77.{node + 1}"

    def __enter__(self) -> Net:
        try:
            command("ip", "netns", "add", self.space("hub"))
            hub = ("ip", "-n", self.space("hub"), "link")
            command(*hub, "add", "br0", "type", "bridge")
            command(*hub, "set", "br0", "up")
            for n in range(self.count):
                space = self.space(n)
                command("ip", "netns", "add", space)
                command(*hub, "add", f"v{n}", "type", "veth", "peer", "name", "eth0", "netns", space)
                command(*hub, "set", f"v{n}", "master", "br0", "up")
                command("ip", "-n", space, "address", "add", f"{self.address(n)}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    command("ip", "-n", space, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in [*range(self.count), "hub"]:
            command("ip", "netns", "del", self.space(node), check=False)

    def shape(self, mbit: float, nodes: Iterator[int] | range | list[int]) -> None:
        """Both ways; 0: as fast as it goes."""
        for n in nodes:
            for space, device in ((self.space(n), "eth0"), (self.space("hub"), f"v{n}")):
                command("tc", "-n", space, "qdisc", "del", "dev", device, "root", check=False)
                if mbit:
                    shaped = ["rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms"]
                    command("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", *shaped)

    def inside(self, node: int) -> list[str]:
        return ["ip", "netns", "exec", self.space(node), sys.executable, "-m", "gb10.relay"]


@dataclass
class Bench:
    """A source's files, and transfers of them."""

    net: Net
    root: Path
    size: int
    digest: str = ""
    secret: str = field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        source = self.folder(0)
        source.mkdir(parents=True)
        manifest = []
        for number in range(FILES):
            path, digest = source / f"shard-{number}", hashlib.sha256()
            with path.open("wb") as stream:
                for _ in range(self.size // FILES // (1 << 20)):
                    block = os.urandom(1 << 20)
                    digest.update(block)
                    stream.write(block)
            manifest.append({"path": path.name, "size": path.stat().st_size, "sha256": digest.hexdigest()})
        self.size = sum(entry["size"] for entry in manifest)
        self.manifest = manifest
        self.digest = self.ask(0, action="index", path=str(source), files=manifest)["digest"]

    def folder(self, node: int) -> Path:
        return self.root / f"node{node}"

    def run_dir(self, node: int) -> Path:
        return self.root / f"run{node}"

    def ask(self, node: int, **given: Any) -> dict[str, Any]:
        told = subprocess.run(
            self.net.inside(node), input=json.dumps(given), capture_output=True, text=True, timeout=LIMIT, check=False
        )
        if not told.stdout:
            raise SystemExit(f"error: node {node}: {told.stderr.strip()}")
        answer: dict[str, Any] = json.loads(told.stdout)
        if told.returncode:
            raise SystemExit(f"error: node {node}: {answer['error']}")
        return answer

    def given(self, node: int, line: list[int], processes: int) -> dict[str, Any]:
        """Arguments that start a node."""
        return {
            "action": "start",
            "path": str(self.folder(node)),
            "run_dir": str(self.run_dir(node)),
            "address": self.net.address(node),
            "line": [self.net.address(n) for n in line],
            "port": PORT,
            "processes": processes,
            "secret": self.secret,
            "digest": self.digest,
        }

    def start(self, node: int, line: list[int], processes: int) -> None:
        self.ask(node, **self.given(node, line, processes))

    def status(self, node: int) -> dict[str, Any]:
        try:
            status: dict[str, Any] = json.loads((self.run_dir(node) / "status.json").read_text())
        except FileNotFoundError:
            return {"phase": "absent"}
        if status["phase"] == "failed":
            raise SystemExit(f"error: node {node}: {status['error']}")
        return status

    def transfer(
        self,
        line: list[int],
        processes: int = 1,
        lose: int = 0,
        again: bool = False,
        leave: int = 0,
        keep: bool = False,
    ) -> tuple[dict[int, float], float, int]:
        """Seconds by receiver, copies the source sent, changes of upstream.

        ``lose`` is killed after KILL seconds and, if ``again``, started AGAIN seconds after the beginning; ``leave`` is
        not waited for; ``keep``: what was brought stays.
        """
        self.start(0, line, processes)
        began = time.monotonic()
        with ThreadPoolExecutor(len(line)) as pool:  # all at once
            list(pool.map(lambda node: self.start(node, line, processes), line[1:]))
        done: dict[int, float] = {}
        waiting = [n for n in line[1:] if n != leave and (n != lose or again)]
        killed = restarted = False
        try:
            while set(waiting) - set(done):
                now = time.monotonic() - began
                if now > LIMIT:
                    raise SystemExit(
                        f"error: nodes {sorted(set(waiting) - set(done))} are not done after {LIMIT:.0f} s"
                    )
                if lose and not killed and now >= KILL:
                    os.killpg(os.getpgid(self.status(lose)["pid"]), signal.SIGKILL)
                    killed = True
                if lose and again and not restarted and now >= AGAIN:
                    self.ask(lose, action="stop", run_dir=str(self.run_dir(lose)))
                    self.start(lose, line, processes)
                    restarted = True
                for n in waiting:
                    counts = n not in done and (n != lose or restarted)
                    if counts and self.status(n)["phase"] == "done":
                        done[n] = time.monotonic() - began
                time.sleep(0.02)
            for n in waiting:
                self.prove(n)
            moves = sum(self.status(n)["moves"] for n in waiting)
        finally:
            ended = {n: self.ask(n, action="stop", run_dir=str(self.run_dir(n))) for n in line}
            for n in line[1:]:
                if not keep:
                    shutil.rmtree(self.folder(n), ignore_errors=True)
        return done, sum(ended[0]["sent"].values()) / self.size, moves

    def prove(self, node: int) -> None:
        """The files are what the manifest says, by another reading than the relay's."""
        for entry in self.manifest:
            with (self.folder(node) / entry["path"]).open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != entry["sha256"]:
                    raise SystemExit(f"error: node {node}: {entry['path']} is wrong")

    def rsync(self, *more: str) -> float:
        """Seconds of one ``rsync --whole-file`` stream from node 0 to node 1."""
        conf = self.root / "rsyncd.conf"
        conf.write_text(f"use chroot = no\n[src]\npath = {self.folder(0)}\nread only = yes\nuid = 0\ngid = 0\n")
        inside = ["ip", "netns", "exec", self.net.space(0)]
        options = ["--no-detach", "--daemon", f"--port={RSYNC_PORT}", f"--config={conf}"]
        daemon = subprocess.Popen([*inside, "rsync", *options])
        target = self.folder(1)
        try:
            time.sleep(0.5)
            began = time.monotonic()
            source = f"rsync://{self.net.address(0)}:{RSYNC_PORT}/src/"
            inside = ["ip", "netns", "exec", self.net.space(1)]
            command(*inside, "rsync", "-a", "--whole-file", *more, "--exclude=.gb10*", source, f"{target}/")
            return time.monotonic() - began
        finally:
            daemon.terminate()
            daemon.wait(timeout=10)
            shutil.rmtree(target, ignore_errors=True)


Measured = dict[str, float]


def line(bench: Bench, mbit: float) -> Measured:
    """One and seven receivers, the source's uplink the bottleneck."""
    bench.net.shape(mbit, range(8))
    one, _, _ = bench.transfer([0, 1])
    seven, sent, moves = bench.transfer(list(range(8)), keep=True)
    again, _, _ = bench.transfer(list(range(8)))
    first, last = max(one.values()), max(seven.values())
    return {
        "T1 (s)": first,
        "T7 (s)": last,
        "T7/T1": last / first,
        "copies sent by the source": sent,
        "changes of upstream": moves,
        "second run, nothing to do (s)": max(again.values()),
    }


def killed(bench: Bench, mbit: float) -> Measured:
    """Node 3 killed and started again."""
    bench.net.shape(mbit, range(8))
    seven, _, _ = bench.transfer(list(range(8)))
    done, sent, _ = bench.transfer(list(range(8)), lose=3, again=True)
    others = max(t for n, t in done.items() if n != 3)
    whole = max(seven.values())
    return {
        "killed and restarted: the others / T7": others / whole,
        "killed and restarted: that node / T7": done[3] / whole,
        "killed and restarted: copies sent by the source": sent,
    }


def gone(bench: Bench, mbit: float) -> Measured:
    """Nodes 1 and 3 each killed for good."""
    bench.net.shape(mbit, range(8))
    seven, _, _ = bench.transfer(list(range(8)))
    found: Measured = {}
    for lost in (1, 3):
        done, sent, _ = bench.transfer(list(range(8)), lose=lost)
        found[f"node {lost} gone for good: the others / T7"] = max(done.values()) / max(seven.values())
        found[f"node {lost} gone for good: copies sent by the source"] = sent
    return found


def slow(bench: Bench, mbit: float) -> Measured:
    """One link of a quarter: not known, and known."""
    bench.net.shape(mbit, range(8))
    whole = max(bench.transfer(list(range(8)))[0].values())
    found: Measured = {}
    for one in (1, 3):
        bench.net.shape(mbit, range(8))
        bench.net.shape(mbit / 4, [one])
        done, sent, _ = bench.transfer(list(range(8)), leave=one)
        found[f"node {one} slow, not known: the others / T7"] = max(done.values()) / whole
        found[f"node {one} slow, not known: copies sent by the source"] = sent
    speeds = {str(n): mbit / (4 if n == 3 else 1) for n in range(8)}
    known = [int(n) for n in line_order("0", [str(n) for n in range(8)], speeds)]
    done, _, _ = bench.transfer(known, leave=3)
    found["node 3 slow, known and last: the others / T7"] = max(done.values()) / whole
    bench.net.shape(mbit, range(8))
    return found


def free(bench: Bench, mbit: float) -> Measured:
    """No shaping, files in memory: processes against one rsync stream, both ends on this machine."""
    bench.net.shape(0, range(8))
    with folder("/dev/shm") as root:
        memory = Bench(bench.net, root, bench.size)
        seconds = memory.rsync()
        found = {"in memory: rsync --whole-file, one stream (GB/s)": bench.size / seconds / 1e9}
        for processes in range(1, 5):
            done, _, _ = memory.transfer([0, 1], processes=processes)
            found[f"in memory: {processes} processes (GB/s)"] = bench.size / done[1] / 1e9
            found[f"in memory: {processes} processes / rsync"] = seconds / done[1]
    return found


def disk(bench: Bench, mbit: float) -> Measured:
    """No shaping, files on the disk."""
    bench.net.shape(0, range(8))
    seconds, synced = bench.rsync(), bench.rsync("--fsync")
    done, _, _ = bench.transfer([0, 1], processes=4)
    return {
        "on disk: rsync --whole-file (GB/s)": bench.size / seconds / 1e9,
        "on disk: rsync --whole-file --fsync (GB/s)": bench.size / synced / 1e9,
        "on disk: 4 processes (GB/s)": bench.size / done[1] / 1e9,
        "on disk: 4 processes / rsync --fsync": synced / done[1],
    }


ROWS: dict[str, Callable[[Bench, float], Measured]] = {
    "line": line,
    "killed": killed,
    "gone": gone,
    "slow": slow,
    "free": free,
    "disk": disk,
}


@contextmanager
def folder(given: str | None) -> Iterator[Path]:
    """Removed at the end, also when it fails."""
    root = Path(tempfile.mkdtemp(prefix="gb10-fanout-", dir=given))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def table(runs: list[Measured]) -> str:
    """Markdown: the middle of the runs, and how far they lie apart."""
    lines = ["| measured | median | range | n |", "|---|---|---|---|"]
    for name in {name: 0 for run in runs for name in run}:
        values = [run[name] for run in runs if name in run]
        spread = f"{min(values):.2f} to {max(values):.2f}" if len(values) > 1 else "-"
        lines.append(f"| {name} | {statistics.median(values):.2f} | {spread} | {len(values)} |")
    return "\n".join(lines)


def main() -> None:
    """Every row, ``--repeat`` times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=600, help="megabytes to bring")
    parser.add_argument("--mbit", type=float, default=200, help="speed of every link, both ways")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--dir", help="where the files lie")
    args = parser.parse_args()
    rows = args.rows.split(",")
    if os.geteuid() or set(rows) - set(ROWS):
        raise SystemExit(f"error: rows={args.rows}: run as root, rows among {', '.join(ROWS)}.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    runs: list[Measured] = []
    with folder(args.dir) as root, Net() as net:
        bench = Bench(net, root, args.mb * 1000 * 1000)
        for _ in range(args.repeat):
            for row in rows:
                runs.append(ROWS[row](bench, args.mbit))
                print(json.dumps({name: round(value, 3) for name, value in runs[-1].items()}), file=sys.stderr)
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"{bench.size / 1e6:.0f} MB in {FILES} files, links of {args.mbit:.0f} Mbit/s, load {load} at the end.\n")
    print(table(runs))


if __name__ == "__main__":
    main()
