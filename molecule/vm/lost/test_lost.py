"""Without the weights' disk the node still boots and answers; nothing is written where the mount should be."""

from vm_run import declared, disk_of, play, recap

MOUNT = declared("storage_mounts")[0]


def test_boot_goes_on(host):
    assert disk_of(host, MOUNT["disk"]) == ""
    assert host.check_output("systemctl is-active multi-user.target") == "active"
    assert not host.mount_point(MOUNT["path"]).exists


def test_docker_does_not_run_on_the_root_disk(host):
    assert not host.service("docker").is_running
    assert host.file(MOUNT["path"]).listdir() == []


def test_it_is_said(host):
    done = play("preflight")
    assert done.returncode != 0
    assert "error [disk-absent] vm-0" in done.stdout
    assert recap(done)["changed"] == 0
