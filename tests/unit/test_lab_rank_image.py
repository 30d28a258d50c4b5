"""The rank images: which file is patched in which image, and equal inputs give equal images."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest

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


def made(root: Path, dest: Path, files: Path = FILES) -> dict[str, dict[str, object]]:
    dest.mkdir()
    rank_image.write_images(root, files, "amd64", dest)
    document = json.loads((dest / "images.json").read_text())
    assert document["schema"] == 1
    return dict(document["images"])


def contents(archive: Path) -> tuple[dict[str, object], dict[str, tarfile.TarInfo], dict[str, bytes]]:
    """The configuration of a saved image, and its filesystem: the entries and the bytes of the files by path."""
    entries: dict[str, tarfile.TarInfo] = {}
    data: dict[str, bytes] = {}
    with tarfile.open(archive) as outer:
        (manifest,) = json.load(outer.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(outer.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        for name in manifest["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(name)) as layer:
                for member in layer:
                    entries[member.name] = member
                    if member.isfile():
                        data[member.name] = layer.extractfile(member).read()  # type: ignore[union-attr]
    return config, entries, data


@pytest.mark.parametrize(("tag", "stock"), [(rank_image.LATEST, set()), (rank_image.ENGRAM_MEM, set(rank_image.STOCK))])
def test_each_patch_file_is_at_its_path_in_the_right_variant(root: Path, tmp_path: Path, tag: str, stock: set[str]):
    entry = made(root, tmp_path / "images")[tag]
    _, _, data = contents(tmp_path / "images" / str(entry["archive"]))
    for name, path in rank_image.PATCHES.items():
        text = data[f"usr/local/lib/python3.12/dist-packages/vllm/{path}"].decode()
        assert f'VARIANT = "{"stock" if name in stock else "patched"}"' in text, name
        assert "stand-in" in text


def test_images_json_tells_the_truth_about_the_archives(root: Path, tmp_path: Path):
    images = made(root, tmp_path / "images")
    assert set(images) == {"vllm-dsv41:latest", "vllm-dsv41:engram-mem"}
    for tag, entry in images.items():
        archive = tmp_path / "images" / str(entry["archive"])
        assert entry["size"] == archive.stat().st_size
        assert entry["archive_sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
        with tarfile.open(archive) as tar:
            (manifest,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
            config = tar.extractfile(manifest["Config"]).read()  # type: ignore[union-attr]
        assert manifest["RepoTags"] == [tag]
        assert entry["image_id"] == f"sha256:{hashlib.sha256(config).hexdigest()}"
        assert json.loads(config)["rootfs"]["diff_ids"] == entry["layers"]
        assert not json.loads(config)["config"]["Entrypoint"]


def test_engram_mem_is_latest_with_one_layer_more(root: Path, tmp_path: Path):
    images = made(root, tmp_path / "images")
    latest, engram_mem = (list(images[tag]["layers"]) for tag in (rank_image.LATEST, rank_image.ENGRAM_MEM))
    assert engram_mem[:-1] == latest


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
    assert {tag for tag in before if before[tag]["image_id"] != after[tag]["image_id"]} == differ


def test_the_root_is_small_merged_and_holds_nothing_of_the_host(root: Path, tmp_path: Path):
    entry = made(root, tmp_path / "images")[rank_image.LATEST]
    _, entries, data = contents(tmp_path / "images" / str(entry["archive"]))
    assert {"usr/bin/true", "usr/lib/x86_64-linux-gnu/libc.so.6", "etc/debian_version"} <= set(data)
    assert data["usr/bin/same"] == b"dash"
    assert entries["bin"].linkname == "usr/bin"
    assert not [name for name in entries if "share/doc" in name or "locale" in name or "resolv" in name]
    assert {member.mtime for member in entries.values()} == {rank_image.EPOCH}
    assert {(member.uid, member.uname) for member in entries.values()} == {(0, "")}


def test_vllm_without_the_engine_says_what_to_mount(root: Path, tmp_path: Path):
    entry = made(root, tmp_path / "images")[rank_image.LATEST]
    _, entries, data = contents(tmp_path / "images" / str(entry["archive"]))
    assert entries["usr/local/bin/vllm"].mode == 0o755
    assert b"no engine at $engine" in data["usr/local/bin/vllm"]
