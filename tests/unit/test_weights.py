"""Weights on a node, on real files: what is wrong is named, what is right is not read twice (cases 17, 22)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import FILES, SHARD, farm, flip, manifest, tree, write
from modules import run_module

from gb10 import weights_files
from gb10.relay.index import PARTS, make_index
from gb10.relay.problem import Problem
from gb10.relay.receipt import read_receipts, write_receipts
from gb10.weights_files import Look, at_hand, bring, compare, room, unnamed

Files = list[dict[str, Any]]


def look(folder: Path, files: Files, read: str = "changed") -> Look:
    """A look whose receipt is kept, as the module keeps it."""
    found, seen = compare(folder, files, read)
    write_receipts(folder, seen)
    return found


# --- a look ----------------------------------------------------------------------------------------------------------


def test_a_second_look_reads_nothing_and_all_is_read_when_asked(tmp_path: Path) -> None:
    files = write(tmp_path)
    assert [look(tmp_path, files).hashed, look(tmp_path, files).hashed] == [4, 0]
    found = look(tmp_path, files, "all")
    assert (found.hashed, found.reasons, found.have, found.missing) == (4, {}, 8196, 0)


def test_a_look_that_reads_nothing_says_what_was_never_read(tmp_path: Path) -> None:
    files = write(tmp_path)
    assert sorted(compare(tmp_path, files, "none")[0].unread) == sorted(FILES)
    look(tmp_path, files)
    flip(tmp_path / SHARD)
    found = compare(tmp_path, files, "none")[0]
    assert (found.unread, found.reasons, found.hashed) == ([SHARD], {}, 0)


def link(path: Path) -> None:
    target = path.with_name("blob")
    path.rename(target)
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-24]), "4072 bytes, not 4096"),
        (flip, "sha256"),
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.rename(path.with_suffix(".part")), "missing"),
        (link, "a symbolic link"),
    ],
)
def test_a_damaged_shard_is_named_with_what_it_needs(tmp_path: Path, damage: Callable[[Path], Any], words: str) -> None:
    files = write(tmp_path)
    assert look(tmp_path, files).reasons == {}
    damage(tmp_path / SHARD)
    found = look(tmp_path, files)
    assert list(found.reasons) == [SHARD]
    assert words in found.reasons[SHARD]
    assert found.missing == 4096


def test_a_byte_flipped_under_the_old_times_is_found(tmp_path: Path) -> None:
    files = write(tmp_path)
    look(tmp_path, files)
    before = (tmp_path / SHARD).stat()
    flip(tmp_path / SHARD)
    os.utime(tmp_path / SHARD, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert list(look(tmp_path, files).reasons) == [SHARD]


def test_only_reading_all_finds_what_the_disk_changed_without_a_trace(tmp_path: Path) -> None:
    files = write(tmp_path)
    look(tmp_path, files)
    flip(tmp_path / SHARD)
    receipts = read_receipts(tmp_path)
    stat = (tmp_path / SHARD).stat()
    receipts[SHARD][:4] = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    write_receipts(tmp_path, receipts)
    assert look(tmp_path, files).reasons == {}
    assert list(look(tmp_path, files, "all").reasons) == [SHARD]


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../b", "a//b", "", ".gb10-verified.json"])
def test_a_manifest_stays_under_its_directory(tmp_path: Path, path: str) -> None:
    with pytest.raises(Problem, match=r".") as caught:
        compare(tmp_path, [{"path": path, "size": 1, "sha256": "0" * 64}])
    assert caught.value.code == "manifest-path"


def test_what_a_broken_off_transfer_left_needs_no_room_again(tmp_path: Path) -> None:
    files = write(tmp_path)
    (tmp_path / SHARD).unlink()
    (tmp_path / PARTS).mkdir()
    (tmp_path / PARTS / "x").write_bytes(b"b" * 1000)
    assert compare(tmp_path, files)[0].missing == 3096


# --- receipts are the relay's too -------------------------------------------------------------------------------------


def test_the_relay_and_the_module_believe_each_others_receipts(tmp_path: Path) -> None:
    """Both directions, and neither loses what the other wrote."""
    files = write(tmp_path / "a")
    look(tmp_path / "a", files)
    assert make_index(tmp_path / "a", files, tmp_path / "a")[2] == 4, "the index needs each chunk's sum once"
    assert make_index(tmp_path / "a", files, tmp_path / "a")[2] == 0
    assert look(tmp_path / "a", files).hashed == 0
    files = write(tmp_path / "b")
    make_index(tmp_path / "b", files, tmp_path / "b")
    assert look(tmp_path / "b", files).hashed == 0
    flip(tmp_path / "b" / SHARD)
    with pytest.raises(Problem, match=SHARD):
        make_index(tmp_path / "b", files, tmp_path / "b")
    assert list(look(tmp_path / "b", files).reasons) == [SHARD]


# --- room ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; a user namespace would do too, the tests run as root."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_room_is_judged_where_the_files_will_land(small_disk: Path) -> None:
    place = small_disk / "models/x"
    room(place, 500_000, 400_000, "weights")
    room(place, 0, 1 << 50, "weights")
    with pytest.raises(Problem) as caught:
        room(place, 800_000, 400_000, "weights")
    assert caught.value.code == "weights-no-room"
    for words in (
        str(small_disk),
        "1048576 bytes free",
        "800000 bytes of weights",
        "400000 bytes are to stay",
        "151424",
    ):
        assert words in caught.value.text


def test_a_read_only_target_is_named_and_its_content_stays(small_disk: Path) -> None:
    write(small_disk, {SHARD: b"old"})
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(Problem) as caught:
        room(small_disk, 1, 0, "weights")
    assert (caught.value.code, str(small_disk) in caught.value.text) == ("weights-read-only", True)
    source = small_disk.parent / "source"
    with pytest.raises(Problem) as caught:
        bring(source, small_disk, weights_files.checked(write(source)))
    assert caught.value.code == "weights-unwritable"
    assert tree(small_disk) == {SHARD: b"old"}


def test_a_disk_that_fills_half_way_keeps_the_old_and_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    """Case 22: what fitted is right, what did not is as it was."""
    old = {"a.safetensors": b"old a", "b.safetensors": b"old b"}
    write(small_disk, old)
    new = {"a.safetensors": b"a" * 600_000, "b.safetensors": b"b" * 600_000}
    entries = weights_files.checked(write(tmp_path / "source", new))
    with pytest.raises(Problem, match="No space left") as caught:
        bring(tmp_path / "source", small_disk, entries)
    assert caught.value.code == "weights-unwritable"
    held = tree(small_disk)
    assert held.keys() == new.keys()
    assert all(content in (old[name], new[name]) for name, content in held.items())
    found = compare(small_disk, manifest(new))[0]
    assert sorted(found.reasons) == [name for name in sorted(held) if held[name] == old[name]] != []
    assert found.hashed == 0, "what arrived has its receipt"


# --- from a directory ------------------------------------------------------------------------------------------------


def test_links_are_read_through_and_never_shipped(tmp_path: Path) -> None:
    farm(tmp_path / "snapshots/rev", tmp_path / "blobs", FILES)
    files = manifest(FILES)
    bring(tmp_path / "snapshots/rev", tmp_path / "to", weights_files.checked(files))
    assert tree(tmp_path / "to") == FILES
    assert not any(path.is_symlink() for path in (tmp_path / "to").rglob("*"))
    found = look(tmp_path / "to", files)
    assert (found.reasons, found.hashed) == ({}, 0)


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to("../blobs/gone")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (dangle, "is a link to nothing (../blobs/gone)"),
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(b"b" * 4072), "has 4072 bytes, the manifest says 4096"),
        (lambda path: (path.unlink(), path.mkdir()), "is no file"),
        (flip, "has sha256"),
    ],
)
def test_a_source_that_is_not_the_manifests_is_refused_by_name(
    tmp_path: Path, damage: Callable[[Path], Any], words: str
) -> None:
    entries = weights_files.checked(write(tmp_path / "from"))
    write(tmp_path / "to", {SHARD: b"old"})
    damage(tmp_path / "from" / SHARD)
    with pytest.raises(Problem) as caught:
        bring(tmp_path / "from", tmp_path / "to", entries)
    assert caught.value.code == "weights-source-wrong"
    assert f"from/{SHARD} {words}" in caught.value.text
    held = tree(tmp_path / "to")
    assert held[SHARD] == b"old"
    if "sha256" not in words:
        assert held == {SHARD: b"old"}, "nothing moved"
        with pytest.raises(Problem):
            at_hand(tmp_path / "from", entries)
    assert not (tmp_path / "to" / PARTS).exists()


def test_a_wrong_download_is_gone_so_that_it_comes_again_and_the_right_ones_moved(tmp_path: Path) -> None:
    incoming = tmp_path / ".gb10-download"
    entries = weights_files.checked(write(incoming))
    flip(incoming / SHARD)
    with pytest.raises(Problem, match=SHARD):
        bring(incoming, tmp_path, entries, move=True)
    assert not (incoming / SHARD).exists()
    assert not (tmp_path / SHARD).exists()
    write(incoming, {SHARD: FILES[SHARD]})
    rest = [entry for entry in entries if not (tmp_path / entry[0]).exists()]
    bring(incoming, tmp_path, rest, move=True)
    assert {name: content for name, content in tree(tmp_path).items() if not name.startswith(".gb10")} == FILES


def test_a_link_out_of_the_directory_takes_nothing(tmp_path: Path) -> None:
    entries = weights_files.checked(write(tmp_path / "from"))
    (tmp_path / "to").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "to/sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Problem, match="leads out of"):
        bring(tmp_path / "from", tmp_path / "to", entries)
    assert tree(tmp_path / "elsewhere") == {}


# --- what no manifest names ------------------------------------------------------------------------------------------


def test_only_shards_and_leftovers_no_manifest_names_go_and_nothing_outside(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    files = write(folder)
    outside = {"outside.safetensors": b"o", "kept.safetensors": b"k"}
    write(tmp_path / "other", outside)
    (folder / "notes.txt").write_text("mine")
    (folder / "old-00001-of-00009.safetensors").write_bytes(b"x")
    (folder / "linked.safetensors").symlink_to(tmp_path / "other/outside.safetensors")
    (folder / "folder").symlink_to(tmp_path / "other")
    (folder / PARTS).mkdir()
    (folder / PARTS / "abc").write_bytes(b"x")
    expected = [f"{PARTS}/abc", "linked.safetensors", "old-00001-of-00009.safetensors"]
    assert unnamed(folder, files) == expected
    state = run_module("gb10_weights", check=True, action="prune", path=str(folder), files=files)
    assert (state["changed"], state["unnamed"]) == (True, expected)
    assert unnamed(folder, files) == expected, "check mode only lists"
    assert run_module("gb10_weights", action="prune", path=str(folder), files=files)["unnamed"] == expected
    assert unnamed(folder, files) == []
    assert set(tree(folder)) - set(FILES) == {"notes.txt"}
    assert tree(tmp_path / "other") == outside


# --- the module ------------------------------------------------------------------------------------------------------


def test_a_directory_in_place_of_a_file_is_said(tmp_path: Path) -> None:
    files = write(tmp_path)
    (tmp_path / SHARD).unlink()
    (tmp_path / SHARD).mkdir()
    state = run_module("gb10_weights", node="spark-161", path=str(tmp_path), files=files)
    assert state["msg"].startswith("error [weights-blocked] spark-161: ")
    assert SHARD in state["msg"]


def test_the_whole_module_says_the_same_and_writes_its_receipt_but_not_in_check_mode(tmp_path: Path) -> None:
    files = write(tmp_path)
    (tmp_path / SHARD).unlink()
    state = run_module("gb10_weights", check=True, path=str(tmp_path), files=files)
    assert (state["changed"], state["wrong"], state["reasons"]) == (False, [SHARD], {SHARD: "missing"})
    assert read_receipts(tmp_path) == {}
    state = run_module("gb10_weights", path=str(tmp_path), files=files, judge_room=True, reserve=1 << 60)
    assert state["msg"].startswith("error [weights-no-room] ")
    run_module("gb10_weights", path=str(tmp_path), files=files)
    assert len(read_receipts(tmp_path)) == 3


def test_the_module_imports_what_is_named(tmp_path: Path) -> None:
    files = write(tmp_path / "from")
    given = {"action": "import", "source": str(tmp_path / "from"), "path": str(tmp_path / "to"), "files": files}
    assert run_module("gb10_weights", check=True, paths=[SHARD], **given)["changed"]
    assert not (tmp_path / "to").exists()
    assert run_module("gb10_weights", paths=[SHARD], **given)["changed"]
    assert tree(tmp_path / "to") == {SHARD: FILES[SHARD]}
