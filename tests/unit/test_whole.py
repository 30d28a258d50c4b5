"""Files that are written whole or not at all: content, mode, and nothing beside them whatever fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gb10 import whole


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_content_and_mode_are_as_given_whatever_was_there(tmp_path: Path, mode: int, durable: bool) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("old")
    path.chmod(0o777)
    umask = os.umask(0o077)
    try:
        whole.write(path, b"new", mode, durable=durable)
    finally:
        os.umask(umask)
    assert (path.read_bytes(), path.stat().st_mode & 0o7777, names(tmp_path)) == (b"new", mode, ["a.yaml"])


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("theirs")
    (tmp_path / "link").symlink_to("target")
    whole.write(tmp_path / "link", b"ours")
    assert ((tmp_path / "target").read_text(), (tmp_path / "link").is_symlink()) == ("theirs", False)


def test_a_disk_that_is_full_leaves_the_old_content_and_nothing_beside_it(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", place], check=True, timeout=30)
    try:
        whole.write(place / "a", b"old")
        with pytest.raises(OSError, match="No space left"):
            whole.write(place / "a", bytes(1 << 20), durable=True)
        assert ((place / "a").read_bytes(), names(place)) == (b"old", ["a"])
    finally:
        subprocess.run(["umount", place], check=True, timeout=30)


def test_a_place_that_is_a_directory_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        whole.write(tmp_path / "a", b"new")
    assert names(tmp_path) == ["a"]
