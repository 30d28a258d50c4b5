"""Image archives: read without an engine, judged by content (cases 6 and 16)."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gb10.archive import read_archive
from gb10.images import judge

PATHS = {"engram.py": "/site/vllm/engram.py", "attention.py": "/site/vllm/attention.py"}
KNOWN = {
    name: {kind: hashlib.sha256(f"{kind} {name}".encode()).hexdigest() for kind in ("patched", "stock")}
    for name in PATHS
}


def layer(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            tar.addfile(item, io.BytesIO(content))
    return out.getvalue()


def archive(path: Path, layers: list[dict[str, bytes]], tag: str = "x:1", **config: Any) -> dict[str, Any]:
    """Writes a docker-save archive; returns its line of images.json."""
    raw = json.dumps({"config": config}).encode()
    files = {"config.json": raw} | {f"layer{n}.tar": layer(content) for n, content in enumerate(layers)}
    names = [name for name in files if name.startswith("layer")]
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": names}]
    path.write_bytes(layer(files | {"manifest.json": json.dumps(manifest).encode()}))
    return {
        "archive": path.name,
        "archive_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "image_id": "sha256:" + hashlib.sha256(raw).hexdigest(),
    }


BASE = {"site/vllm/engram.py": b"patched engram.py", "site/vllm/attention.py": b"patched attention.py"}


def found(path: Path, entry: dict[str, Any], stock: list[str], known: Any = KNOWN, tag: str = "x:1") -> list[str]:
    return [f.code for f in judge(tag, entry, read_archive(path, PATHS.values()), PATHS, stock, known)]


def test_the_right_image_passes(tmp_path: Path) -> None:
    entry = archive(tmp_path / "a.tar", [BASE])
    assert found(tmp_path / "a.tar", entry, []) == []
    over = archive(tmp_path / "b.tar", [BASE, {"site/vllm/engram.py": b"stock engram.py"}], Entrypoint=[])
    assert found(tmp_path / "b.tar", over, ["engram.py"]) == []


@pytest.mark.parametrize(
    ("layers", "config", "stock", "code"),
    [
        ([BASE], {}, ["engram.py"], "patch-wrong"),
        ([BASE, {"site/vllm/attention.py": b"stock attention.py"}], {}, [], "patch-wrong"),
        ([BASE, {"site/vllm/attention.py": b"something"}], {}, [], "patch-wrong"),
        ([BASE, {"site/vllm/.wh.attention.py": b""}], {}, [], "patch-missing"),
        ([BASE, {"site/.wh.vllm": b""}], {}, [], "patch-missing"),
        ([{"site/vllm/engram.py": b"patched engram.py"}], {}, [], "patch-missing"),
        ([BASE], {"Entrypoint": ["vllm", "serve"]}, [], "entrypoint-not-empty"),
    ],
)
def test_wrong_content_is_named(
    tmp_path: Path, layers: list[dict[str, bytes]], config: dict[str, Any], stock: list[str], code: str
) -> None:
    entry = archive(tmp_path / "a.tar", layers, **config)
    assert code in found(tmp_path / "a.tar", entry, stock)


def test_an_archive_that_changed_is_named(tmp_path: Path) -> None:
    entry = archive(tmp_path / "a.tar", [BASE])
    other = archive(tmp_path / "a.tar", [BASE], tag="y:1", Env=["A=1"])
    assert entry != other
    assert found(tmp_path / "a.tar", entry, []) == ["archive-differs", "image-digest", "image-tag"]


def test_files_nobody_pinned_are_a_warning(tmp_path: Path) -> None:
    entry = archive(tmp_path / "a.tar", [BASE])
    assert found(tmp_path / "a.tar", entry, [], known={}) == ["patch-unpinned", "patch-unpinned"]
