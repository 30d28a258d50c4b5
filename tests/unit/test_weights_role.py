"""The whole role on three nodes that are this machine, each with a loopback address and a directory of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkpoints import farm, flip
from safetensors.numpy import load_file
from support import ROOT, THIS_MACHINE
from test_weights_stage import TABLES, checkpoint

from gb10 import data, weights_manifest
from gb10.engram import head_rows

BIN = Path(sys.executable).parent
SHARD = "model-00002-of-00003.safetensors"
NODES = ("n0", "n1", "n2")


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """An inventory and a playbook; the controller has manifest, config.json and index, the head a snapshot of links."""
    checkpoint(tmp_path / "whole")
    config = json.loads(json.dumps(data.load("model_v41")["config"]))
    rows = [sum(sizes) for sizes in head_rows(TABLES).values()]
    config["text_config"] |= {"engram_vocab_size": TABLES.bucket_floor, "engram_num_embeddings": rows}
    (tmp_path / "whole/config.json").write_text(json.dumps(config))
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    farm(tmp_path / "snapshot", tmp_path / "blobs", files)
    (tmp_path / "source").mkdir()
    (tmp_path / "source/config.json").write_bytes(files["config.json"])
    weights_manifest.write(tmp_path / "source/manifest.json", weights_manifest.of_directory(tmp_path / "whole"))
    shared = {
        **THIS_MACHINE,
        "weights_source": str(tmp_path / "source"),
        "tensor_parallel": 3,
        "gb10_plan": {"ranks": [{"rank": n, "node": name} for n, name in enumerate(NODES)]},
        "gb10_node": {"gb10": {"docker": None}},
        "gb10_run": "test",
    }
    hosts = {
        name: shared
        | {
            "node_rank": number,
            "fabric_address": f"127.0.7.{number + 1}",
            "weights_path": str(tmp_path / name),
            "weights_engram_stage_path": str(tmp_path / f"{name}-engram"),
        }
        for number, name in enumerate(NODES)
    }
    (tmp_path / "hosts.yml").write_text(json.dumps({"gb10": {"hosts": hosts}}))
    book = [{"hosts": "gb10", "gather_facts": False, "any_errors_fatal": True, "roles": ["weights"]}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(book))
    return tmp_path


def play(folder: Path, *more: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    command = [
        BIN / "ansible-playbook",
        "-i",
        folder / "hosts.yml",
        folder / "play.yml",
        "-e",
        json.dumps(variables),
        *more,
    ]
    env = os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


def held(folder: Path) -> dict[str, str]:
    """sha256 by name, of files that are no links and not ours."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith(".gb10"):
            assert not path.is_symlink(), path
            found[path.relative_to(folder).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def test_from_a_farm_of_links_to_every_nodes_rows_and_back_after_damage(cluster: Path) -> None:
    given = {"weights_import": str(cluster / "snapshot"), "weights_engram_stage": True}
    foreseen = play(cluster, "--check", **given)
    assert foreseen.returncode == 0, foreseen.stdout[-3000:]
    assert not any((cluster / name).exists() for name in NODES), "check mode brings nothing"
    done = play(cluster, **given)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    wanted = held(cluster / "whole")
    assert [held(cluster / name) for name in NODES] == [wanted] * 3
    for rank, name in enumerate(NODES):
        receipt = json.loads((cluster / f"{name}-engram/engram-rank{rank}-of-3.json").read_text())
        assert receipt["rank"] == rank
        assert set(load_file(receipt["file"])) == {
            f"model.layers.{layer}.engram.embed.{part}" for layer in TABLES.layers for part in ("weight", "scale")
        }
    inodes = {path: path.stat().st_ino for name in NODES for path in (cluster / name).glob("*.safetensors")}
    flip(cluster / "n1" / SHARD)
    flip(cluster / "n2-engram/engram-rank2-of-3.safetensors")
    (cluster / "n1/old.safetensors").write_bytes(b"x")
    done = play(cluster, weights_engram_stage=True, weights_prune=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert f"n1: {SHARD} is sha256 " in done.stdout
    assert "n1: no manifest names old.safetensors" in done.stdout
    assert [held(cluster / name) for name in NODES] == [wanted] * 3
    after = {path: path.stat().st_ino for name in NODES for path in (cluster / name).glob("*.safetensors")}
    assert [path for path in inodes if inodes[path] != after[path]] == [cluster / "n1" / SHARD]
    again = play(cluster, **given)
    assert again.returncode == 0
    assert "changed=0" in again.stdout
    assert "changed=1" not in again.stdout


def test_a_source_with_another_shard_is_refused_and_no_other_node_gets_anything(cluster: Path) -> None:
    for name in NODES:
        (cluster / name).mkdir()
        (cluster / name / SHARD).write_bytes(b"old")
    flip((cluster / "snapshot" / SHARD).resolve())
    done = play(cluster, weights_import=str(cluster / "snapshot"))
    assert done.returncode != 0
    assert f"error [weights-source-wrong] n0: {cluster}/snapshot/{SHARD} has sha256" in done.stdout
    assert (cluster / "n0" / SHARD).read_bytes() == b"old"
    assert [[path.name for path in (cluster / name).iterdir()] for name in ("n1", "n2")] == [[SHARD]] * 2


def test_the_controllers_own_files_are_brought_by_way_of_the_head(cluster: Path) -> None:
    (cluster / "whole/manifest.json").write_bytes((cluster / "source/manifest.json").read_bytes())
    done = play(cluster, weights_source=str(cluster / "whole"))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    wanted = held(cluster / "whole")
    del wanted["manifest.json"]
    assert [held(cluster / name) for name in NODES] == [wanted] * 3
    assert not any((cluster / name / ".gb10-download").exists() for name in NODES)


def test_nothing_to_bring_it_from_is_said_before_anything_moves(cluster: Path) -> None:
    done = play(cluster)
    assert done.returncode != 0
    assert "error [weights-not-at-hand] n0: " in done.stdout
