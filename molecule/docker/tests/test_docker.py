"""Docker has our keys beside those of others, and runs."""

import json

import yaml
from support import ROOT

testinfra_hosts = ["ansible://spark-153", "ansible://spark-148"]


def test_daemon_json_has_both(host):
    with host.sudo():
        held = json.loads(host.file("/etc/docker/daemon.json").content_string)
    wanted = yaml.safe_load((ROOT / "roles/docker/defaults/main.yml").read_text())["docker_daemon"]
    assert held["dns-opts"] == ["timeout:3"]
    assert held["log-driver"] == wanted["log-driver"]
    assert held["log-opts"] == wanted["log-opts"]


def test_docker_runs_with_it(host):
    with host.sudo():
        assert host.service("docker").is_running
        assert host.service("docker").is_enabled
        info = json.loads(host.check_output("docker info --format '{{json .}}'"))
    assert info["LoggingDriver"] == "json-file"
