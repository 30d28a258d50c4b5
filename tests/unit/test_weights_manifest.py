"""The manifest of a checkpoint, made of directories; of repositories: test_weights_hub.py."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import FILES, SHARD, farm, flip, manifest, write
from support import THIS_MACHINE

from gb10 import cli
from gb10.sources import SourceError, engram_shards, entries, holds_shards
from gb10.weights_manifest import of_directory, read
from gb10.weights_manifest import write as write_manifest

Said = tuple[int, str, str]


@pytest.fixture
def gb10(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """``gb10 weights`` in this process: status, stdout, stderr."""

    def run(*args: Any) -> Said:
        status = cli.main(["weights", *map(str, args)])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_it_lists_every_file_but_itself_leftovers_and_what_is_hidden(gb10: Any, tmp_path: Path) -> None:
    write(tmp_path)
    for name in (f"{SHARD}.part", ".gitattributes", ".cache/huggingface/x", ".gb10-verified.json", "a.lock"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    status, out, _ = gb10("manifest", tmp_path)
    assert (status, "4 files, 8196 bytes" in out) == (0, True)
    document = json.loads((tmp_path / "manifest.json").read_text())
    assert document == {"schema": 1, "files": manifest(FILES)}
    before = (tmp_path / "manifest.json").read_bytes()
    assert gb10("manifest", tmp_path)[0] == 0
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert read(tmp_path / "manifest.json") == entries(str(tmp_path))


def test_a_farm_of_links_is_read_through(tmp_path: Path) -> None:
    farm(tmp_path / "snapshots/rev", tmp_path / "blobs", FILES)
    assert of_directory(tmp_path / "snapshots/rev") == of_directory(tmp_path / "snapshots/rev", hashing=False)
    assert [e[2] for e in of_directory(tmp_path / "snapshots/rev")] == [f["sha256"] for f in manifest(FILES)]


def truncate(folder: Path) -> None:
    blob = (folder / SHARD).resolve()
    blob.write_bytes(blob.read_bytes()[:-24])


def index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"t": "model-00009.safetensors"}}))


def broken_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, f"{SHARD} has sha256"),
        (lambda folder: (folder / SHARD).resolve().unlink(), f"{SHARD} is a link to nothing (../../blobs/"),
        (lambda folder: (folder / "more").symlink_to("sub"), "more is a link to a directory"),
        (index, "model-00009.safetensors is missing: model.safetensors.index.json names it"),
        (broken_index, "model.safetensors.index.json is no index of shards"),
        (lambda folder: subprocess.run(["mkfifo", folder / "pipe"], check=True), "pipe is no file"),
    ],
)
def test_a_directory_that_is_not_whole_gives_no_manifest(
    gb10: Any, tmp_path: Path, damage: Callable[[Path], Any], words: str
) -> None:
    folder = tmp_path / "snapshots/rev"
    farm(folder, tmp_path / "blobs", FILES)
    damage(folder)
    status, _, err = gb10("manifest", folder)
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith("error [weights-manifest] ")
    assert words in err
    assert not (folder / "manifest.json").exists()


@pytest.mark.parametrize(
    ("source", "words"),
    [("/nowhere", "is no directory, and no OWNER/NAME"), ("a/b/c", "is no directory"), ("", "is no directory")],
)
def test_what_is_no_source_is_said(gb10: Any, tmp_path: Path, source: str, words: str) -> None:
    status, _, err = gb10("manifest", source or tmp_path / "x", "-o", tmp_path / "m")
    assert (status, words in err) == (1, True)


@pytest.mark.parametrize(
    "words", [("manifest", ""), ("manifest", ".", "-o", ""), ("status", "-i", ""), ("verify", "-x"), ()]
)
def test_what_is_given_but_empty_or_unknown_is_refused_in_one_line(gb10: Any, words: tuple[str, ...]) -> None:
    status, out, err = gb10(*words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("gb10: ")


def test_an_empty_directory_and_an_unwritable_target_are_said(gb10: Any, tmp_path: Path) -> None:
    assert "holds no file" in gb10("manifest", tmp_path)[2]
    write(tmp_path)
    status, _, err = gb10("manifest", tmp_path, "-o", tmp_path / "no/m.json")
    assert (status, "No such file" in err) == (1, True)


# --- the manifest as a source on the controller ----------------------------------------------------------------------


def kept(folder: Path) -> list[dict[str, Any]]:
    files = write(folder)
    write_manifest(folder / "manifest.json", of_directory(folder))
    return files


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), f"{SHARD} is missing"),
        (lambda path: path.write_bytes(b"b"), f"{SHARD} has 1 bytes, the manifest says 4096"),
        (lambda path: (path.unlink(), path.symlink_to("gone")), f"{SHARD} is a link to nothing (gone)"),
        (lambda path: (path.parent / "config.json").unlink(), "config.json is missing"),
    ],
)
def test_a_manifest_that_does_not_match_its_directory_is_refused_by_name(
    tmp_path: Path, damage: Callable[[Path], Any], words: str
) -> None:
    kept(tmp_path)
    assert len(entries(str(tmp_path))) == 4
    damage(tmp_path / SHARD)
    with pytest.raises(SourceError) as caught:
        entries(str(tmp_path))
    assert caught.value.finding.code == "weights-source-unreadable"
    assert words in caught.value.finding.message


def test_a_manifest_may_stand_beside_small_files_without_shards(tmp_path: Path) -> None:
    """The plan wants config.json and the index; the shards come from elsewhere."""
    kept(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    found = entries(str(tmp_path))
    assert (len(found), holds_shards(str(tmp_path), found)) == (4, False)


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", ".gb10-part/x"])
def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    files = [{"path": path, "size": 1, "sha256": "0" * 64}]
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": 1, "files": files}))
    with pytest.raises(SourceError, match=r".") as caught:
        entries(str(tmp_path))
    assert path in caught.value.finding.message


def test_a_manifest_of_another_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": 2, "files": manifest(FILES)}))
    with pytest.raises(SourceError, match="schema is 2"):
        entries(str(tmp_path))


def test_the_shards_with_engram_tables_are_those_of_the_index(tmp_path: Path) -> None:
    placed = {"layers.1.engram.embed.weight": "b", "layers.1.engram.embed.scale": "b", "layers.0.attn": "a"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    assert engram_shards(str(tmp_path)) == ["b"]
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert engram_shards(str(tmp_path)) == engram_shards("") == engram_shards(str(tmp_path / "x")) == []


# --- asking nodes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Two nodes that are this machine, each with a checkpoint of its own, and their inventory."""
    kept(tmp_path / "source")
    shared = {
        **THIS_MACHINE,
        "weights_source": str(tmp_path / "source"),
    }
    hosts = {}
    for number in range(2):
        write(tmp_path / f"n{number}")
        hosts[f"n{number}"] = shared | {"node_rank": number, "weights_path": str(tmp_path / f"n{number}")}
    (tmp_path / "hosts.yml").write_text(json.dumps({"gb10": {"hosts": hosts}}))
    return tmp_path / "hosts.yml"


def test_nodes_are_asked_and_what_is_wrong_is_named(gb10: Any, cluster: Path) -> None:
    status, out, err = gb10("verify", "-i", cluster)
    assert (status, err, out.count("whole")) == (0, "", 2), err
    flip(cluster.parent / "n1" / SHARD)
    status, out, err = gb10("status", "-i", cluster)
    assert (status, out.count("not verified")) == (0, 1)
    status, out, err = gb10("verify", "--all", "-i", cluster, "-e", "weights_timeout=60")
    wrong = hashlib.sha256((cluster.parent / "n1" / SHARD).read_bytes()).hexdigest()[:12]
    assert (status, err.count("\n")) == (1, 1)
    assert f"error [weights-wrong] n1: {SHARD} is sha256 {wrong}, not " in err
    assert [line.split()[0] for line in out.splitlines()] == ["node", "n0", "n1"]


def test_a_node_that_does_not_answer_is_named_and_the_others_are_heard(gb10: Any, cluster: Path) -> None:
    document = json.loads(cluster.read_text())
    document["gb10"]["hosts"]["n1"] |= {"ansible_connection": "ssh", "ansible_port": 9}
    cluster.write_text(json.dumps(document))
    status, out, err = gb10("status", "-i", cluster)
    assert (status, "error [weights-unknown-state] n1: " in err) == (1, True)
    assert "n0" in out


def test_without_a_manifest_nobody_is_asked(gb10: Any, cluster: Path) -> None:
    status, out, err = gb10("verify", "-i", cluster, "-e", "weights_source=")
    assert (status, out) == (1, "")
    assert "weights-no-manifest" in err
    assert err.count("\n") == 1
