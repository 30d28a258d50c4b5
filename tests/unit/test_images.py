"""Images by content: layouts read without an engine, judged, compared with what nodes hold (cases 6, 16)."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from layouts import index, layout, tar

from gb10 import oci_build
from gb10.image_files import RECEIPT, LayerWrong, image_files
from gb10.images import id_on, judge, lacking, spread, state, to_bring, to_remove
from gb10.layout import Blob, Image, read_layout, sha256
from gb10.sources import SourceError

PATHS = {"engram.py": "/site/vllm/engram.py", "attention.py": "/site/vllm/attention.py"}
KNOWN = {
    name: {kind: hashlib.sha256(f"{kind} {name}".encode()).hexdigest() for kind in ("patched", "stock")}
    for name in PATHS
}
BASE = {"site/vllm/engram.py": b"patched engram.py", "site/vllm/attention.py": b"patched attention.py"}
STOCK = {"site/vllm/engram.py": b"stock engram.py"}


def found(root: Path, image: Image, stock: list[str], known: Any = KNOWN) -> list[str]:
    return [f.code for f in judge(image, image_files(str(root), image, PATHS.values()), PATHS, stock, known)]


# --- what an image holds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "config", "stock", "codes"),
    [
        ([tar(BASE)], {}, [], []),
        ([tar(BASE), tar(STOCK)], {"Entrypoint": []}, ["engram.py"], []),
        ([gzip.compress(tar(BASE))], {}, [], []),
        ([tar({f"./{name}": data for name, data in BASE.items()})], {}, [], []),
        ([tar(BASE)], {}, ["engram.py"], ["patch-wrong"]),
        ([tar(BASE), tar({"site/vllm/attention.py": b"stock attention.py"})], {}, [], ["patch-wrong"]),
        ([tar(BASE), tar({"site/vllm/attention.py": b"something"})], {}, [], ["patch-wrong"]),
        ([tar(BASE), tar({"site/vllm/.wh.attention.py": b""})], {}, [], ["patch-missing"]),
        ([tar(BASE), tar({"site/.wh.vllm": b""})], {}, [], ["patch-missing", "patch-missing"]),
        ([tar(BASE), tar({"site/.wh..wh..opq": b""})], {}, [], ["patch-missing", "patch-missing"]),
        # What a layer empties is what lies below it, not what it brings itself.
        ([tar(STOCK), tar({**BASE, "site/vllm/.wh..wh..opq": b""})], {}, [], []),
        # A link where the file or its directory was: what Python would read is not known.
        ([tar(BASE), tar({}, **{"site/vllm/engram.py": "/elsewhere"})], {}, [], ["patch-missing"]),
        ([tar(BASE), tar({}, **{"site/vllm": "/elsewhere"})], {}, [], ["patch-missing", "patch-missing"]),
        ([tar({"site/vllm/engram.py": b"patched engram.py"})], {}, [], ["patch-missing"]),
        ([tar(BASE)], {"Entrypoint": ["vllm", "serve"]}, [], ["entrypoint-not-empty"]),
    ],
)
def test_an_image_is_judged_by_what_it_holds(
    tmp_path: Path, layers: list[bytes], config: dict[str, Any], stock: list[str], codes: list[str]
) -> None:
    assert found(tmp_path, layout(tmp_path, layers, **config), stock) == codes


def test_files_nobody_pinned_are_a_warning(tmp_path: Path) -> None:
    image = layout(tmp_path, [tar(BASE)])
    assert found(tmp_path, image, [], known={}) == ["patch-unpinned", "patch-unpinned"]


def test_a_layer_is_read_once_while_nothing_changes(tmp_path: Path) -> None:
    below = tar(BASE)
    image = layout(tmp_path, [below])
    before = image_files(str(tmp_path), image, PATHS.values())
    receipt = json.loads((tmp_path / RECEIPT).read_text())
    receipt[image.layers[0].digest][1]["files"] = {"site/vllm/engram.py": "remembered"}
    (tmp_path / RECEIPT).write_text(json.dumps(receipt))
    other = layout(tmp_path, [below, tar({"x": b""})], name="y:1")
    assert image_files(str(tmp_path), other, PATHS.values()) == {"/site/vllm/engram.py": "remembered"}
    # Another wanted path, or another file in its place, and it is read again.
    assert image_files(str(tmp_path), other, [*PATHS.values(), "/x"]) != {"/site/vllm/engram.py": "remembered"}
    path = tmp_path / "blobs" / image.layers[0].path
    path.write_bytes(below)
    assert image_files(str(tmp_path), image, PATHS.values()) == before


@pytest.mark.parametrize("damage", [lambda d: d[:-1] + b"\1", lambda d: b"\0" * len(d), lambda d: bytes(len(d))])
def test_a_flipped_layer_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    image = layout(tmp_path, [tar(BASE)])
    path = tmp_path / "blobs" / image.layers[0].path
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(LayerWrong, match=image.layers[0].digest):
        image_files(str(tmp_path), image, PATHS.values())


def test_layers_are_read_through_zstd(tmp_path: Path) -> None:
    image = layout(tmp_path / "z", [tar(BASE), tar(STOCK)], zstd=True)
    assert {layer.media_type[-9:] for layer in image.layers} == {".tar+zstd"}
    plain = layout(tmp_path / "p", [tar(BASE), tar(STOCK)])
    both = [image_files(str(tmp_path / name), i, PATHS.values()) for name, i in (("z", image), ("p", plain))]
    assert both[0] == both[1] != {}
    path = tmp_path / "z/blobs" / image.layers[1].path
    path.write_bytes(path.read_bytes()[:-9] + bytes(9))
    with pytest.raises(LayerWrong, match=f"{image.layers[1].digest} has the content"):
        image_files(str(tmp_path / "z"), image, PATHS.values())


def test_a_layer_that_is_no_tar_is_named(tmp_path: Path) -> None:
    image = layout(tmp_path, [b"no tar" * 1000])
    with pytest.raises(LayerWrong, match=image.layers[0].digest):
        image_files(str(tmp_path), image, PATHS.values())


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_no_source_is_no_error() -> None:
    assert read_layout("") == {}


def test_an_image_has_an_id_for_each_store(tmp_path: Path) -> None:
    image = layout(tmp_path, [tar(BASE)], name="vllm-dsv41:latest")
    assert read_layout(str(tmp_path)) == {"vllm-dsv41:latest": image}
    config = (tmp_path / "blobs" / image.config.path).read_bytes()
    manifest = (tmp_path / "blobs" / image.manifest.path).read_bytes()
    assert image.ids == (sha256(config), sha256(manifest))
    assert json.loads(manifest)["config"]["digest"] == image.config.digest


@pytest.mark.parametrize(
    ("annotations", "name"),
    [
        ({"io.containerd.image.name": "docker.io/library/v:1", "org.opencontainers.image.ref.name": "1"}, "v:1"),
        ({"io.containerd.image.name": "docker.io/a/v:1"}, "a/v:1"),
        ({"io.containerd.image.name": "registry:5000/a/v:1"}, "registry:5000/a/v:1"),
        ({"org.opencontainers.image.ref.name": "v:1"}, "v:1"),
    ],
)
def test_names_are_those_people_use(tmp_path: Path, annotations: dict[str, str], name: str) -> None:
    layout(tmp_path, [tar(BASE)])
    document = index(tmp_path)
    document["manifests"][0]["annotations"] = annotations
    (tmp_path / "index.json").write_text(json.dumps(document))
    assert list(read_layout(str(tmp_path))) == [name]


def nested(root: Path, *platforms: str) -> None:
    """The image lies in an index of its own, as buildx writes it, with a statement about it."""
    entry = index(root)["manifests"][0]
    inner = [{**entry, "annotations": {}, "platform": {"architecture": p, "os": "linux"}} for p in platforms]
    inner.append({**entry, "annotations": {"vnd.docker.reference.type": "attestation-manifest"}})
    held = oci_build.put_blob(root, oci_build.dump({"schemaVersion": 2, "manifests": inner}), oci_build.INDEX)
    outer = {**oci_build.descriptor(held), "annotations": entry["annotations"]}
    (root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [outer]}))


def test_an_index_of_one_platform_is_that_image(tmp_path: Path) -> None:
    image = layout(tmp_path, [tar(BASE)])
    nested(tmp_path, "amd64")
    assert read_layout(str(tmp_path)) == {"x:1": image}


def blob_of(root: Path, part: str) -> Path:
    image = read_layout(str(root))["x:1"]
    held: Blob = {"layer": image.layers[0], "config": image.config, "manifest": image.manifest}[part]
    return root / "blobs" / held.path


def unnamed(root: Path) -> None:
    (root / "index.json").write_text(json.dumps({"manifests": [{**index(root)["manifests"][0], "annotations": {}}]}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda root: (root / "oci-layout").unlink(), "oci-layout"),
        (lambda root: (root / "oci-layout").write_text('{"imageLayoutVersion": "2.0.0"}'), "2.0.0"),
        (lambda root: (root / "index.json").unlink(), "index.json"),
        (lambda root: (root / "index.json").write_text("{"), ""),
        (lambda root: (root / "index.json").write_text("[]"), ""),
        (lambda root: (root / "index.json").write_text('{"manifests": [{"digest": "sha256:zz"}]}'), "no image"),
        (unnamed, "names no image"),
        (lambda root: nested(root, "amd64", "arm64"), "several platforms (amd64, arm64)"),
        (lambda root: nested(root), "several platforms (none)"),
        (lambda root: blob_of(root, "layer").unlink(), "No such file"),
        (lambda root: blob_of(root, "layer").write_bytes(b"short"), "has 5 bytes, not"),
        (lambda root: blob_of(root, "config").write_bytes(b"x" * blob_of(root, "config").stat().st_size), "content of"),
        (lambda root: blob_of(root, "manifest").unlink(), "No such file"),
    ],
)
def test_a_broken_layout_is_named_in_one_line(tmp_path: Path, damage: Callable[[Path], Any], said: str) -> None:
    layout(tmp_path, [tar(BASE)])
    damage(tmp_path)
    with pytest.raises(SourceError) as caught:
        read_layout(str(tmp_path))
    assert caught.value.finding.code == "images-source-unreadable"
    assert said in caught.value.finding.message
    assert str(tmp_path) in caught.value.finding.message
    assert "\n" not in caught.value.finding.message


def test_blobs_that_are_links_are_read_through(tmp_path: Path) -> None:
    """A farm of links is well as long as the content is there: its digest proves it."""
    image = layout(tmp_path / "real", [tar(BASE)])
    farm = tmp_path / "farm"
    (farm / "blobs/sha256").mkdir(parents=True)
    for path in (tmp_path / "real").rglob("*"):
        if path.is_file():
            (farm / path.relative_to(tmp_path / "real")).symlink_to(path)
    assert read_layout(str(farm)) == {"x:1": image}
    assert found(farm, image, []) == []
    (tmp_path / "real/blobs" / image.layers[0].path).unlink()
    with pytest.raises(SourceError):
        read_layout(str(farm))


# --- nodes -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Image]:
    """Two images as the profiles have them: the second is the first and one small layer."""
    first = layout(tmp_path, [tar({"base": b"b" * 9000}), tar(BASE)], name="v:latest")
    second = layout(tmp_path, [tar({"base": b"b" * 9000}), tar(BASE), tar(STOCK)], name="v:mem")
    return {"v:latest": first, "v:mem": second}


def node(store: str, *images: Any, containers: list[Any] | None = None) -> dict[str, Any]:
    """Facts of a node with these images: (id, tags, layers)."""
    held = [{"id": i, "tags": list(tags), "layers": list(layers)} for i, tags, layers in images]
    docker = {"image_store": store, "images": held, "containers": containers or [], "data_root": "/var/lib/docker"}
    return {"docker": {**docker, "containerd_root": "/var/lib/containerd" if store == "containerd" else None}}


def on(store: str, image: Image, *tags: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """A node's image that is ``image``."""
    return image.ids[store == "containerd"], tags, image.diff_ids


def digests(blobs: list[Blob]) -> list[str]:
    return [blob.digest for blob in blobs]


@pytest.mark.parametrize("store", ["classic", "containerd"])
def test_a_tag_is_no_proof_of_content(source: dict[str, Image], store: str) -> None:
    image = source["v:mem"]
    cases = {
        "absent": node(store),
        "same": node(store, on(store, image, "v:mem")),
        "differs": node(store, on(store, source["v:latest"], "v:mem")),
    }
    assert {want: state(f, "v:mem", image.config.digest, image) for want, f in cases.items()} == {c: c for c in cases}
    assert state(node(store, on(store, image, "v:mem")), "v:mem", "unpinned", None) == "unpinned"
    assert id_on(node(store), image.config.digest, image) == image.ids[store == "containerd"]


@pytest.mark.parametrize("store", ["classic", "containerd"])
def test_a_node_lacks_only_what_it_has_not(source: dict[str, Image], store: str) -> None:
    latest, mem = source["v:latest"], source["v:mem"]
    assert digests(lacking(node(store), mem, source.values())) == digests(list(mem.layers))
    assert digests(lacking(node(store, on(store, latest, "v:latest")), mem, source.values())) == [mem.layers[2].digest]
    assert lacking(node(store, on(store, mem)), mem, source.values()) == []
    assert lacking(node(store, on(store, mem, "v:mem")), latest, source.values()) == []


def test_layers_count_only_from_below_in_the_classic_store(source: dict[str, Image]) -> None:
    """A layer on another one is another layer there."""
    mem = source["v:mem"]
    other = ("sha256:0", ("y:1",), ("sha256:f", *mem.diff_ids[1:]))
    assert digests(lacking(node("classic", other), mem, source.values())) == digests(list(mem.layers))


def test_what_is_no_image_of_ours_proves_no_blob_in_the_containerd_store(source: dict[str, Image]) -> None:
    """The same layers, compressed otherwise perhaps: their blobs are not certain."""
    mem = source["v:mem"]
    loaded = ("sha256:0", ("y:1",), mem.diff_ids)
    assert digests(lacking(node("containerd", loaded), mem, source.values())) == digests(list(mem.layers))


def test_what_to_bring_is_told_by_node(source: dict[str, Image]) -> None:
    latest, mem = source["v:latest"], source["v:mem"]
    ranks = [{"node": n, "image": "v:mem", "image_digest": mem.config.digest} for n in "abcde"]
    facts = {
        "a": node("classic", on("classic", mem, "v:mem")),
        "b": node("classic", on("classic", latest, "v:latest")),
        "c": node("containerd", on("containerd", latest, "v:latest", "v:mem")),
        "d": node("classic", on("classic", mem, "other:1")),
    }
    todo = to_bring(ranks, facts, source)
    assert sorted(todo) == ["b", "c", "d"]
    small = {"path": mem.layers[2].path, "size": mem.layers[2].size, "sha256": mem.layers[2].digest[7:]}
    assert [todo[n]["blobs"] for n in "bcd"] == [[small], [small], []]
    assert [todo[n]["id"] for n in "bcd"] == [mem.config.digest, mem.manifest.digest, mem.config.digest]
    assert [todo[n]["replaced"] for n in "bcd"] == ["", f"v:was-{latest.manifest.digest[7:19]}", ""]
    assert [todo[n]["spool"] for n in "bc"] == ["/var/lib/docker/gb10-spool", "/var/lib/containerd/gb10-spool"]
    assert todo["b"]["bytes"] == mem.layers[2].size
    assert todo["b"]["space"] == 3 * mem.layers[2].size
    # The controller brings it to one node, which gives it to the other that lacks it.
    assert [todo[n]["copied"] for n in "bcd"] == [[small], [], []]
    spool = "/var/lib/docker/gb10-spool"
    assert spread(todo) == {"source": "b", "from": spool, "files": [small], "wants": {"c": [small["path"]]}}


def test_who_lacks_most_gives_to_all_and_has_room_for_what_only_others_lack(source: dict[str, Image]) -> None:
    latest, mem = source["v:latest"], source["v:mem"]
    ranks = [{"node": n, "image": "v:mem", "image_digest": mem.config.digest} for n in "ab"]
    ranks.append({"node": "c", "image": "v:latest", "image_digest": latest.config.digest})
    facts = {"a": node("classic", on("classic", latest, "v:latest")), "b": node("classic"), "c": node("classic")}
    alone = to_bring(ranks[1:2], facts, source)["b"]["space"]
    todo = to_bring(ranks, facts, source)
    assert [bool(todo[n]["copied"]) for n in "abc"] == [False, True, False]
    assert {blob["path"] for blob in todo["b"]["copied"]} == {b.path for b in [*mem.layers, *latest.layers]}
    extra = {b.path: b.size for b in latest.layers if b not in mem.layers}
    assert todo["b"]["space"] == alone + sum(extra.values())
    wants = spread(todo)["wants"]
    assert {n: len(paths) for n, paths in wants.items()} == {"a": 1, "c": len(latest.layers)}


def test_nothing_to_bring_is_nothing_to_spread(source: dict[str, Image]) -> None:
    assert spread({}) == {"source": "", "from": "", "files": [], "wants": {}}
    mem = source["v:mem"]
    ranks = [{"node": "a", "image": "v:mem", "image_digest": mem.config.digest}]
    named = to_bring(ranks, {"a": node("classic", on("classic", mem, "other:1"))}, source)
    assert spread(named) == {"source": "", "from": "", "files": [], "wants": {}}


def test_compressed_layers_are_given_room_to_grow(tmp_path: Path) -> None:
    image = layout(tmp_path, [tar(BASE)])
    zipped = Image(**{**vars(image), "layers": (Blob(image.layers[0].digest, 10, "x.tar+gzip"),)})
    ranks = [{"node": "a", "image": "x:1", "image_digest": "sha256:0"}]
    assert to_bring(ranks, {"a": node("classic")}, {"x:1": zipped})["a"]["space"] == 50


def test_only_names_of_ours_that_nothing_needs_are_removed() -> None:
    images = [
        ("sha256:1", ("v:latest", "v:old"), ()),
        ("sha256:2", ("v:was-111111111111",), ()),
        ("sha256:3", ("v:running",), ()),
        ("sha256:4", ("debian:13", "registry:5000/v:old"), ()),
        ("sha256:5", (), ()),
    ]
    facts = node("classic", *images, containers=[{"image_id": "sha256:3"}])
    assert to_remove(facts, {"v:latest", "v:mem"}) == ["v:old", "v:was-111111111111"]
    assert to_remove({"docker": None}, {"v:latest"}) == []
