"""The weights module on real files (case 17)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from modules import load_module, run_module

FILES = {
    "model-00001-of-00002.safetensors": b"a" * 4096,
    "model-00002-of-00002.safetensors": b"b" * 4096,
    "config.json": b"{}",
}


@pytest.fixture(name="manifest")
def _manifest(tmp_path: Path) -> list[dict[str, Any]]:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return [
        {"path": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in sorted(FILES.items())
    ]


MODULE = load_module("gb10_weights")


def look(folder: Path, manifest: list[dict[str, Any]], verify_all: bool = False) -> tuple[dict[str, str], int]:
    """Reasons by path and how many files were read; the receipt is kept as the module keeps it."""
    reasons, seen, hashed = MODULE.compare(folder, manifest, verify_all)
    MODULE.write_receipt(folder, seen)
    return reasons, hashed


def test_a_second_look_reads_nothing_and_all_is_read_when_asked(tmp_path: Path, manifest: list[dict[str, Any]]) -> None:
    assert look(tmp_path, manifest) == ({}, 3)
    assert look(tmp_path, manifest) == ({}, 0)
    assert look(tmp_path, manifest, verify_all=True) == ({}, 3)


SHARD = "model-00002-of-00002.safetensors"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def link(path: Path) -> None:
    target = path.with_name("blob")
    path.rename(target)
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-24]), "4072 bytes"),
        (flip, "sha256"),
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.rename(path.with_suffix(".part")), "missing"),
        (link, "symbolic link"),
    ],
)
def test_a_damaged_shard_is_named(
    tmp_path: Path, manifest: list[dict[str, Any]], damage: Callable[[Path], Any], words: str
) -> None:
    assert look(tmp_path, manifest)[0] == {}
    damage(tmp_path / SHARD)
    reasons, _hashed = look(tmp_path, manifest)
    assert list(reasons) == [SHARD]
    assert words in reasons[SHARD]


def test_a_byte_flipped_under_the_old_times_is_found(tmp_path: Path, manifest: list[dict[str, Any]]) -> None:
    assert look(tmp_path, manifest)[0] == {}
    before = (tmp_path / SHARD).stat()
    flip(tmp_path / SHARD)
    os.utime(tmp_path / SHARD, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert list(look(tmp_path, manifest)[0]) == [SHARD]


def test_a_directory_in_place_of_a_file_is_said(tmp_path: Path, manifest: list[dict[str, Any]]) -> None:
    (tmp_path / SHARD).unlink()
    (tmp_path / SHARD).mkdir()
    state = run_module("gb10_weights", path=str(tmp_path), files=manifest)
    assert "weights-blocked" in state["msg"]
    assert SHARD in state["msg"]


def test_the_whole_module_says_the_same(tmp_path: Path, manifest: list[dict[str, Any]]) -> None:
    (tmp_path / SHARD).unlink()
    state = run_module("gb10_weights", path=str(tmp_path), files=manifest)
    assert (state["changed"], state["wrong"], state["reasons"]) == (False, [SHARD], {SHARD: "missing"})


def test_a_manifest_stays_under_its_directory(tmp_path: Path) -> None:
    state = run_module("gb10_weights", path=str(tmp_path), files=[{"path": "../x", "size": 1, "sha256": "0"}])
    assert "manifest-path" in state["msg"]
