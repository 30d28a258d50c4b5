"""Images on nodes with both image stores: the small second image, and what goes wrong on the way (cases 16, 22, 23).

The faults are made on one node where the module meets them, without the playbook around it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab_run import BIN, INVENTORY, inventory_hosts, on_node, play, recap, run
from layouts import layout, tar

from gb10.fanout import amount
from gb10.image_files import image_files
from gb10.layout import Blob, Image, read_layout
from lab import rank_image

NODE = "spark-158"
LATEST, MEM = "vllm-dsv41:latest", "vllm-dsv41:engram-mem"
ENGRAM = f"/{rank_image.ROOT}/{rank_image.PATCHES['engram.py']}"
SPOOL = "/var/lib/docker/gb10-spool"


def source() -> Path:
    """The lab's layout."""
    return Path(yaml.safe_load((INVENTORY.parent / "group_vars/lab.yml").read_text())["images_source"])


@pytest.fixture(scope="module")
def images() -> dict[str, Image]:
    return read_layout(str(source()))


@pytest.fixture(params=["classic", "containerd"], scope="module")
def daemon(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A Docker of our own on the node, with one of the stores and nothing in it: (store, socket)."""
    place = f"/var/lib/docker/test-{request.param}"
    script = Path(__file__).with_name("own_docker.sh")
    run(["docker", "cp", script, f"{NODE}:/root/own_docker.sh"], 60)
    started = on_node(NODE, "bash", "/root/own_docker.sh", "start", request.param, place, seconds=120)
    assert started.returncode == 0, started.stderr
    try:
        yield request.param, f"{place}/docker.sock"
    finally:
        on_node(NODE, "bash", "/root/own_docker.sh", "stop", request.param, place, seconds=120)


def docker(socket_path: str, *command: str) -> str:
    done = on_node(NODE, "docker", "-H", f"unix://{socket_path}", *command, seconds=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def module(store: str, socket_path: str, image: Image, numbers: list[int], **more: Any) -> dict[str, Any]:
    """gb10_image on the node, with the layers ``numbers`` spooled as they are in the source (or layout ``root``)."""
    root = more.pop("root", None) or source()
    spool(root, [image.layers[n] for n in numbers])
    held = [(root / "blobs" / blob.path).read_bytes() for blob in (image.manifest, image.config)]
    manifest, config = (base64.b64encode(data).decode() for data in held)
    layers = [image.layers[n] for n in more.pop("told", numbers)]
    arguments = {
        "action": "load",
        "node": NODE,
        "name": image.name,
        "id": image.ids[store == "containerd"],
        "manifest": manifest,
        "config": config,
        "blobs": [{"path": b.path, "size": b.size, "sha256": b.digest[7:]} for b in layers],
        "spool": SPOOL,
        "docker_socket": socket_path,
        "timeout": 120,
    }
    spoil = more.pop("spoil", None)
    if spoil:
        spoil()
    return adhoc(arguments | more)


def adhoc(arguments: dict[str, Any]) -> dict[str, Any]:
    """What the module gives back."""
    argv = [BIN / "ansible", "-i", INVENTORY, NODE, "--become", "-m", "gb10_image", "-a", json.dumps(arguments), "-o"]
    done = run(argv, 300)
    result: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return result


def spool(root: Path, layers: list[Blob]) -> None:
    on_node(NODE, "rm", "-rf", SPOOL)
    on_node(NODE, "mkdir", "-p", f"{SPOOL}/sha256")
    for layer in layers:
        done = run(["docker", "cp", "-L", root / "blobs" / layer.path, f"{NODE}:{SPOOL}/{layer.path}"], 60)
        assert done.returncode == 0, done.stderr


def clean(socket_path: str) -> None:
    """Nothing of a transfer is left, wherever it ended."""
    assert on_node(NODE, "test", "-e", SPOOL).returncode != 0
    assert "gb10-incoming" not in docker(socket_path, "images", "--format", "{{.Repository}}:{{.Tag}}")
    assert on_node(NODE, "find", f"{Path(socket_path).parent}/data/tmp", "-mindepth", "1").stdout == ""


@pytest.fixture
def with_latest(daemon: tuple[str, str], images: dict[str, Image]) -> tuple[str, str]:
    """The first image is there, under both names."""
    docker(daemon[1], "image", "prune", "--all", "--force")
    done = module(*daemon, images[LATEST], [0, 1])
    assert done.get("id") == images[LATEST].ids[daemon[0] == "containerd"], done
    docker(daemon[1], "tag", LATEST, MEM)
    return daemon


def identity(socket_path: str, name: str) -> str:
    return docker(socket_path, "image", "inspect", "--format", "{{.Id}}", name)


def test_the_second_image_needs_its_own_layer_only(with_latest: tuple[str, str], images: dict[str, Image]) -> None:
    """Case 16: the name was on another image, which keeps one."""
    store, socket_path = with_latest
    done = module(store, socket_path, images[MEM], [2], replaced="vllm-dsv41:was-x")
    assert done["sent"] <= 0.01 * sum(layer.size for layer in images[MEM].layers)
    assert done["id"] == identity(socket_path, MEM) == images[MEM].ids[store == "containerd"]
    assert identity(socket_path, "vllm-dsv41:was-x") == identity(socket_path, LATEST)
    said = docker(socket_path, "run", "--rm", "--network", "none", done["id"], "cat", ENGRAM)
    assert 'VARIANT = "stock"' in said
    clean(socket_path)


def flip(number: int, image: Image) -> None:
    path = f"{SPOOL}/{image.layers[number].path}"
    code = f"f = open({path!r}, 'r+b'); f.seek(100); b = f.read(1); f.seek(100); f.write(bytes([b[0] ^ 1]))"
    assert on_node(NODE, "python3", "-c", code).returncode == 0


def tmpfs(place: str) -> None:
    on_node(NODE, "mkdir", "-p", place)
    assert on_node(NODE, "mount", "-t", "tmpfs", "-o", "size=4m", "none", place).returncode == 0


def refused(daemon: tuple[str, str], done: dict[str, Any], code: str, *said: str) -> None:
    """One line that names the node; the name is what it was; nothing is left."""
    assert done["msg"].startswith(f"error [{code}] {NODE}: {MEM}: ")
    assert "\n" not in done["msg"]
    for word in said:
        assert word in done["msg"]
    assert identity(daemon[1], MEM) == identity(daemon[1], LATEST)
    clean(daemon[1])


def test_a_layer_corrupted_on_the_way_is_refused_by_digest(
    with_latest: tuple[str, str], images: dict[str, Image]
) -> None:
    mem = images[MEM]
    done = module(*with_latest, mem, [0, 1, 2], spoil=lambda: flip(2, mem))
    refused(with_latest, done, "image-blob", mem.layers[2].digest)
    assert module(*with_latest, mem, [2])["id"] == identity(with_latest[1], MEM)


def test_a_layer_that_did_not_arrive_is_named_with_what_was_said(
    with_latest: tuple[str, str], images: dict[str, Image]
) -> None:
    mem = images[MEM]
    done = module(*with_latest, mem, [], told=[2], trouble="No space left on device")
    refused(with_latest, done, "image-blob", mem.layers[2].digest, "No space left on device")


def test_layers_docker_turns_out_not_to_have_leave_the_name_alone(
    with_latest: tuple[str, str], images: dict[str, Image], tmp_path: Path
) -> None:
    """The containerd store names an image it could not unpack; so it never gets ours."""
    strange = layout(tmp_path, [tar({"never": os.urandom(100)}), tar({"here": b"x"})], name=MEM)
    done = module(*with_latest, strange, [1], root=tmp_path)
    refused(with_latest, done, "image-docker", strange.layers[0].digest[7:])


def test_a_disk_that_fills_half_way_leaves_all_as_it_was(
    with_latest: tuple[str, str], images: dict[str, Image]
) -> None:
    """Case 22. The disk: where this Docker puts what it unpacks."""
    store, socket_path = with_latest
    disk = {"classic": "data/tmp", "containerd": "containerd/io.containerd.content.v1.content/ingest"}
    place = f"{Path(socket_path).parent}/{disk[store]}"
    docker(socket_path, "image", "prune", "--all", "--force")
    tmpfs(place)
    try:
        done = module(store, socket_path, images[MEM], [0, 1, 2])
    finally:
        on_node(NODE, "umount", "--lazy", place)
    assert "no space left" in done["msg"]
    assert docker(socket_path, "images", "--quiet") == ""
    clean(socket_path)


def test_a_docker_that_never_answers_is_named_in_time(images: dict[str, Image]) -> None:
    """Case 24: it accepts and says nothing."""
    listen = (
        "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('/run/mute.sock'); s.listen(); time.sleep(60)"
    )
    started = on_node(NODE, "sh", "-c", f'rm -f /run/mute.sock; exec 9>/dev/null; python3 -c "{listen}" & echo $!')
    try:
        done = module("classic", "/run/mute.sock", images[MEM], [0], timeout=3)
    finally:
        on_node(NODE, "kill", started.stdout.strip())
    assert done["msg"].startswith(f"error [image-timeout] {NODE}: {MEM}: ")
    assert on_node(NODE, "test", "-e", SPOOL).returncode != 0


def test_zstd_layers_are_dockers_to_unpack(daemon: tuple[str, str], tmp_path: Path) -> None:
    store, socket_path = daemon
    image = layout(tmp_path, [tar({"a": b"x" * 1000}), tar({"b": b"y"})], name="packed:1", zstd=True)
    assert image_files(str(tmp_path), image, ["/b"])
    done = module(store, socket_path, image, [0, 1], root=tmp_path)
    assert done.get("id") == image.ids[store == "containerd"], done


@pytest.fixture(scope="module")
def nodes() -> list[str]:
    """All nodes, without an image on any."""
    found = list(inventory_hosts())
    for node in found:
        on_node(node, "docker", "rm", "--force", "gb10-rank")
        assert on_node(node, "docker", "image", "prune", "--all", "--force").returncode == 0
    return found


def test_what_stands_in_the_way_is_said_for_every_node_before_anything_moves(nodes: list[str]) -> None:
    """A port held by somebody else, and a target nobody can write, here because it is full."""
    busy, full = nodes[2], nodes[4]
    hold = "import socket, time; s = socket.create_server(('0.0.0.0', 29702)); time.sleep(200)"
    on_node(full, "mkdir", "-p", SPOOL)
    try:
        assert on_node(full, "mount", "-t", "tmpfs", "-o", "size=4m", "none", SPOOL).returncode == 0
        assert on_node(busy, "sh", "-c", f'python3 -c "{hold}" > /dev/null 2>&1 & echo $! > /run/hold').returncode == 0
        done = play("playbooks/images.yml", profile="tp8-1m")
    finally:
        on_node(busy, "sh", "-c", "kill $(cat /run/hold); rm /run/hold")
        on_node(full, "umount", "--lazy", SPOOL)
        on_node(full, "rm", "-rf", SPOOL)
    assert done.returncode != 0
    assert f"error [fanout-port] {busy}: checking: " in done.stdout
    assert "port 29702: Address already in use, held by python3 (pid " in done.stdout
    assert f"error [fanout-disk-full] {full}: checking: {SPOOL}: " in done.stdout
    for node in nodes:
        assert on_node(node, "test", "-e", SPOOL).returncode != 0, node
        assert on_node(node, "docker", "images", "--quiet").stdout == ""


def sent(done: subprocess.CompletedProcess[str]) -> tuple[float, str, int]:
    """(copies, of what, to how many nodes) the source sent."""
    (found,) = re.findall(r"sent ([\d.]+) copies of (\S+ \w+) to bring them to (\d+) nodes", done.stdout)
    return float(found[0]), found[1], int(found[2])


def test_the_lab_has_both_images_with_one_digest_each(nodes: list[str], images: dict[str, Image]) -> None:
    """Through the playbook: a cold image leaves the source once, the second one's layer alone; then nothing changes."""
    own = images[MEM].layers[2].size
    assert own <= 0.01 * sum(layer.size for layer in images[MEM].layers)
    for profile, size in (("tp8-1m", sum(layer.size for layer in images[LATEST].layers)), ("tp8-300k", own)):
        done = play("playbooks/images.yml", profile=profile)
        assert done.returncode == 0, done.stdout[-3000:]
        copies, what, receivers = sent(done)
        assert copies <= 1.1
        assert (what, receivers) == (amount(size), 7)
        again = play("playbooks/images.yml", profile=profile)
        assert again.returncode == 0, again.stdout[-3000:]
        assert all(numbers["changed"] == 0 for numbers in recap(again).values())
        assert "gb10_image" not in again.stdout
    for node in nodes:
        for name in (LATEST, MEM):
            found = on_node(node, "docker", "image", "inspect", "--format", "{{.Id}}", name).stdout.strip()
            assert found == images[name].config.digest, (node, name)
