"""Which disk a mount means, and that no other is ever taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gb10_node import Disk, spark
from wanted import looked, wanted

from gb10.disks import Place, places

DISK = Disk()


def place(tmp_path: Path, mount: dict[str, Any], *disks: Disk, allowed: bool = True, **tree: Any) -> Place:
    facts = looked(tmp_path, spark(disks=list(disks), **tree))
    (found,) = places(wanted(storage_mounts=[mount]).storage_mounts, facts, allowed)
    return found


BY_SERIAL = {"path": "/srv/fast", "disk": "S7NEW001"}


def test_an_empty_disk_is_taken_only_when_allowed(tmp_path: Path) -> None:
    assert place(tmp_path / "a", BY_SERIAL, DISK).device == "/dev/nvme1n1"
    refused = place(tmp_path / "b", BY_SERIAL, DISK, allowed=False)
    assert (refused.device, refused.uuid) == ("", "")
    assert refused.problem
    assert refused.problem.code == "disk-unformatted"
    assert "storage_format_allowed=true" in refused.problem.remedy


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fstype": "ext4", "uuid": "u-1"}, "ext4 on nvme1n1"),
        ({"table": "gpt"}, "a gpt partition table"),
        ({"partitions": {"nvme1n1p1": None}}, "partition nvme1n1p1"),
        ({"partitions": {"nvme1n1p1": "ntfs"}, "table": "dos"}, "ntfs on nvme1n1p1"),
        ({"signatures": ["LVM2_member"]}, "LVM2_member"),
        ({"signatures": ["linux_raid_member", "ext4"]}, "linux_raid_member, ext4"),
        ({"signatures": None}, "something that cannot be read"),
    ],
)
def test_a_disk_that_carries_anything_is_never_formatted(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    found = place(tmp_path, BY_SERIAL, replace(DISK, **changes))
    assert found.problem
    assert (found.problem.code, found.device) == ("disk-not-empty", "")
    assert says in found.problem.message


@pytest.mark.parametrize(
    ("mount", "disks", "code"),
    [
        ({"path": "/srv/fast", "disk": "S7FXNX0Y"}, (), "disk-is-root"),
        ({"path": "/srv/fast", "disk": "nvme-SAMSUNG_MZALC4T0HBL1_S7FXNX0Y"}, (), "disk-is-root"),
        ({"path": "/srv/fast", "disk": "/dev/disk/by-id/nvme-SAMSUNG_MZALC4T0HBL1_S7FXNX0Y"}, (), "disk-is-root"),
        (BY_SERIAL, (replace(DISK, holders=["dm-0"]),), "disk-in-use"),
        (BY_SERIAL, (replace(DISK, mountpoints=["/mnt"], fstype="ext4", uuid="u"),), "disk-in-use"),
        (BY_SERIAL, (replace(DISK, mountpoints=["[SWAP]"], fstype="swap", uuid="u"),), "disk-is-root"),
        (BY_SERIAL, (), "disk-absent"),
        (BY_SERIAL, (DISK, replace(DISK, name="nvme2n1")), "disk-absent"),
        ({"path": "/srv/fast", "uuid": "no-such"}, (), "disk-absent"),
        ({"path": "/srv/fast", "uuid": "9a-11"}, (), "disk-in-use"),
        ({"path": "/data", "uuid": "9a-11", "fstype": "xfs"}, (), "disk-filesystem-differs"),
        ({"path": "/data", "uuid": "u-1"}, (replace(DISK, fstype="ext4", uuid="u-1"),), "mount-point-taken"),
    ],
)
def test_what_must_not_be_taken_is_refused_by_name(
    tmp_path: Path, mount: dict[str, str], disks: tuple[Disk, ...], code: str
) -> None:
    found = place(tmp_path, mount, *disks)
    assert found.problem
    assert (found.problem.code, found.problem.level) == (code, "error")
    assert (found.device, found.uuid) == ("", "")
    assert mount["path"] in found.problem.message


@pytest.mark.parametrize(
    ("disk", "system"),
    [
        (replace(DISK, fstype="ext4", uuid="u-1", label="gb10"), {}),
        (replace(DISK, fstype="ext4", uuid="u-1", mountpoints=["/srv/fast"]), {}),
        (replace(DISK, fstype="ext4", uuid="u-1"), {"/etc/fstab": "UUID=u-1 /srv/fast ext4 noatime 0 0\n"}),
    ],
)
def test_a_disk_of_ours_is_known_again(tmp_path: Path, disk: Disk, system: dict[str, str]) -> None:
    found = place(tmp_path, BY_SERIAL, disk, allowed=False, system=system)
    assert (found.uuid, found.problem) == ("u-1", None)


def test_a_file_system_is_found_by_uuid_whatever_its_device_is_called(tmp_path: Path) -> None:
    disk = replace(DISK, name="nvme9n1", fstype="xfs", uuid="AB-1")
    found = place(tmp_path, {"path": "/srv/fast", "uuid": "ab-1", "fstype": "xfs"}, disk)
    assert (found.uuid, found.problem) == ("AB-1", None)


def test_one_file_system_has_one_place(tmp_path: Path) -> None:
    facts = looked(tmp_path, spark(disks=[DISK]))
    mounts = wanted(storage_mounts=[BY_SERIAL, {"path": "/srv/other", "disk": "S7NEW001"}]).storage_mounts
    first, second = places(mounts, facts, True)
    assert first.device == "/dev/nvme1n1"
    assert second.problem
    assert second.problem.code == "disk-in-use"
    assert "/srv/other and /srv/fast" in second.problem.message


COPY = replace(DISK, fstype="ext4", uuid="u-1", label="gb10")


@pytest.mark.parametrize("mount", [BY_SERIAL, {"path": "/srv/fast", "uuid": "U-1"}])
@pytest.mark.parametrize(
    "other",
    [
        replace(COPY, name="nvme2n1", serial="S7NEW002"),
        replace(COPY, name="nvme2n1", serial="S7NEW002", mountpoints=["/srv/fast"]),
        replace(COPY, name="nvme2n1", serial="S7NEW002", uuid="U-1", label=None),
    ],
)
def test_a_uuid_that_two_file_systems_have_is_not_mounted(tmp_path: Path, mount: dict[str, str], other: Disk) -> None:
    found = place(tmp_path, mount, COPY, other)
    assert found.problem
    assert (found.problem.code, found.uuid) == ("disk-uuid-repeated", "")
    assert "/dev/nvme1n1 and /dev/nvme2n1 both have UUID=" in found.problem.message
