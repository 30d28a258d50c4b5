"""The profile's image is there by content on every node, whatever its image store; nothing is left of the transfer."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml
from support import ROOT

from gb10.layout import read_layout

testinfra_hosts = ["ansible://gb10"]
IMAGE = "vllm-dsv41:engram-mem"
CONTAINERD = "spark-162"
OTHERS = {"spark-158", CONTAINERD}  # on which the name was on another image


@pytest.fixture(scope="module")
def wanted():
    source = yaml.safe_load((ROOT / ".lab/inventory/group_vars/lab.yml").read_text())["images_source"]
    return read_layout(source)[IMAGE]


def name_of(host):
    return str(host.backend.get_pytest_id()).rpartition("/")[2]


def images(host):
    with host.sudo():
        names = host.check_output("docker images --no-trunc --format '{{.Repository}}:{{.Tag}} {{.ID}}'")
    return dict(line.split() for line in names.splitlines())


def test_the_image_is_the_very_one(host, wanted):
    name = name_of(host)
    with host.sudo():
        held = json.loads(host.check_output(f"docker image inspect {IMAGE}"))[0]
        store = host.check_output("docker info --format '{{.DriverStatus}}'")
    assert ("containerd" in store) == (name == CONTAINERD)
    assert held["Id"] == (wanted.manifest if name == CONTAINERD else wanted.config).digest
    assert held["RootFS"]["Layers"] == list(wanted.diff_ids)
    assert not held["Config"].get("Entrypoint")


def test_it_starts_by_the_id_of_its_store(host, wanted):
    identity = wanted.ids[name_of(host) == CONTAINERD]
    with host.sudo():
        said = host.check_output(f"docker run --rm --network none {identity} cat {files()['engram.py']}")
    assert 'VARIANT = "stock"' in said


def files():
    """Patch files by name, where they are in the image."""
    about = yaml.safe_load((ROOT / "group_vars/all/images.yml").read_text())
    return {name: f"{about['images_site_packages']}/{path}" for name, path in about["images_patch_files"].items()}


def test_what_had_the_name_keeps_one(host):
    held = images(host)
    was = {name: identity for name, identity in held.items() if name.startswith("vllm-dsv41:was-")}
    assert bool(was) == (name_of(host) in OTHERS)
    for name, identity in was.items():
        assert identity.startswith(f"sha256:{name.removeprefix('vllm-dsv41:was-')}")


def test_nothing_is_left_behind(host):
    assert "vllm-dsv41:gb10-incoming" not in images(host)
    with host.sudo():
        assert host.check_output("find /var/lib/docker -maxdepth 2 -name gb10-spool") == ""
        assert host.check_output("find /var/lib/docker/tmp -mindepth 1") == ""
        assert host.run("find /root/.ansible_async -type f").stdout == ""


def test_only_names_of_ours_that_no_profile_has_are_pruned():
    """Check mode lists them and removes none; without, an image of another repository and what is needed stay."""

    def play(*more):
        argv = ["ansible-playbook", "-i", ROOT / ".lab/inventory/hosts.yml", ROOT / "playbooks/images.yml"]
        argv += ["-e", "profile=tp8-300k", "-e", "images_prune=true", *more]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-3000:]
        return done.stdout

    def names(node):
        argv = ["docker", "exec", node, "docker", "images", "--format", "{{.Repository}}:{{.Tag}}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        return sorted(done.stdout.split())

    before = names("spark-158")
    assert {"foreign:1", "vllm-dsv41:old", IMAGE} <= set(before)
    assert "vllm-dsv41:old" in play("--check")
    assert names("spark-158") == before
    play()
    assert names("spark-158") == ["foreign:1", IMAGE]
    assert names(CONTAINERD) == [IMAGE]
