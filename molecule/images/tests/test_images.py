"""The profile's image is there by content, with an empty entrypoint; nothing is left of the transfer."""

import json
from pathlib import Path

import yaml
from support import ROOT

testinfra_hosts = ["ansible://spark-153", "ansible://spark-148"]
IMAGE = "vllm-dsv41:engram-mem"


def test_image_is_the_very_one(host):
    source = yaml.safe_load((ROOT / ".lab/inventory/group_vars/lab.yml").read_text())["images_source"]
    wanted = json.loads((Path(source) / "images.json").read_text())["images"][IMAGE]["image_id"]
    with host.sudo():
        held = json.loads(host.check_output(f"docker image inspect {IMAGE}"))[0]
    assert held["Id"] == wanted
    assert not held["Config"].get("Entrypoint")


def test_nothing_is_left_behind(host):
    with host.sudo():
        assert host.check_output("find /var/cache/gb10/images -type f") == ""
