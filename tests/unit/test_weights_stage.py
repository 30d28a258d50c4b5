"""One rank's Engram rows, cut out of real safetensors files and read back by the safetensors library."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from modules import run_module
from safetensors.numpy import load_file, save_file

from gb10 import data
from gb10.engram import EngramTables, engram_split, head_rows
from gb10.relay.problem import Problem
from gb10.weights_stage import lacking, stage
from gb10.weights_todo import stages

TABLES = EngramTables(layers=(1, 14), heads=24, bucket_floor=50, row_bytes=264)
PATTERN = data.load("weights")["engram_tensor"]
Files = list[dict[str, Any]]


def checkpoint(folder: Path) -> Files:
    """Two shards with a table and its scales each, one without; every row tells its layer and number."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    save_file({"layers.0.attn.weight": np.ones((4, 4), np.float32)}, folder / "model-00001-of-00003.safetensors")
    for number, (layer, sizes) in enumerate(head_rows(TABLES).items(), start=2):
        rows = sum(sizes) + number  # the checkpoint may hold more rows than heads have
        tensors = {
            f"model.layers.{layer}.engram.embed.weight": rng.integers(0, 256, (rows, 256), np.uint8),
            f"model.layers.{layer}.engram.embed.scale": rng.integers(0, 256, (rows, 8), np.uint8),
            f"model.layers.{layer}.engram.proj.weight": np.zeros((3, 3), np.float32),
        }
        save_file(tensors, folder / f"model-{number:05d}-of-00003.safetensors")
    return listed(folder)


def listed(folder: Path) -> Files:
    return [
        {"path": p.name, "size": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in sorted(folder.glob("*.safetensors"))
    ]


def wanted(folder: Path, rank: int = 3, degree: int = 8) -> dict[str, Any]:
    ranks = [{"rank": n, "node": f"n{n}"} for n in range(degree)]
    found, findings = stages(ranks, degree, TABLES)
    assert not findings
    return found[f"n{rank}"] | {"folder": str(folder)}


def test_every_rank_has_its_rows_and_all_ranks_have_all(tmp_path: Path) -> None:
    files = checkpoint(tmp_path / "x")
    whole: dict[str, Any] = {}
    for path in (tmp_path / "x").glob("*.safetensors"):
        whole |= {name: t for name, t in load_file(path).items() if ".engram.embed." in name}
    parts = []
    for rank, shard in enumerate(engram_split(TABLES, 8)):
        want = wanted(tmp_path / f"s{rank}", rank)
        receipt = stage(tmp_path / "x", files, want)
        part = load_file(receipt["file"])
        assert set(part) == set(whole)
        for name, tensor in part.items():
            start, end = shard.rows[1 if ".1." in name else 14]
            assert np.array_equal(tensor, whole[name][start:end])
        assert sum(t.nbytes for t in part.values()) == shard.bytes == want["bytes"]
        assert receipt["sha256"] == hashlib.sha256(Path(receipt["file"]).read_bytes()).hexdigest()
        assert sorted(receipt["shards"]) == [f["path"] for f in files[1:]]
        parts.append(part)
    for name, tensor in whole.items():
        rows = sum(head_rows(TABLES)[1 if ".1." in name else 14])
        assert np.array_equal(np.concatenate([part[name] for part in parts]), tensor[:rows])


def test_a_second_look_finds_it_there_and_reads_only_what_was_touched(tmp_path: Path) -> None:
    files, want = checkpoint(tmp_path / "x"), wanted(tmp_path / "s")
    assert lacking(tmp_path / "x", files, want, 0, 0) == "not staged yet"
    held = Path(stage(tmp_path / "x", files, want)["file"])
    assert lacking(tmp_path / "x", files, want, 0, 0) == ""
    before = held.with_suffix(".json").read_bytes()
    held.touch()
    assert lacking(tmp_path / "x", files, want, 0, 0, keep=False) == ""
    assert held.with_suffix(".json").read_bytes() == before, "check mode writes nothing"
    assert lacking(tmp_path / "x", files, want, 0, 0) == ""
    assert held.with_suffix(".json").read_bytes() != before


def flip(held: Path) -> None:
    content = bytearray(held.read_bytes())
    content[-1] ^= 1
    held.write_bytes(content)


@pytest.mark.parametrize(
    "change",
    [
        flip,
        lambda held: held.write_bytes(held.read_bytes()[:-1]),
        lambda held: held.unlink(),
        lambda held: held.with_suffix(".json").write_text("{"),
        lambda held: held.with_suffix(".json").write_text('{"shards": []}'),
    ],
)
def test_a_staged_file_that_is_another_is_staged_again(tmp_path: Path, change: Callable[[Path], Any]) -> None:
    files, want = checkpoint(tmp_path / "x"), wanted(tmp_path / "s")
    held = Path(stage(tmp_path / "x", files, want)["file"])
    right = held.read_bytes()
    change(held)
    assert lacking(tmp_path / "x", files, want, 0, 0)
    stage(tmp_path / "x", files, want)
    assert held.read_bytes() == right
    assert lacking(tmp_path / "x", files, want, 0, 0) == ""


@pytest.mark.parametrize(("rank", "degree"), [(4, 8), (1, 2)])
def test_another_rank_or_degree_is_staged_anew_and_the_old_goes(tmp_path: Path, rank: int, degree: int) -> None:
    files = checkpoint(tmp_path / "x")
    stage(tmp_path / "x", files, wanted(tmp_path / "s"))
    (tmp_path / "s/notes.txt").write_text("mine")
    other = wanted(tmp_path / "s", rank, degree)
    assert lacking(tmp_path / "x", files, other, 0, 0)
    stage(tmp_path / "x", files, other)
    stem = f"engram-rank{rank}-of-{degree}"
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == [f"{stem}.json", f"{stem}.safetensors", "notes.txt"]


def test_other_rows_or_another_source_are_staged_anew(tmp_path: Path) -> None:
    files, want = checkpoint(tmp_path / "x"), wanted(tmp_path / "s")
    stage(tmp_path / "x", files, want)
    rows = dict(want["rows"]) | {"1": [0, 7]}
    assert "changed" in lacking(tmp_path / "x", files, want | {"rows": rows}, 0, 0)
    untouched = [files[0] | {"sha256": "0" * 64}, *files[1:]]
    assert lacking(tmp_path / "x", untouched, want, 0, 0) == "", "a shard without tables is none of its sources"
    assert "changed" in lacking(tmp_path / "x", [*files[:2], files[2] | {"sha256": "0" * 64}], want, 0, 0)


def test_what_cannot_be_staged_is_said(tmp_path: Path) -> None:
    files, want = checkpoint(tmp_path / "x"), wanted(tmp_path / "s")

    def refused(words: str, files: Files = files, **change: Any) -> None:
        with pytest.raises(Problem, match=words) as caught:
            stage(tmp_path / "x", files, want | change)
        assert caught.value.code == "engram-stage"
        assert not (tmp_path / "s").exists() or list((tmp_path / "s").iterdir()) == []

    refused("has [0-9]+ rows, this rank needs those up to 10000000", rows={"1": [0, 10**7], "14": [0, 1]})
    refused("no shard of .* holds Engram tables of layer 2[.]", rows={"2": [0, 1]})
    refused("layer 1, 14", files=files[:1])
    header = json.dumps({"layers.1.engram.embed.weight": {"dtype": "F4", "shape": [4, 2], "data_offsets": [0, 8]}})
    (tmp_path / "x/odd.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"x" * 8)
    refused("no absolute path", folder="x")
    refused("is no table", files=[*files, {"path": "odd.safetensors", "size": 1, "sha256": "0" * 64}])
    (tmp_path / "x/odd.safetensors").write_bytes(b"\xff" * 100)
    refused("is no safetensors file", files=[*files, {"path": "odd.safetensors", "size": 1, "sha256": "0" * 64}])
    with pytest.raises(Problem) as caught:
        lacking(tmp_path / "x", files, want, 0, 1 << 60)
    assert caught.value.code == "weights-no-room"


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("layers.1.engram.embed.weight", "1"),
        ("model.layers.14.engram.embed.scale", "14"),
        ("layers.1.engram.proj.weight", ""),
        ("xlayers.1.engram.embed.weight", ""),
    ],
)
def test_the_published_tensor_names_are_found(name: str, layer: str) -> None:
    match = re.search(PATTERN, name)
    assert (match[1] if match else "") == layer


def test_what_makes_staging_impossible_is_a_finding(tmp_path: Path) -> None:
    ranks = [{"rank": n, "node": f"n{n}"} for n in range(7)]
    for degree, tables in ((7, None), (8, TABLES), (7, TABLES)):
        found, findings = stages(ranks, degree, tables)
        assert (found, [f.code for f in findings]) == ({}, ["engram-stage-impossible"])


def test_the_module_stages_once(tmp_path: Path) -> None:
    files, want = checkpoint(tmp_path / "x"), wanted(tmp_path / "s")
    given = {"path": str(tmp_path / "x"), "files": files, "stage": want}
    assert run_module("gb10_weights", check=True, action="stage", **given)["changed"]
    assert not (tmp_path / "s").exists()
    assert run_module("gb10_weights", action="stage", **given)["staged"]["rank"] == 3
    assert not run_module("gb10_weights", action="stage", **given)["changed"]
    assert run_module("gb10_weights", **given)["stage"] == ""
