"""The weights' disk is mounted by its UUID whatever its number, the other untouched; Docker waits for the mount."""

import json

from vm_run import declared, disk_of

MOUNT = declared("storage_mounts")[0]


def test_right_disk_is_mounted(host):
    disk = disk_of(host, MOUNT["disk"])
    assert host.mount_point(MOUNT["path"]).device == f"/dev/{disk}"
    uuid = host.check_output(f"lsblk --nodeps --noheadings --output UUID /dev/{disk}")
    assert f"UUID={uuid} {MOUNT['path']} ext4 " in host.file("/etc/fstab").content_string


def test_other_disk_is_untouched(host):
    disk = disk_of(host, "lab-foreign")
    assert host.check_output(f"lsblk --nodeps --noheadings --output LABEL,MOUNTPOINTS /dev/{disk}").split() == [
        "foreign"
    ]


def test_docker_starts_after_the_mount(host):
    unit = host.check_output("systemctl show docker.service --property Requires,After,ActiveState")
    held = dict(line.split("=", 1) for line in unit.splitlines())
    name = host.check_output(f"systemd-escape --path --suffix=mount {MOUNT['path']}")
    assert name in held["Requires"].split()
    assert name in held["After"].split()
    assert held["ActiveState"] == "active"


def test_random_reads_were_measured(host):
    probe = json.loads(host.file("/var/lib/gb10/storage-probe.json").content_string)
    assert MOUNT["disk"] in probe["identity"]
    assert probe["iops"] > 0
    assert probe["p99_us"] > 0
