"""The rank images: which file is patched in which image, and equal inputs give equal images."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest

from gb10.layout import Image, read_layout
from lab import rank_image

FILES = rank_image.FILES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root filesystem as a package tool may leave it: unmerged, with documentation and files of the host."""
    path = tmp_path / "root.tar"
    with tarfile.open(path, "w") as tar:
        for name, text in {
            "./bin/true": "true",
            "./usr/bin/dash": "dash",
            "./lib/x86_64-linux-gnu/libc.so.6": "libc",
            "./usr/share/doc/libc6/README": "long",
            "./usr/share/locale/nl/LC_MESSAGES/bash.mo": "lang",
            "./etc/resolv.conf": "nameserver of the host",
            "./etc/debian_version": "13",
        }.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uname = len(text), 1_800_000_000, "somebody"
            tar.addfile(info, io.BytesIO(text.encode()))
        hard = tarfile.TarInfo("./usr/bin/same")
        hard.type, hard.linkname = tarfile.LNKTYPE, "./usr/bin/dash"
        tar.addfile(hard)
        device = tarfile.TarInfo("./dev/null")
        device.type = tarfile.CHRTYPE
        tar.addfile(device)
    return path


def made(root: Path, dest: Path, files: Path = FILES) -> dict[str, Image]:
    dest.mkdir()
    rank_image.write_images(root, files, "amd64", dest)
    return read_layout(str(dest))


def contents(layout: Path, image: Image) -> tuple[dict[str, tarfile.TarInfo], dict[str, bytes]]:
    """The filesystem of an image: the entries and the bytes of the files by path."""
    entries: dict[str, tarfile.TarInfo] = {}
    data: dict[str, bytes] = {}
    for held in image.layers:
        with tarfile.open(layout / "blobs" / held.path) as layer:
            for member in layer:
                entries[member.name] = member
                if member.isfile():
                    data[member.name] = layer.extractfile(member).read()  # type: ignore[union-attr]
    return entries, data


@pytest.mark.parametrize(("tag", "stock"), [(rank_image.LATEST, set()), (rank_image.ENGRAM_MEM, set(rank_image.STOCK))])
def test_each_patch_file_is_at_its_path_in_the_right_variant(root: Path, tmp_path: Path, tag: str, stock: set[str]):
    image = made(root, tmp_path / "images")[tag]
    _, data = contents(tmp_path / "images", image)
    for name, path in rank_image.PATCHES.items():
        text = data[f"usr/local/lib/python3.12/dist-packages/vllm/{path}"].decode()
        assert f'VARIANT = "{"stock" if name in stock else "patched"}"' in text, name
        assert "stand-in" in text


def test_the_entrypoint_of_the_base_is_gone(root: Path, tmp_path: Path):
    images = made(root, tmp_path / "images")
    assert {name: image.entrypoint for name, image in images.items()} == {
        rank_image.LATEST: (),
        rank_image.ENGRAM_MEM: (),
    }


def test_engram_mem_is_latest_with_one_layer_more(root: Path, tmp_path: Path):
    images = made(root, tmp_path / "images")
    assert images[rank_image.ENGRAM_MEM].layers[:-1] == images[rank_image.LATEST].layers


def test_equal_inputs_give_equal_images(root: Path, tmp_path: Path):
    assert made(root, tmp_path / "a") == made(root, tmp_path / "b")


@pytest.mark.parametrize(
    ("changed", "differ"),
    [("stock/engram.py", {rank_image.ENGRAM_MEM}), ("patched/engram.py", {rank_image.LATEST, rank_image.ENGRAM_MEM})],
)
def test_a_changed_file_changes_the_images_it_is_in(root: Path, tmp_path: Path, changed: str, differ: set[str]):
    files = tmp_path / "files"
    shutil.copytree(FILES, files)
    before = made(root, tmp_path / "before", files)
    (files / changed).write_text("VARIANT = 'another'\n")
    after = made(root, tmp_path / "after", files)
    assert {tag for tag in before if before[tag].config != after[tag].config} == differ


def test_the_root_is_small_merged_and_holds_nothing_of_the_host(root: Path, tmp_path: Path):
    image = made(root, tmp_path / "images")[rank_image.LATEST]
    entries, data = contents(tmp_path / "images", image)
    assert {"usr/bin/true", "usr/lib/x86_64-linux-gnu/libc.so.6", "etc/debian_version"} <= set(data)
    assert data["usr/bin/same"] == b"dash"
    assert entries["bin"].linkname == "usr/bin"
    assert not [name for name in entries if "share/doc" in name or "locale" in name or "resolv" in name]
    assert {member.mtime for member in entries.values()} == {rank_image.EPOCH}
    assert {(member.uid, member.uname) for member in entries.values()} == {(0, "")}


def test_vllm_without_the_engine_says_what_to_mount(root: Path, tmp_path: Path):
    image = made(root, tmp_path / "images")[rank_image.LATEST]
    entries, data = contents(tmp_path / "images", image)
    assert entries["usr/local/bin/vllm"].mode == 0o755
    assert b"no engine at $engine" in data["usr/local/bin/vllm"]
