"""The random-read probe: what is run, what its answer means, and when it is not run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gb10_node import GIB, WEIGHTS, plan_of, spark
from wanted import looked, wanted

from gb10.assess import assess
from gb10.probe import identity, probe_result, probe_todo, step_ms
from gb10.todo import storage_todo

DISK = "ext4 9a-11 S7FXNX0Y"
SHARDS = {"model-00047-of-00048.safetensors": 3 * GIB, "model-00001-of-00048.safetensors": 2 * GIB, "config.json": 9}


def test_the_largest_shard_is_read_and_only_read(tmp_path: Path) -> None:
    facts = looked(tmp_path, spark(files=SHARDS))
    todo = probe_todo(facts)
    assert todo
    assert (todo["identity"], todo["remove"]) == (DISK, "")
    assert f"--filename={WEIGHTS}/model-00047-of-00048.safetensors" in todo["argv"]
    assert {"--readonly", "--direct=1", "--bs=4096", "--numjobs=32", "--runtime=5"} <= set(todo["argv"])


def test_without_weights_a_file_is_made_on_their_disk_and_removed(tmp_path: Path) -> None:
    todo = probe_todo(looked(tmp_path, spark()))
    assert todo
    assert todo["remove"] == "/data/.gb10-probe"
    assert {"--filename=/data/.gb10-probe", f"--filesize={GIB}"} <= set(todo["argv"])
    assert "--readonly" not in todo["argv"]


def test_a_disk_without_room_is_not_written_to(tmp_path: Path) -> None:
    assert probe_todo(looked(tmp_path, spark(space={"/data": (9 * GIB, GIB)}))) is None


@pytest.mark.parametrize(("measured", "again"), [(DISK, False), ("ext4 other S1", True), (None, True)])
def test_a_disk_is_measured_once(tmp_path: Path, measured: str | None, again: bool) -> None:
    held = {"/var/lib/gb10/storage-probe.json": json.dumps({"identity": measured})} if measured else {}
    assert (probe_todo(looked(tmp_path, spark(files=SHARDS, system=held))) is not None) == again


@pytest.mark.parametrize(
    ("setting", "engram", "runs"),
    [
        ("auto", "disk", True),
        ("auto", "memory", False),
        ("auto", "none", False),
        (True, "memory", True),
        ("true", "memory", True),
        (False, "disk", False),
        ("false", "disk", False),
    ],
)
def test_it_runs_where_engram_is_on_disk_or_it_is_asked_for(
    tmp_path: Path, setting: Any, engram: str, runs: bool
) -> None:
    prepared = wanted(storage_probe=setting, engram=engram)
    facts = looked(tmp_path, spark(files=SHARDS))
    todo = storage_todo(facts, prepared)
    assert ((todo["probe"] is not None), todo["packages"]) == (runs, ["fio"] if runs else [])
    facts["docker"]["containers"] = [{"ours": True, "state": "running"}]
    assert storage_todo(facts, prepared)["probe"] is None  # never beside a rank


def fio(p99_us: float) -> str:
    read = {"iops": 123456.7, "lat_ns": {"mean": 95000.5}, "clat_ns": {"percentile": {"99.000000": p99_us * 1000}}}
    return "note: something\n" + json.dumps({"jobs": [{"read": read}]})


def test_what_fio_says_is_kept_with_the_disk() -> None:
    kept = {"schema": 1, "identity": DISK, "iops": 123457, "mean_us": 95.0, "p99_us": 180.0}
    assert json.loads(probe_result(fio(180), DISK)) == kept


@pytest.mark.parametrize("output", ["", "{}", '{"jobs": []}', '{"jobs": [{"read": {}}]}', "fio: failed"])
def test_anything_else_is_refused(output: str) -> None:
    with pytest.raises(ValueError, match="fio did not say"):
        probe_result(output, DISK)


@pytest.mark.parametrize(("p99", "ranks", "taken"), [(100, 8, 0.3), (100, 4, 0.5), (1000, 8, 3.0), (1000, 1, 18.0)])
def test_a_step_takes_rounds_of_as_many_reads_as_threads(p99: float, ranks: int, taken: float) -> None:
    """48 rows x 2 reads x 6 tokens = 576 reads over all ranks, 32 at a time."""
    assert step_ms(p99, ranks) == pytest.approx(taken)


@pytest.mark.parametrize(
    ("p99", "engram", "what", "slow"),
    [
        (900, "disk", DISK, False),
        (940, "disk", DISK, True),
        (940, "memory", DISK, False),
        (940, "disk", "ext4 x y", False),
    ],
)
def test_a_slow_disk_is_warned_of_where_engram_is_on_it(
    tmp_path: Path, p99: float, engram: str, what: str, slow: bool
) -> None:
    held = {"/var/lib/gb10/storage-probe.json": probe_result(fio(p99), what)}
    facts = looked(tmp_path, spark(files=SHARDS, system=held))
    plan = plan_of(*(100 + n for n in range(8)))
    plan["ranks"] = [{**rank, "node": "spark-153", "address": "192.168.0.153"} for rank in plan["ranks"][:1]] * 8
    found = [f for f in assess(plan, {"spark-153": facts}, {"engram": engram}) if f.code == "engram-disk-slow"]
    assert bool(found) == slow
    if slow:
        assert "2.8 ms a step for Engram" in found[0].message
        assert "940 us" in found[0].message


def test_a_network_disk_has_an_identity_too(tmp_path: Path) -> None:
    facts = looked(tmp_path, spark(mounts=["/dev/a / ext4 rw 0 0", "srv:/x /data nfs4 rw 0 0"]))
    assert identity(facts) == "nfs4 srv:/x"
