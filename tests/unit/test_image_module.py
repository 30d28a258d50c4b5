"""What gb10_image hands to Docker: one saved image, only of proved layers, only of those that are missing."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from layouts import layout, tar
from modules import load_module

from gb10.layout import Image

module = load_module("gb10_image")


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return layout(tmp_path, [tar({"base": b"b" * 3_000_000}), tar({"a": b"a"}), b"\1" * 1000], name="v:1")


def todo(image: Image, *numbers: int) -> list[dict[str, Any]]:
    layers = [image.layers[n] for n in numbers]
    return [{"path": layer.path, "size": layer.size, "sha256": layer.digest[7:]} for layer in layers]


def stream(root: Path, image: Image, blobs: list[dict[str, Any]]) -> Any:
    texts = [(root / "blobs" / held.path).read_bytes() for held in (image.manifest, image.config)]
    return module.saved("v:incoming", *texts, [layer.digest for layer in image.layers], blobs, root / "blobs")


def test_only_missing_layers_are_in_it(tmp_path: Path, image: Image) -> None:
    data = b"".join(stream(tmp_path, image, todo(image, 1, 2)))
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as held:
        files = {item.name: held.extractfile(item).read() for item in held}  # type: ignore[union-attr]
    for number in (1, 2):
        layer = image.layers[number]
        assert files[f"blobs/{layer.path}"] == (tmp_path / "blobs" / layer.path).read_bytes()
    assert f"blobs/{image.layers[0].path}" not in files
    (listed,) = json.loads(files["manifest.json"])
    assert listed["RepoTags"] == ["v:incoming"]
    assert listed["Layers"] == [f"blobs/{layer.path}" for layer in image.layers]
    assert listed["Config"] == f"blobs/{image.config.path}"
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["digest"] == image.manifest.digest
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/library/v:incoming"


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("where", [0, -1])
def test_a_flipped_byte_is_never_handed_over_whole(tmp_path: Path, image: Image, number: int, where: int) -> None:
    path = tmp_path / "blobs" / image.layers[number].path
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)
    given: list[bytes] = []
    with pytest.raises(module.Problem, match=image.layers[number].digest) as caught:
        given.extend(stream(tmp_path, image, todo(image, number)))
    assert caught.value.code == "image-blob"
    assert bytes(data) not in b"".join(given)
    assert b"manifest.json" not in b"".join(given)


@pytest.mark.parametrize("damage", ["missing", "short", "long", "link"])
def test_what_did_not_arrive_whole_is_named(tmp_path: Path, image: Image, damage: str) -> None:
    path = tmp_path / "blobs" / image.layers[1].path
    data = path.read_bytes()
    path.unlink()
    if damage == "link":
        (tmp_path / "real").write_bytes(data)
        path.symlink_to(tmp_path / "real")
    elif damage != "missing":
        path.write_bytes(data[:-1] if damage == "short" else data + b"x")
    with pytest.raises(module.Problem, match=image.layers[1].digest) as caught:
        module.check_spool(todo(image, 0, 1), tmp_path / "blobs")
    assert caught.value.code == "image-blob"
    module.check_spool(todo(image, 0, 2), tmp_path / "blobs")


@pytest.mark.parametrize(
    ("name", "whole", "repository"),
    [
        ("v:1", "docker.io/library/v:1", "v"),
        ("a/v:1", "docker.io/a/v:1", "a/v"),
        ("host:5000/v:1", "host:5000/v:1", "host:5000/v"),
        ("localhost/v:1", "localhost/v:1", "localhost/v"),
    ],
)
def test_names_as_dockers_stores_have_them(name: str, whole: str, repository: str) -> None:
    assert module.full(name) == whole
    assert module.parts(name) == (repository, "1")


def test_a_stream_that_ends_badly_is_an_error() -> None:
    said = b'{"stream":"Loaded"}\r\n{"errorDetail":{"message":"x"},"error":"no space left on device"}\r\n'
    assert module.error_in(said) == "no space left on device"
    assert module.error_in(b'{"stream":"Loaded image: v:1\\n"}\r\n') == ""
    assert module.told(b'{"message":"conflict."}') == "conflict"
