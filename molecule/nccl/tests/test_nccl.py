"""Each node has the environment of its own rank, with what it detected itself."""

import yaml
from support import ROOT

NODES = yaml.safe_load((ROOT / ".lab/inventory/hosts.yml").read_text())["gb10"]["children"]["lab"]["hosts"]
testinfra_hosts = ["ansible://spark-153", "ansible://spark-148"]


def environment(host):
    lines = host.file("/etc/gb10/rank.env").content_string.splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_environment_is_the_nodes_own(host):
    env = environment(host)
    address = NODES[host.check_output("hostname")]["ansible_host"]
    assert env["VLLM_HOST_IP"] == address
    link = host.check_output("ip -o -4 address show").split("\n")
    assert env["GLOO_SOCKET_IFNAME"] in [line.split()[1] for line in link if f" {address}/" in line]


def test_environment_has_the_reports_values_and_nothing_empty(host):
    env = environment(host)
    assert env["NCCL_MAX_NCHANNELS"] == "8"
    assert env["NCCL_CUMEM_ENABLE"] == "0"
    assert "detected" not in env.values()
    assert "" not in env.values()
