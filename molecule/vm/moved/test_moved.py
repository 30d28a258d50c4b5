"""The weights' disk has another number than it was formatted under, and the kernel another argument."""

from vm_run import declared, disk_of, facts


def test_number_changed(host):
    assert disk_of(host, declared("storage_mounts")[0]["disk"]) == "nvme1n1"


def test_kernel_argument_is_read(host):
    node = facts()
    assert "kho=off" in node["kernel"]["cmdline"].split()
    assert node["kernel"]["cmdline"] == host.file("/proc/cmdline").content_string.strip()
