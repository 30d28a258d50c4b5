"""Weights on the lab: a byte flipped on node 5, a receiver killed, an import, a disk too small (cases 17, 22, 24)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from lab_run import BIN, ENVIRONMENT, INVENTORY, inventory_hosts, on_node, play, play_command, recap, run
from support import ROOT

from gb10 import weights_manifest

PLAYBOOK = "playbooks/weights.yml"
FIFTH, KILLED = "spark-161", "spark-158"
SHARD, BIG = "model-00002-of-00005.safetensors", "model-00006-of-00006.safetensors"
FOLDER = "/data/models/deepseek-v4.1-flash"
WAIT = 600.0  # s; bounds what would hang, decides nothing
SIZE = 96 << 20


def lab_source() -> Path:
    return Path(yaml.safe_load((INVENTORY.parent / "group_vars/lab.yml").read_text())["weights_source"])


def marks(node: str, folder: str = FOLDER) -> dict[str, str]:
    """Inode and time of change of every file of the checkpoint: what moves when it is touched."""
    done = on_node(node, "find", folder, "-type", "f", "!", "-name", ".gb10*", "-printf", "%P %i %C@\n")
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def gb10(*words: str) -> subprocess.CompletedProcess[str]:
    return run([BIN / "gb10", "weights", *words, "-i", INVENTORY], 300)


@pytest.fixture(scope="module", autouse=True)
def _brought() -> None:
    done = play(PLAYBOOK)
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_flipped_byte_is_named_and_only_its_shard_is_repaired() -> None:
    code = "f = open('{}', 'r+b'); f.seek(500000); b = f.read(1); f.seek(500000); f.write(bytes([b[0] ^ 1]))"
    assert on_node(FIFTH, "python3", "-c", code.format(f"{FOLDER}/{SHARD}")).returncode == 0
    found = gb10("verify")
    assert found.returncode == 1, found.stdout
    assert [line.split(" is sha256")[0] for line in found.stderr.splitlines()] == [
        f"error [weights-wrong] {FIFTH}: {SHARD}"
    ]
    before = {node: marks(node) for node in (FIFTH, KILLED)}
    done = play(PLAYBOOK)
    assert done.returncode == 0, done.stdout[-3000:]
    after = {node: marks(node) for node in (FIFTH, KILLED)}
    assert after[KILLED] == before[KILLED]
    assert {path for path in before[FIFTH] if before[FIFTH][path] != after[FIFTH][path]} == {SHARD}
    again = gb10("verify", "--all")
    assert (again.returncode, again.stderr, again.stdout.count("whole")) == (0, "", 8), again.stdout


def test_an_idle_run_changes_and_reads_nothing() -> None:
    done = play(PLAYBOOK)
    assert done.returncode == 0
    assert all(numbers["changed"] == 0 for numbers in recap(done).values())


@pytest.fixture
def imported(tmp_path: Path) -> Iterator[list[str]]:
    """Another checkpoint: a directory of links on the head, its manifest alone on the controller; as overrides."""
    place = tmp_path / "whole"
    place.mkdir()
    for path in lab_source().iterdir():
        if path.name != "manifest.json":
            (place / path.name).write_bytes(path.read_bytes())
    (place / BIG).write_bytes(os.urandom(SIZE))
    (tmp_path / "source").mkdir()
    weights_manifest.write(tmp_path / "source/manifest.json", weights_manifest.of_directory(place))
    on_node("spark-153", "mkdir", "-p", "/data/blobs", "/data/snapshot")
    run(["docker", "cp", f"{place}/.", "spark-153:/data/blobs"], 120)
    on_node("spark-153", "sh", "-c", "for f in /data/blobs/*; do ln -s ../blobs/${f##*/} /data/snapshot/; done")
    given = {
        "weights_path": "/data/test-weights",
        "weights_source": str(tmp_path / "source"),
        "weights_import": "/data/snapshot",
        "model_config": str(place / "config.json"),
    }
    try:
        yield ["-e", json.dumps(given)]
    finally:
        for node in inventory_hosts():
            on_node(node, "rm", "-rf", "/data/test-weights", "/data/blobs", "/data/snapshot")


# Kills the relay on its node, all of its processes, as soon as a part of the large file is there: on a quiet machine
# the whole transfer takes a second.
KILL = f"""
import json, os, pathlib, sys, time
parts, end = pathlib.Path("/data/test-weights/.gb10-part"), time.monotonic() + {WAIT}
while not parts.is_dir() or sum(part.stat().st_blocks for part in parts.iterdir()) * 512 < {SIZE // 8}:
    time.sleep(0.005)
    if time.monotonic() > end:
        sys.exit("nothing came")
(status,) = pathlib.Path("/run").glob("gb10-relay-*/status.json")
os.killpg(os.getpgid(json.loads(status.read_text())["pid"]), 9)
"""


def test_links_are_imported_and_a_receiver_that_was_killed_goes_on(imported: list[str]) -> None:
    command = [str(word) for word in play_command(PLAYBOOK, *imported)]
    first = subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        killed = on_node(KILLED, "python3", "-c", KILL, seconds=int(WAIT) + 60)
        assert killed.returncode == 0, killed.stderr
        said = first.communicate(timeout=300)[0]
    finally:
        first.kill()
    assert first.returncode == 0, said[-3000:]
    assert f"{KILLED}: the relay died and is started again" in said
    for node in inventory_hosts():
        assert BIG in marks(node, "/data/test-weights"), node
    for node in inventory_hosts():
        left = on_node(node, "find", "/data/test-weights", "-name", ".gb10-part*", "-o", "-type", "l").stdout
        assert left == "", f"{node}: {left}"
    assert gb10("verify", "--all", *imported).returncode == 0


def test_a_disk_too_small_stops_the_run_before_anything_moves(imported: list[str]) -> None:
    on_node(FIFTH, "mkdir", "-p", "/data/test-weights")
    assert on_node(FIFTH, "mount", "-t", "tmpfs", "-o", "size=64m", "none", "/data/test-weights").returncode == 0
    try:
        done = play(PLAYBOOK, *imported)
    finally:
        on_node(FIFTH, "umount", "--lazy", "/data/test-weights")
    assert done.returncode != 0
    assert f"error [disk-too-small] {FIFTH}: /data/test-weights has 0.1 GiB free, but 0.1 GiB of weights" in done.stdout
    for node in set(inventory_hosts()) - {FIFTH}:
        assert on_node(node, "test", "-e", "/data/test-weights").returncode != 0, f"{node}: nothing moved"
