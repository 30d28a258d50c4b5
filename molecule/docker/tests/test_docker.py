"""Docker has our keys beside those of others, runs with them, and starts after the weights' mount."""

import json

import yaml
from support import ROOT

testinfra_hosts = ["ansible://spark-153", "ansible://spark-148"]
SETTINGS = yaml.safe_load((ROOT / "molecule/docker/settings.yml").read_text())


def test_daemon_json_has_both(host):
    """Case 19."""
    with host.sudo():
        held = json.loads(host.file("/etc/docker/daemon.json").content_string)
    wanted = yaml.safe_load((ROOT / "roles/docker/defaults/main.yml").read_text())["docker_daemon"]
    assert held["dns-opts"] == ["timeout:3"]
    assert held["runtimes"] == {"other": {"path": "runc"}}
    assert held["log-driver"] == wanted["log-driver"]
    assert held["log-opts"] == wanted["log-opts"]
    assert held["default-ulimits"] == {
        "nofile": {"Name": "nofile", "Soft": 1024, "Hard": 20000},
        "stack": {"Name": "stack", "Soft": 67108864, "Hard": 67108864},
    }


def test_docker_runs_with_it(host):
    with host.sudo():
        assert host.service("docker").is_running
        assert host.service("docker").is_enabled
        info = json.loads(host.check_output("docker info --format '{{json .}}'"))
    assert info["LoggingDriver"] == "json-file"
    assert "other" in info["Runtimes"]


def test_docker_starts_after_the_weights_mount(host):
    assert host.check_output("systemctl show docker --property=RequiresMountsFor --value") == "/data"
    assert "data.mount" in host.check_output("systemctl show docker --property=After --value").split()


def test_the_user_is_in_the_group_beside_its_own(host):
    """Case 25."""
    assert {"docker", "video", "nvidia"} <= set(host.user("nvidia").groups)


def test_what_was_there_before_is_on_record(host):
    with host.sudo():
        items = json.loads(host.file("/var/lib/gb10/originals/originals.json").content_string)["items"]
        was = items["file:/etc/docker/daemon.json"]["was"]
        assert "data-root" not in host.file(f"/var/lib/gb10/originals/{was['sha256']}").content_string
    assert items["member:docker/nvidia"]["was"] is False
