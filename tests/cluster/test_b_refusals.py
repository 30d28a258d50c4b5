"""What must be refused before the first change on any node, on the lab before anything was deployed there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_run import identities, inventory_with, on_node, play, run

from gb10.layout import read_layout


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Non-zero, the words said, nothing started and nothing changed."""
    assert done.returncode != 0, done.stdout[-3000:]
    for word in words:
        assert word in done.stdout + done.stderr, (done.stdout + done.stderr)[-3000:]
    assert "changed: [" not in done.stdout


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    before = identities()
    yield
    assert identities() == before


def test_unknown_profile() -> None:
    """Case 9."""
    refused(play("site.yml", profile="tp8-400k"), "profile-unknown", "tp4-300k, tp8-1m, tp8-300k")


def test_misspelt_variable() -> None:
    """Case 9."""
    refused(play("site.yml", "-e", "serve_max_model_length=4"), "variable-unknown", "Did you mean max_model_len?")


def test_seven_nodes(tmp_path: Path) -> None:
    """Case 1."""
    inventory = inventory_with(tmp_path, spark_148=None)
    refused(play("site.yml", inventory=inventory), "world-size", "tensor_parallel is 8 but 7 nodes are given")


@pytest.mark.parametrize(
    ("change", "code"),
    [({"node_rank": None}, "rank-missing"), ({"node_rank": 3}, "rank-repeated"), ({"node_rank": 9}, "rank-invalid")],
)
def test_wrong_rank(tmp_path: Path, change: dict[str, object], code: str) -> None:
    refused(play("site.yml", inventory=inventory_with(tmp_path, spark_161=change)), code, "spark-161")


def test_same_address_twice(tmp_path: Path) -> None:
    """Case 1."""
    inventory = inventory_with(tmp_path, spark_161={"ansible_host": "10.77.1.162"})
    refused(play("site.yml", inventory=inventory), "address-repeated", "spark-161", "spark-162")


@pytest.mark.parametrize("value", ["80", "0,80", "1.7"])
def test_gmu_that_is_none(value: str) -> None:
    """Case 2."""
    refused(play("site.yml", "-e", f"gpu_memory_utilization={value}"), "setting-invalid", "gpu_memory_utilization")


def test_crossed_image() -> None:
    """Case 6."""
    refused(play("site.yml", "-e", "container_image=vllm-dsv41:latest"), "image-crossed")


def test_unreachable_from_the_start(tmp_path: Path) -> None:
    """Case 20: nobody listens at that address of the lab's own network."""
    inventory = inventory_with(tmp_path, spark_161={"ansible_host": "10.77.1.250"})
    refused(play("site.yml", inventory=inventory), "spark-161", "UNREACHABLE")


def test_limit_is_refused() -> None:
    refused(play("site.yml", "--limit", "spark-153,spark-147"), "node-missing", "--limit")


def test_foreign_process_on_the_api_port() -> None:
    """Case 21: held by a process that is not ours, refused naming it."""
    listen = "import socket, time; s = socket.create_server(('0.0.0.0', 8000)); time.sleep(120)"
    holder = on_node("spark-153", "sh", "-c", f'exec 9>/dev/null; python3 -c "{listen}" & echo $!')
    try:
        refused(play("site.yml"), "port-taken", "spark-153", "8000", "python3")
    finally:
        on_node("spark-153", "kill", holder.stdout.strip())


def test_a_layer_that_is_not_what_its_digest_says_is_refused_before_distribution(tmp_path: Path) -> None:
    """Case 16: the layers are read, neither their names nor the image's are believed."""
    inventory = inventory_with(tmp_path)
    source = (inventory.parent / "group_vars/lab.yml").read_text().split("images_source:")[1].split()[0].strip("'\"")
    bundle = tmp_path / "images"
    run(["cp", "-r", source, bundle], 120)
    layer = read_layout(str(bundle))["vllm-dsv41:engram-mem"].layers[0]
    with (bundle / "blobs" / layer.path).open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\1")
    run(["docker", "exec", "spark-158", "docker", "rmi", "-f", "vllm-dsv41:engram-mem"], 60)
    done = play("site.yml", "-e", f"images_source={bundle}", inventory=inventory)
    refused(done, "image-layer-wrong", layer.digest)
