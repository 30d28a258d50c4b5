"""A disk is taken only when it is empty and allowed to be formatted; what is refused changes nothing at all."""

import pytest
from vm_run import disk_digest, play, recap

REFUSED = {
    "not allowed": ("lab-blank", False, "disk-unformatted", "lab-blank"),
    "somebody's file system": ("lab-foreign", True, "disk-not-empty", "ext4"),
    "root disk": ("virtio-lab-root", True, "disk-is-root", "/dev/vda"),
    "no such disk": ("lab-none", True, "disk-absent", "lab-foreign"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_disk_is_refused_before_anything_changes(host, case):
    serial, allowed, code, said = REFUSED[case]
    disks = {name: disk_digest(name) for name in ("blank", "foreign")}
    fstab, entries = host.file("/etc/fstab").content_string, host.check_output("ls -A /etc /etc/docker /var/lib /")
    done = play("prepare", storage_mounts=[{"path": "/data", "disk": serial}], storage_format_allowed=allowed)
    assert done.returncode != 0
    output = done.stdout + done.stderr
    line = next((line for line in output.splitlines() if f"error [{code}] vm-0: " in line), output)
    assert f"error [{code}] vm-0: " in line
    assert said in line
    assert "Traceback" not in output
    assert recap(done)["changed"] == 0
    assert host.file("/etc/fstab").content_string == fstab
    assert host.check_output("ls -A /etc /etc/docker /var/lib /") == entries
    assert {name: disk_digest(name) for name in ("blank", "foreign")} == disks
