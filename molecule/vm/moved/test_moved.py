"""The weights' disk has another number than it was formatted under, and the kernel another argument."""

import json

from vm_run import declared, disk_of, facts, play, recap


def test_number_changed(host):
    serial = declared("storage_mounts")[0]["disk"]
    with host.sudo():
        record = json.loads(host.file("/var/lib/gb10/originals/originals.json").content_string)["items"]
    (formatted,) = [item["name"] for item in record.values() if item["kind"] == "disk"]
    assert formatted.endswith(f" ({serial})")
    assert formatted != f"/dev/{disk_of(host, serial)} ({serial})"


def test_kernel_argument_is_read(host):
    node = facts()
    assert "kho=off" in node["kernel"]["cmdline"].split()
    assert node["kernel"]["cmdline"] == host.file("/proc/cmdline").content_string.strip()


def test_a_mount_with_other_options_is_put_right(host):
    path = declared("storage_mounts")[0]["path"]
    with host.sudo():
        host.check_output(f"mount -o remount,relatime {path}")
    assert "noatime" not in host.mount_point(path).options
    done = play("prepare")
    assert (done.returncode, recap(done)["changed"]) == (0, 1), done.stdout[-3000:]
    assert "noatime" in host.mount_point(path).options
