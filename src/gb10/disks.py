"""Which disk a mount means on a node, and whether it may be taken: never the root disk, or one not empty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gb10.findings import Finding, error
from gb10.prepared import Mount

Document = Mapping[str, Any]

# Marks a file system of ours, so that a run that died after formatting is gone on with.
LABEL = "gb10"
SYSTEM = ("/", "/boot", "/boot/efi", "[SWAP]", "/usr", "/var", "/home")


@dataclass(frozen=True)
class Place:
    """What a mount comes to on one node: the UUID of a file system, or a device to format; else the problem."""

    mount: Mount
    uuid: str = ""
    device: str = ""
    problem: Finding | None = None


def places(mounts: list[Mount], facts: Document, format_allowed: bool) -> list[Place]:
    """One place a mount, in order. Two mounts of one file system are a problem of the second."""
    found: list[Place] = []
    for mount in mounts:
        place = by_uuid(mount, facts) if mount.uuid else by_disk(mount, facts, format_allowed)
        same = [p for p in found if (p.uuid, p.device) == (place.uuid, place.device) and not p.problem]
        if not place.problem and same:
            message = f"{mount.path} and {same[0].mount.path} name the same file system ({mount.name})."
            place = Place(mount, problem=error("disk-in-use", message, "Correct storage_mounts."))
        found.append(place)
    return found


def volumes(facts: Document) -> Iterator[tuple[Document, Document]]:
    """Every disk and partition, with the disk it is on."""
    for disk in facts.get("block_devices") or []:
        for volume in (disk, *(disk.get("partitions") or [])):
            yield volume, disk


def by_uuid(mount: Mount, facts: Document) -> Place:
    """The file system of that UUID, taken as it is."""
    found = [volume for volume, _disk in volumes(facts) if str(volume.get("uuid") or "").lower() == mount.uuid.lower()]
    if not found:
        have = ", ".join(f"{v['name']} {v['uuid']}" for v, _d in volumes(facts) if v.get("uuid")) or "none"
        message = f"No file system has {mount.name} for {mount.path}; the node has {have}."
        return Place(
            mount, problem=error("disk-absent", message, "Correct storage_mounts, or look whether the disk is seen.")
        )
    return taken(mount, found[0], facts)


def taken(mount: Mount, volume: Document, facts: Document) -> Place:
    """A file system that is there already: of the right kind, and mounted nowhere else."""
    device, uuid = f"/dev/{volume['name']}", str(volume["uuid"])
    same = [f"/dev/{v['name']}" for v, _disk in volumes(facts) if str(v.get("uuid") or "").lower() == uuid.lower()]
    if len(same) > 1:
        message = f"{' and '.join(same)} both have UUID={uuid}, meant for {mount.path}: which is mounted is chance."
        remedy = "One is a copy: take it out, or give it a UUID of its own (tune2fs -U random, xfs_admin -U generate)."
        return Place(mount, problem=error("disk-uuid-repeated", message, remedy))
    if volume.get("fstype") != mount.fstype:
        message = f"{device} for {mount.path} carries {volume.get('fstype')}, not {mount.fstype}."
        remedy = "Correct fstype in storage_mounts; nothing is formatted anew."
        return Place(mount, problem=error("disk-filesystem-differs", message, remedy))
    elsewhere = [point for point in volume.get("mountpoints") or [] if point != mount.path]
    if elsewhere and mount.path not in volume["mountpoints"]:
        message = f"{device} for {mount.path} is mounted at {', '.join(elsewhere)}."
        return Place(mount, problem=error("disk-in-use", message, "Unmount it there, or correct storage_mounts."))
    other = [m for m in facts.get("mounts") or [] if m["target"] == mount.path]
    if other and mount.path not in (volume.get("mountpoints") or []):
        message = f"{mount.path} is {other[-1]['source']} now, not {device}."
        return Place(
            mount, problem=error("mount-point-taken", message, "Unmount it by hand, or correct storage_mounts.")
        )
    return Place(mount, uuid=uuid)


def by_disk(mount: Mount, facts: Document, format_allowed: bool) -> Place:
    """The whole disk of that serial number or by-id name: ours already, or empty and allowed to be formatted."""

    disks = facts.get("block_devices") or []
    found = [d for d in disks if mount.disk in (str(d.get("serial") or "").strip(), *(d.get("ids") or []))]
    if len(found) != 1:
        have = (
            ", ".join(f"{d['name']} {str(d.get('serial') or '').strip() or 'without serial'}" for d in disks) or "none"
        )
        message = f"{len(found) or 'No'} disks are {mount.disk} for {mount.path}; the node has {have}."
        return Place(
            mount,
            problem=error(
                "disk-absent", message, "Correct storage_mounts: a serial number, or a name of /dev/disk/by-id."
            ),
        )
    disk = found[0]
    parts = [volume for volume, owner in volumes(facts) if owner is disk]
    device = f"/dev/{disk['name']}"
    points = [point for volume in parts for point in volume.get("mountpoints") or []]
    if set(points) & set(SYSTEM):
        message = f"{device} ({mount.disk}) for {mount.path} holds the running system ({', '.join(points)})."
        return Place(mount, problem=error("disk-is-root", message, "Name another disk in storage_mounts."))
    if disk.get("uuid") and (disk.get("label") == LABEL or mount.path in points or in_fstab(disk, mount, facts)):
        return taken(mount, disk, facts)
    holders = [str(holder) for volume in parts for holder in volume.get("holders") or []]
    if points or holders:
        message = f"{device} ({mount.disk}) for {mount.path} is in use ({', '.join(points + holders)})."
        return Place(mount, problem=error("disk-in-use", message, "Name another disk, or free this one by hand."))
    carries = [f"{v['fstype']} on {v['name']}" for v in parts if v.get("fstype")]
    carries += [f"a {disk['table']} partition table"] if disk.get("table") else []
    carries += [f"partition {v['name']}" for v in disk.get("partitions") or []]
    signatures = disk.get("signatures")
    carries += [str(kind) for kind in signatures or []]
    if signatures is None and not carries:
        carries.append("something that cannot be read")
    if carries:
        message = f"{device} ({mount.disk}) for {mount.path} is not empty: {', '.join(dict.fromkeys(carries))}."
        remedy = (
            "To keep what is on it, name its file system by uuid; to give it up, run wipefs by hand. Never done here."
        )
        return Place(mount, problem=error("disk-not-empty", message, remedy))
    if not format_allowed:
        message = f"{device} ({mount.disk}) for {mount.path} is empty: it would be formatted with {mount.fstype}."
        return Place(
            mount,
            problem=error("disk-unformatted", message, "Give -e storage_format_allowed=true once, if that is meant."),
        )
    return Place(mount, device=device)


def in_fstab(disk: Document, mount: Mount, facts: Document) -> bool:
    """Whether /etc/fstab has this disk at the mount's path."""
    line = {"source": f"UUID={disk['uuid']}", "target": mount.path}
    return any(line.items() <= dict(entry).items() for entry in facts.get("fstab") or [])
