"""Every file of the manifest is there with its size and sha256; nothing else is."""

import json
from pathlib import Path

import yaml
from support import ROOT

testinfra_hosts = ["ansible://spark-153", "ansible://spark-161", "ansible://spark-148"]
FOLDER = "/data/models/deepseek-v4.1-flash"


def test_checkpoint_is_the_manifests(host):
    source = yaml.safe_load((ROOT / ".lab/inventory/group_vars/lab.yml").read_text())["weights_source"]
    files = json.loads((Path(source) / "manifest.json").read_text())["files"]
    with host.sudo():
        held = host.check_output(f"cd {FOLDER} && find . -type f ! -name '.gb10*' -exec sha256sum {{}} +")
    sums = {line.split()[1].removeprefix("./"): line.split()[0] for line in held.splitlines()}
    assert sums == {f["path"]: f["sha256"] for f in files}
