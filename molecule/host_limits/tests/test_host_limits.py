"""Login sessions have the declared limits."""

import yaml
from support import ROOT

testinfra_hosts = ["ansible://spark-153", "ansible://spark-148"]


def test_limits_file(host):
    nofile = yaml.safe_load((ROOT / "group_vars/lab.yml").read_text())["host_limits_nofile"]
    lines = host.file("/etc/security/limits.d/90-gb10.conf").content_string.split("\n")
    assert f"*    hard nofile  {nofile}" in lines
    assert "root hard memlock unlimited" in lines
