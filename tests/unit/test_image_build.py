"""Building images: the same inputs give the same bytes; what nobody meant is refused before anything is named."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from layouts import index, layout, names, tar

from gb10 import oci_build
from gb10.image_build import Recipe, build
from gb10.image_files import image_files
from gb10.layout import Layout, read_layout, sha256
from gb10.patches import Refused
from gb10.sources import SourceError

SITE = "/site/vllm"
FILES = {"engram.py": "models/engram.py", "attention.py": "models/attention.py", "sparse.py": "v1/sparse.py"}
STOCK = ["engram.py"]


def content(kind: str, name: str) -> bytes:
    return f"{kind} {name}\n".encode()


SUMS = {n: {k: hashlib.sha256(content(k, n)).hexdigest() for k in ("patched", "stock")} for n in FILES}


def git(root: Path, *arguments: str) -> str:
    argv = ["git", "-C", str(root), "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A base as vLLM's is, with an entrypoint; patches; a checkout at the commit."""
    layout(
        tmp_path / "base",
        [gzip.compress(tar({f"{SITE[1:]}/{path}": b"as in the base" for path in FILES.values()}), mtime=0)],
        name="vllm:base",
        architecture="arm64",
        Entrypoint=["vllm", "serve"],
        Env=["A=1"],
    )
    (tmp_path / "patches").mkdir()
    for name in FILES:
        (tmp_path / "patches" / name).write_bytes(content("patched", name))
    checkout = tmp_path / "vllm"
    for name, path in FILES.items():
        (checkout / "vllm" / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / "vllm" / path).write_bytes(content("stock", name))
    git(tmp_path, "init", "-q", str(checkout))
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "x")
    return Recipe(
        source=str(tmp_path / "images"),
        base=str(tmp_path / "base"),
        base_name="",
        patch_source=str(tmp_path / "patches"),
        vllm_checkout=str(checkout),
        vllm_commit=git(checkout, "rev-parse", "HEAD")[:9],
        site_packages=SITE,
        patch_files=FILES,
        patch_sha256=SUMS,
        stock_files={"v:mem": STOCK, "v:latest": []},
    )


def test_both_images_hold_what_each_must(recipe: Recipe) -> None:
    images, changed = build(recipe)
    assert changed
    assert {image.name for image in images} == {"v:latest", "v:mem"}
    held = read_layout(recipe.source)
    for name, stock in recipe.stock_files.items():
        files = image_files(recipe.source, held[name], map(recipe.path, FILES))
        assert files == {recipe.path(n): SUMS[n]["stock" if n in stock else "patched"] for n in FILES}
        assert held[name].architecture == "arm64"
        config = json.loads(Layout(Path(recipe.source)).small(held[name].config))
        assert not config["config"]["Entrypoint"]
        assert config["config"]["Env"] == ["A=1"]


def test_the_second_image_is_the_first_and_a_small_layer(recipe: Recipe) -> None:
    build(recipe)
    latest, mem = (read_layout(recipe.source)[name] for name in ("v:latest", "v:mem"))
    assert mem.layers[:-1] == latest.layers
    assert mem.diff_ids[:-1] == latest.diff_ids
    with tarfile.open(Path(recipe.source) / "blobs" / mem.layers[-1].path) as held:
        kinds = {item.name: (item.isdir(), item.mode, item.uid, item.gid, item.uname) for item in held}
        times = {item.mtime for item in held}
    assert kinds.pop("site/vllm/models/engram.py") == (False, 0o644, 0, 0, "")
    assert set(kinds.values()) == {(True, 0o755, 0, 0, "")}
    assert times == {oci_build.EPOCH}


def test_the_same_inputs_give_the_same_digests(recipe: Recipe, tmp_path: Path) -> None:
    """Also elsewhere, at another time, from files with other times and owners' rights."""
    first, _ = build(recipe)
    for path in (tmp_path / "patches").iterdir():
        path.chmod(0o700)
        path.touch()
    second, changed = build(replace(recipe, source=str(tmp_path / "elsewhere")))
    assert changed
    assert first == second
    again, changed = build(recipe)
    assert (again, changed) == (first, False)


@pytest.mark.parametrize(
    ("name", "kind", "differ"), [("engram.py", "stock", {"v:mem"}), ("sparse.py", "patched", {"v:latest", "v:mem"})]
)
def test_another_file_gives_another_digest(
    recipe: Recipe, tmp_path: Path, name: str, kind: str, differ: set[str]
) -> None:
    before = {image.name: image for image in build(recipe)[0]}
    sums = {n: dict(s) for n, s in SUMS.items()}
    sums[name][kind] = hashlib.sha256(b"changed").hexdigest()
    recipe = replace(recipe, patch_sha256=sums)
    if kind == "patched":
        (tmp_path / "patches" / name).write_bytes(b"changed")
    else:
        checkout = Path(recipe.vllm_checkout)
        (checkout / "vllm" / FILES[name]).write_bytes(b"changed")
        git(checkout, "commit", "-q", "-a", "-m", "y")
        recipe = replace(recipe, vllm_commit=git(checkout, "rev-parse", "HEAD"))
    after = {image.name: image for image in build(recipe)[0]}
    assert {n for n in after if after[n].config != before[n].config} == differ


def test_patches_come_from_a_tarball_too(recipe: Recipe, tmp_path: Path) -> None:
    first, _ = build(recipe)
    with tarfile.open(tmp_path / "patches.tar.gz", "w:gz") as held:
        held.add(tmp_path / "patches", "some/folder")
    assert build(replace(recipe, patch_source=str(tmp_path / "patches.tar.gz")))[0] == first


def test_images_that_are_there_already_stay(recipe: Recipe) -> None:
    layout(Path(recipe.source), [tar({"a": b"a"})], name="other:1")
    build(recipe)
    assert set(read_layout(recipe.source)) == {"other:1", "v:latest", "v:mem"}


# --- what is refused -------------------------------------------------------------------------------------------------


def patch(recipe: Recipe, name: str) -> Path:
    return Path(recipe.patch_source) / name


def dangling(recipe: Recipe) -> None:
    patch(recipe, "sparse.py").symlink_to("/nowhere")


def commit_more(recipe: Recipe) -> None:
    checkout = Path(recipe.vllm_checkout)
    (checkout / "more").write_text("x")
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "more")


def stock_file(recipe: Recipe) -> Path:
    return Path(recipe.vllm_checkout) / "vllm" / FILES["engram.py"]


def linked(recipe: Recipe) -> None:
    place = stock_file(recipe)
    place.rename(place.with_suffix(".real"))
    place.symlink_to(place.with_suffix(".real"))


def nothing(_recipe: Recipe) -> None:
    pass


@pytest.mark.parametrize(
    ("damage", "change", "code", "said"),
    [
        (lambda r: patch(r, "sparse.py").write_bytes(b"x"), {}, "patch-wrong", "sparse.py has sha256"),
        (lambda r: patch(r, "sparse.py").unlink(), {}, "patch-missing", "sparse.py"),
        (lambda r: patch(r, "sparse.py").rename(patch(r, "away")) and dangling(r), {}, "patch-missing", "sparse.py"),
        (nothing, {"patch_source": "/nowhere/at/all"}, "patch-source-unreadable", "/nowhere/at/all"),
        (nothing, {"patch_sha256": {}}, "patch-unpinned", "engram.py (patched)"),
        (commit_more, {}, "vllm-checkout", "not at"),
        (lambda r: stock_file(r).write_bytes(b"edited"), {}, "vllm-checkout", "not as committed"),
        (linked, {}, "vllm-checkout", "not as committed"),
        (lambda r: stock_file(r).unlink(), {}, "vllm-checkout", "not as committed"),
        (nothing, {"vllm_checkout": "/nowhere"}, "vllm-checkout", "no git checkout"),
        (nothing, {"vllm_commit": "main"}, "vllm-commit", "main"),
        (nothing, {"vllm_commit": ""}, "vllm-commit", "''"),
        (nothing, {"base": ""}, "build-setting-missing", "images_base is empty"),
        (nothing, {"vllm_commit": 12345678}, "build-setting-wrong", "images_vllm_commit is 12345678"),
        (nothing, {"stock_files": []}, "build-setting-wrong", "images_stock_files is []"),
        (nothing, {"base_name": "other:1"}, "build-base", "holds vllm:base"),
        (nothing, {"site_packages": "/usr/lib/elsewhere"}, "build-base", "nothing there would be replaced"),
        (nothing, {"stock_files": {"v:mem": STOCK}}, "build-setting-missing", "0 images without stock files"),
    ],
)  # fmt: skip
def test_what_nobody_meant_is_refused_and_nothing_is_named(
    recipe: Recipe, damage: Callable[[Recipe], Any], change: dict[str, Any], code: str, said: str
) -> None:
    damage(recipe)
    with pytest.raises((Refused, SourceError)) as caught:
        build(replace(recipe, **change))
    found = caught.value.findings if isinstance(caught.value, Refused) else [caught.value.finding]
    assert {f.code for f in found} == {code}
    assert said in found[0].message
    root = Path(recipe.source)
    assert not root.exists() or index(root)["manifests"] == []
    assert not [p for p in root.rglob("*") if "part" in p.name]


def test_a_corrupt_base_is_refused_by_the_layers_digest(recipe: Recipe) -> None:
    base = read_layout(recipe.base)["vllm:base"]
    path = Path(recipe.base) / "blobs" / base.layers[0].path
    path.write_bytes(path.read_bytes()[:-9] + b"corrupted")
    with pytest.raises(SourceError, match=base.layers[0].digest):
        build(recipe)
    assert index(Path(recipe.source))["manifests"] == []


# --- archives --------------------------------------------------------------------------------------------------------


def old_archive(path: Path, config: bytes, layers: list[bytes], tag: str | None) -> None:
    """As Docker 24 and older saves: layers by id, one of them a link to the other's."""
    manifest = [
        {
            "Config": "abc.json",
            "RepoTags": [tag] if tag else None,
            "Layers": [f"{n}/layer.tar" for n in range(len(layers))],
        }
    ]
    with tarfile.open(path, "w") as out:
        for n, data in enumerate(layers):
            info = tarfile.TarInfo(f"{n}/layer.tar")
            if data in layers[:n]:
                info.type, info.linkname = tarfile.SYMTYPE, f"../{layers.index(data)}/layer.tar"
                out.addfile(info)
            else:
                info.size = len(data)
                out.addfile(info, io.BytesIO(data))
        for name, data in {
            "abc.json": config,
            "manifest.json": json.dumps(manifest).encode(),
            "repositories": b"{}",
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))


def test_old_archives_become_layouts(tmp_path: Path) -> None:
    one, two = tar({"a": b"a"}), tar({"b": b"b"})
    config = json.dumps(
        {
            "architecture": "arm64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [sha256(one), sha256(two), sha256(one)]},
        }
    ).encode()
    old_archive(tmp_path / "old.tar", config, [one, two, one], "v:1")
    root = tmp_path / "images"
    oci_build.start(root)
    image = oci_build.bring_base(str(tmp_path / "old.tar"), "", root)
    assert image.config.digest == sha256(config)
    assert [layer.digest for layer in image.layers] == [sha256(one), sha256(two), sha256(one)]
    assert names(root) == ["index.json", "oci-layout"]
    assert len(list((root / "blobs/sha256").iterdir())) == 4  # two layers, configuration, manifest


def test_new_archives_keep_their_manifest(tmp_path: Path) -> None:
    image = layout(tmp_path / "held", [gzip.compress(tar({"a": b"a"}))], name="v:1")
    with tarfile.open(tmp_path / "new.tar", "w") as out:
        out.add(tmp_path / "held", ".")
    root = tmp_path / "images"
    oci_build.start(root)
    assert oci_build.bring_base(str(tmp_path / "new.tar"), "", root) == image
    assert names(root) == ["index.json", "oci-layout"]


@pytest.mark.parametrize(
    "data",
    [b"", b"no tar at all" * 99, tar({"a": b"a"}), tar({"manifest.json": b"[{}]"}), tar({"manifest.json": b"[]"})],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    oci_build.start(tmp_path / "images")
    with pytest.raises(oci_build.BaseWrong):
        oci_build.bring_base(str(tmp_path / "x.tar"), "", tmp_path / "images")
    assert names(tmp_path / "images") == ["index.json", "oci-layout"]


def test_an_archive_that_was_cut_is_refused(tmp_path: Path) -> None:
    layout(tmp_path / "held", [tar({"a": b"a" * 100_000})], name="v:1")
    with tarfile.open(tmp_path / "new.tar", "w") as out:
        out.add(tmp_path / "held", ".")
    whole = (tmp_path / "new.tar").read_bytes()
    (tmp_path / "new.tar").write_bytes(whole[: len(whole) // 2])
    oci_build.start(tmp_path / "images")
    with pytest.raises(oci_build.BaseWrong):
        oci_build.bring_base(str(tmp_path / "new.tar"), "", tmp_path / "images")
