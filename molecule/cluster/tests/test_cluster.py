"""Eight ranks run, each where the inventory says, and answer."""

import json

import pytest
import yaml
from support import ROOT

NODES = yaml.safe_load((ROOT / ".lab/inventory/hosts.yml").read_text())["gb10"]["children"]["lab"]["hosts"]
testinfra_hosts = [f"ansible://{name}" for name in NODES]


@pytest.fixture(name="rank")
def _rank(host):
    with host.sudo():
        return json.loads(host.check_output("docker inspect gb10-rank"))[0]


def test_rank_is_the_inventorys(host, rank):
    name = host.check_output("hostname")
    argv = rank["Config"]["Cmd"]
    assert argv[argv.index("--node-rank") + 1] == str(NODES[name]["node_rank"])
    assert rank["Config"]["Labels"]["gb10.rank"] == str(NODES[name]["node_rank"])
    assert rank["State"]["Running"]
    assert rank["HostConfig"]["RestartPolicy"]["Name"] in ("", "no")
    assert rank["HostConfig"]["NetworkMode"] == "host"


def test_the_node_keeps_what_was_deployed(host, rank):
    held = json.loads(host.file("/var/lib/gb10/deployment.json").content_string)
    assert held["plan_hash"] == rank["Config"]["Labels"]["gb10.plan-hash"]
    assert held["image_digest"] == rank["Image"]
