"""The prepared state of a node: the settings of the roles docker, host_limits and storage, parsed once per node.

``look`` says what the facts must show for ``todo`` to tell what a node lacks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from gb10 import data
from gb10.findings import Finding, error
from gb10.managed import with_parents
from gb10.settings import (
    BadValue,
    Parser,
    choice,
    each,
    flag,
    integer,
    mapping,
    matching,
    maybe_text,
    path,
    plain,
    sequence,
    shown,
    text,
    ulimits,
)

Document = Mapping[str, Any]

USER = re.compile(r"^[a-z_][a-z0-9_.-]*\$?$")
SYSCTL = re.compile(r"^[a-z0-9_]+(\.[\w/-]+)+$")
OPTIONS = "noatime,nofail,x-systemd.device-timeout=30s"
FILE_SYSTEMS = ("ext4", "xfs")


@dataclass(frozen=True)
class Mount:
    """A file system to mount: by its UUID, or on a whole disk named by serial number or /dev/disk/by-id entry."""

    path: str
    uuid: str
    disk: str
    fstype: str
    opts: str

    @property
    def name(self) -> str:
        """As the operator named it."""
        return f"UUID={self.uuid}" if self.uuid else f"disk {self.disk}"


def maybe_path(value: Any) -> str:
    """An absolute path, or empty for none."""
    return path(value) if maybe_text(value) else ""


def mounts(value: Any) -> list[Mount]:
    """``{path, uuid or disk, fstype, opts}``; fstype is ext4 and opts ``OPTIONS`` unless given."""
    wanted = "a list of {path, uuid or disk, fstype, opts}; fstype ext4 or xfs"
    result = []
    for item in sequence(value):
        known = {"path", "uuid", "disk", "fstype", "opts"}
        if not isinstance(item, Mapping) or not {"path"} <= set(item) <= known or ("uuid" in item) == ("disk" in item):
            raise BadValue(wanted)
        where, fstype = path(item["path"]).rstrip("/"), str(item.get("fstype", "ext4"))
        which = str(text(item.get("uuid", item.get("disk")))).removeprefix("/dev/disk/by-id/")
        if not where or fstype not in FILE_SYSTEMS or not re.match(r"^[\w.:+-]+$", which):
            raise BadValue(wanted)
        opts = str(text(item.get("opts", OPTIONS)))
        ours = ("uuid", which, "") if "uuid" in item else ("disk", "", which)
        result.append(Mount(where, ours[1], ours[2], fstype, opts))
    if len({mount.path for mount in result}) < len(result):
        raise BadValue("a list in which every path is there once")
    return result


def sysctls(value: Any) -> dict[str, str]:
    """Name to value, as the kernel shows it: whole numbers and texts, spaces single."""
    result = {}
    for name, held in mapping(value).items():
        if not SYSCTL.match(str(name)) or isinstance(held, bool) or not isinstance(held, int | str):
            raise BadValue('a mapping of sysctls, like {vm.min_free_kbytes: "1048576"}')
        result[str(name)] = " ".join(str(held).split())
    return result


def probe(value: Any) -> str:
    """``auto``, ``true`` or ``false``; a boolean is one of the last two."""
    return "auto" if value == "auto" else str(flag(value)).lower()


user = matching(USER, "a list of user names")


def setting(parse: Parser) -> Any:
    """A field with its parser. Values and their reasons are in the roles' defaults and in group_vars."""
    return field(metadata={"parse": parse})


@dataclass(frozen=True)
class Prepared:
    """Every setting of the three roles, and what they share with others, of one node."""

    docker_packages: list[str] = setting(each(text))
    docker_daemon: dict[str, Any] = setting(mapping)
    docker_default_ulimits: dict[str, str] = setting(ulimits)
    docker_data_root: str = setting(maybe_path)
    docker_nvidia: str = setting(choice("runtime", "cdi", "none"))
    docker_users: list[str] = setting(each(user))
    docker_restart_under_rank: bool = setting(flag)
    host_limits_nofile: int = setting(integer(1024, 1 << 30))
    host_limits_memlock: str = setting(text)
    host_limits_sysctls: dict[str, str] = setting(sysctls)
    host_limits_memory_guard: str = setting(choice("earlyoom", "none"))
    host_limits_guard_arguments: list[str] = setting(each(text))
    host_limits_linger: list[str] = setting(each(user))
    host_limits_keep_ipc: bool = setting(flag)
    storage_mounts: list[Mount] = setting(mounts)
    storage_weights_mount: str = setting(maybe_path)
    storage_cache_path: str = setting(maybe_path)
    storage_format_allowed: bool = setting(flag)
    storage_probe: str = setting(probe)
    engram: str = field(default="none", metadata={"parse": choice("memory", "disk", "none")})
    weights_path: str = field(default="", metadata={"parse": maybe_text})

    @property
    def users(self) -> list[str]:
        """Everybody named anywhere."""
        return sorted({*self.docker_users, *self.host_limits_linger})

    @property
    def mount_points(self) -> list[str]:
        """Where Docker's containers read weights from, and what its own data lies on: Docker starts after these."""
        places = [self.storage_weights_mount.rstrip("/"), *(mount.path for mount in self.storage_mounts)]
        return sorted({place for place in (*places, self.docker_data_root) if place})

    @property
    def probes(self) -> bool:
        """Whether the weights' disk is to be measured: asked for, or Engram is read from it."""
        return self.storage_probe == "true" or (self.storage_probe == "auto" and self.engram == "disk")


NAMES = tuple(item.name for item in fields(Prepared))


def read_prepared(variables: Document, node: str = "") -> tuple[Prepared | None, list[Finding]]:
    """The settings of one node from its variables (role defaults among them); None with a finding per bad one."""
    values: dict[str, Any] = {}
    findings: list[Finding] = []
    for item in fields(Prepared):
        value = variables.get(item.name)  # once: Ansible templates it anew at every look
        if value is None and item.default is not MISSING:
            continue
        try:
            values[item.name] = item.metadata["parse"](plain(value))
        except BadValue as bad:
            message = f"{item.name} is {shown(value)} but must be {bad}."
            findings.append(error("setting-invalid", message, "Correct the variable.", node))
    return (None if findings else Prepared(**values)), findings


def look(variables: Document) -> dict[str, list[str]]:
    """Options of gb10_facts: what must be read of a node to tell what it lacks. Bad settings are judged later."""
    managed = data.load("prepared")
    prepared, _bad = read_prepared(variables)
    paths = [*managed["files"]]
    found = {"units": list(managed["units"]), "packages": list(managed["packages"]), "sysctls": [], "users": []}
    if prepared:
        paths += [prepared.storage_cache_path] if prepared.storage_cache_path else []
        found["packages"] += [name for name in prepared.docker_packages if name not in found["packages"]]
        found["sysctls"] = sorted({*managed["sysctls"], *prepared.host_limits_sysctls})
        found["users"] = prepared.users
    return {"files": with_parents(paths), **found}
