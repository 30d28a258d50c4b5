"""What each node lacks, from its facts: roles act on this and on nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gb10 import data, disks, probe
from gb10.findings import Finding, error, warning
from gb10.managed import HEADER, File, directories, keep_files, newer, to_write
from gb10.prepared import Prepared

Document = Mapping[str, Any]
Todo = dict[str, Any]

# community.docker's modules need it; from the distribution, never from pip into the system's Python.
REQUESTS_PACKAGE = "python3-requests"
MKFS_PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}

DAEMON_JSON = "/etc/docker/daemon.json"
DOCKER_MOUNTS = "/etc/systemd/system/docker.service.d/50-gb10-mounts.conf"
CONTAINERD = "/etc/containerd/config.toml"
CDI = "/etc/cdi/nvidia.yaml"
LIMITS = "/etc/security/limits.d/90-gb10.conf"
SYSCTLS = "/etc/sysctl.d/90-gb10.conf"
LOGIND = "/etc/systemd/logind.conf.d/90-gb10.conf"
GUARD = "/etc/default/earlyoom"


def node_todo(facts: Document, wanted: Prepared) -> dict[str, Todo]:
    """What the roles storage, docker and host_limits do on one node, by role; ``keep`` are items of the record."""
    return {
        "storage": storage_todo(facts, wanted),
        "docker": docker_todo(facts, wanted),
        "host_limits": limits_todo(facts, wanted),
    }


def serving(facts: Document) -> bool:
    """Whether a rank of ours runs."""
    containers = (facts.get("docker") or {}).get("containers") or []
    return any(c["ours"] and c["state"] == "running" for c in containers)


def lacking(facts: Document, packages: Iterable[str]) -> list[str]:
    """Those not installed; a package nobody looked for is."""
    held = facts.get("packages") or {}
    return [name for name in packages if held.get(name) is None]


# --- Docker ----------------------------------------------------------------------------------------------------------


def merged_daemon_json(current: Document | None, wanted: Document) -> str | None:
    """The new text of daemon.json with ``wanted`` merged key by key, or ``None`` when it already holds it.

    Keys of others stay; a mapping under one of our keys is merged too.
    """
    result = _merge(current or {}, wanted)
    return None if result == (current or {}) else json.dumps(result, indent=4) + "\n"


def _merge(base: Document, over: Document) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        held = result.get(key)
        result[key] = _merge(held, value) if isinstance(held, Mapping) and isinstance(value, Mapping) else value
    return result


def daemon_keys(wanted: Prepared) -> dict[str, Any]:
    """Our keys of daemon.json."""
    keys = dict(wanted.docker_daemon)
    if wanted.docker_default_ulimits:
        keys["default-ulimits"] = {name: ulimit(name, text) for name, text in wanted.docker_default_ulimits.items()}
    if wanted.docker_data_root:
        keys["data-root"] = wanted.docker_data_root
    if wanted.docker_nvidia == "runtime":
        keys["runtimes"] = {"nvidia": {"path": "nvidia-container-runtime", "args": []}}
    if wanted.docker_nvidia == "cdi":
        keys["features"] = {"cdi": True}
    return _merge(keys, wanted.docker_daemon)


def ulimit(name: str, text: str) -> dict[str, Any]:
    """``soft:hard`` (or one number for both) in the form daemon.json takes."""
    soft, _, hard = text.partition(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}


def containerd_root(wanted: Prepared) -> str:
    """Where containerd's data goes beside Docker's."""
    return f"{wanted.docker_data_root.rstrip('/')}/containerd"


def docker_todo(facts: Document, wanted: Prepared) -> Todo:
    """What the docker role does: ``packages``, ``directories``, ``files``, ``cdi`` (argv, empty for none), ``users``.

    ``containerd_line`` goes into a config.toml that is there already; ``restart`` and ``start`` are flags; ``notify``:
    handlers. What an earlier run wrote and did not come to put in force: ``late`` (services to restart) and ``stale``
    (units to read again).
    """
    docker = facts["docker"]
    held = facts.get("files") or {}
    packages = [] if docker["installed"] else list(wanted.docker_packages)
    if not facts["python"]["requests"]:
        packages.append(REQUESTS_PACKAGE)
    files = []
    daemon_json = None
    if not docker["daemon_json"].get("error"):
        daemon_json = merged_daemon_json(docker["daemon_json"]["parsed"], daemon_keys(wanted))
    if daemon_json:
        files.append(File(DAEMON_JSON, daemon_json))
    root, store = containerd_root(wanted), store_after(docker, wanted)
    # Not known before Docker's first start: then it is moved too, as nothing is there yet.
    moved = bool(wanted.docker_data_root) and store != "classic" and docker["containerd_configured"] != root
    line = f'root = "{root}"' if moved else ""
    if line and not (held.get(CONTAINERD) or {}).get("exists"):
        files.append(File(CONTAINERD, f"version = 2\n{line}\n"))
        line = ""
    restart = docker["installed"] and (bool(files) or moved)
    late = [] if serving(facts) else late_services(facts)
    stale = not serving(facts) and bool(((facts.get("units") or {}).get("docker.service") or {}).get("stale"))
    text = f"{HEADER}[Unit]\nRequiresMountsFor={' '.join(wanted.mount_points)}\n"
    ordered = to_write([File(DOCKER_MOUNTS, text)] if wanted.mount_points else [], facts)
    files += ordered
    listed = any((held.get(path) or {}).get("exists") for path in (CDI, "/var/run/cdi/nvidia.yaml"))
    cdi = wanted.docker_nvidia == "cdi" and docker.get("nvidia_ctk") and not listed
    users = [name for name in wanted.docker_users if "docker" not in facts["users"][name]["groups"]]
    start = not docker["reachable"]
    handlers = ["Systemd knows its units"] if ordered and not serving(facts) else []
    handlers += (
        (["Containerd restarts"] if moved or "containerd" in late else []) + ["Docker restarts"] if restart else []
    )
    folders = directories([*files, *([File(CDI, "")] if cdi else [])], facts)
    keep = keep_files(files, folders)
    keep += [{"kind": "package", "name": name} for name in packages]
    keep += [{"kind": "member", "name": f"docker/{name}"} for name in users]
    keep += [{"kind": "unit", "name": "docker.service"}] if start and not packages else []
    made = [path for path, so in ((CDI, cdi), (CONTAINERD, line)) if so]  # whose content is known afterwards only
    keep += [{"kind": "file", "name": path} for path in made]
    return {
        "keep": keep,
        "packages": packages,
        "directories": folders,
        "files": [file.as_task() for file in files],
        "cdi": ["nvidia-ctk", "cdi", "generate", f"--output={CDI}"] if cdi else [],
        "users": users,
        "containerd_line": line,
        "made": [{"kind": "file", "name": path, "ours": "now"} for path in made],
        "restart": restart,
        "start": start,
        "late": [] if restart else late,
        "stale": stale,
        "notify": handlers,
    }


def late_services(facts: Document) -> list[str]:
    """containerd and Docker where what they read is younger than their start; Docker starts after containerd."""
    if newer(CONTAINERD, "containerd.service", facts):
        return ["containerd", "docker"]
    return ["docker"] if newer(DAEMON_JSON, "docker.service", facts) else []


def docker_findings(node: str, facts: Document, wanted: Prepared) -> list[Finding]:
    """What the docker role must not do on this node."""
    docker, todo, found = facts["docker"], docker_todo(facts, wanted), []
    if serving(facts) and not wanted.docker_restart_under_rank:
        stop = "Stop the ranks first (playbooks/stop.yml), or give -e docker_restart_under_rank=true."
        if todo["restart"]:
            changed = ", ".join(f["path"] for f in todo["files"] if f["path"] in (DAEMON_JSON, CONTAINERD))
            message = f"{changed} must change, Docker would restart and a rank of ours runs."
            found.append(error("docker-restart-refused", message, stop, node))
        packages = [
            *todo["packages"],
            *limits_todo(facts, wanted)["packages"],
            *storage_todo(facts, wanted)["packages"],
        ]
        if packages:
            message = f"{', '.join(packages)} would be installed, which reloads systemd, and a rank of ours runs."
            found.append(error("install-refused", message, stop, node))
    held = {"image": len(docker["images"]), "container": len(docker["containers"])}
    root = left_behind(docker, wanted)
    if root and any(held.values()):
        listed = " and ".join(f"{count} {what}{'s' if count != 1 else ''}" for what, count in held.items() if count)
        message = (
            f"Docker has {listed} under {root}, which docker_data_root {wanted.docker_data_root} would leave behind."
        )
        remedy = "Move it by hand (stop Docker, copy the directory), remove it, or leave docker_data_root empty."
        found.append(error("docker-root-not-empty", message, remedy, node))
    found += [replace(finding, node=node) for finding in store_findings(docker, wanted)]
    if wanted.docker_nvidia != "none" and not docker.get("nvidia_ctk"):
        message = f"docker_nvidia is {wanted.docker_nvidia}, but /usr/bin/nvidia-ctk is not there."
        found.append(error("nvidia-ctk-missing", message, "Install nvidia-container-toolkit, or set it to none.", node))
    return found


def left_behind(docker: Document, wanted: Prepared) -> str:
    """The directory docker_data_root would take Docker away from: its own, or containerd's, where images are there."""
    if not wanted.docker_data_root:
        return ""
    roots = {docker.get("data_root"): wanted.docker_data_root, docker.get("containerd_root"): containerd_root(wanted)}
    return next((str(have) for have, want in roots.items() if have and have.rstrip("/") != want.rstrip("/")), "")


def settings_after(docker: Document, wanted: Prepared) -> dict[str, Any]:
    """daemon.json as it will be."""
    return _merge(docker["daemon_json"].get("parsed") or {}, daemon_keys(wanted))


def store_after(docker: Document, wanted: Prepared) -> str | None:
    """The image store Docker will have: ``containerd`` or ``classic``; None where only Docker itself could tell."""
    settings = settings_after(docker, wanted)
    features = settings.get("features")
    asked = features.get("containerd-snapshotter") if isinstance(features, Mapping) else None
    if isinstance(asked, bool):
        return "containerd" if asked else "classic"
    if settings.get("storage-driver") in data.load("prepared")["graph_drivers"]:
        return "classic"
    held = docker.get("image_store")
    return str(held) if held else None


def store_findings(docker: Document, wanted: Prepared) -> list[Finding]:
    """An image store that daemon.json, as it will be, makes unusable, or another than images are in."""
    store, driver = store_after(docker, wanted), settings_after(docker, wanted).get("storage-driver")
    found = []
    if store == "containerd" and driver in data.load("prepared")["graph_drivers"]:
        message = f"daemon.json has storage-driver {driver} and features.containerd-snapshotter: no image would work."
        remedy = "Take one of the two out, in docker_daemon or in the node's daemon.json."
        found.append(error("docker-store-conflict", message, remedy))
    held = len(docker["images"]) + len(docker["containers"])
    if held and docker.get("image_store") and docker["image_store"] != store:
        message = (
            f"Docker would go from the {docker['image_store']} image store to {store}, which hides what it has "
            f"({len(docker['images'])} images, {len(docker['containers'])} containers)."
        )
        remedy = "Remove them first, or leave features.containerd-snapshotter and storage-driver as they are."
        found.append(error("docker-store-not-empty", message, remedy))
    return found


# --- limits ----------------------------------------------------------------------------------------------------------


def limit_files(wanted: Prepared) -> list[File]:
    """Limits of login sessions, kernel parameters, logind."""
    limits = {"nofile": str(wanted.host_limits_nofile), "memlock": wanted.host_limits_memlock}
    lines = [
        f"{who:<4} {kind} {name:<7} {value}\n"
        for who in ("*", "root")  # * does not stand for root
        for name, value in limits.items()
        for kind in ("soft", "hard")
    ]
    files = [File(LIMITS, HEADER + "".join(lines))]
    if wanted.host_limits_sysctls:
        text = "".join(f"{name}={value}\n" for name, value in sorted(wanted.host_limits_sysctls.items()))
        files.append(File(SYSCTLS, HEADER + text))
    if wanted.host_limits_keep_ipc:
        files.append(File(LOGIND, f"{HEADER}[Login]\nRemoveIPC=no\n"))
    if wanted.host_limits_memory_guard == "earlyoom":
        files.append(File(GUARD, f'{HEADER}EARLYOOM_ARGS="{" ".join(wanted.host_limits_guard_arguments)}"\n'))
    return files


def limits_todo(facts: Document, wanted: Prepared) -> Todo:
    """``packages``, ``directories``, ``files``, ``sysctls``, ``linger`` (users), ``guard`` (a state of its unit).

    ``late``: an earlier run wrote logind's setting and did not come to its restart.
    """
    files = to_write(limit_files(wanted), facts)
    written = {file.path for file in files}
    guarded = wanted.host_limits_memory_guard == "earlyoom"
    packages = lacking(facts, ["earlyoom"]) if guarded else []
    unit, late = (facts.get("units") or {}).get("earlyoom.service") or {}, newer(GUARD, "earlyoom.service", facts)
    runs = unit.get("active") == "active" and unit.get("enabled") == "enabled"
    sysctls = {n: v for n, v in wanted.host_limits_sysctls.items() if single(facts["sysctls"].get(n)) != v}
    linger = [name for name in wanted.host_limits_linger if not facts["users"][name]["linger"]]
    folders = directories(files, facts)
    keep = [{"kind": "package", "name": name} for name in packages] + keep_files(files, folders)
    keep += [{"kind": "sysctl", "name": name, "ours": value} for name, value in sysctls.items()]
    keep += [{"kind": "linger", "name": name} for name in linger]
    keep += [{"kind": "unit", "name": "earlyoom.service"}] if guarded and not runs else []
    return {
        "keep": keep,
        "packages": packages,
        "directories": folders,
        "files": [file.as_task() for file in files],
        "sysctls": sysctls,
        "linger": linger,
        "guard": "restarted" if guarded and (GUARD in written or late) else "started" if guarded and not runs else "",
        "notify": ["Logind restarts"] if LOGIND in written and not serving(facts) else [],
        "late": LOGIND not in written and not serving(facts) and newer(LOGIND, "systemd-logind.service", facts),
    }


def single(value: Any) -> str | None:
    """A sysctl's text with single spaces, as settings have it."""
    return None if value is None else " ".join(str(value).split())


def number(value: Any) -> int:
    """A sysctl as a whole number, 0 where it is none."""
    return int(value) if str(value).isdigit() else 0


def limits_findings(node: str, facts: Document, wanted: Prepared) -> list[Finding]:
    """Kernel parameters the kernel does not have, users who are not there, memory that will count less."""
    found = []
    for name in sorted(wanted.host_limits_sysctls):
        if facts["sysctls"].get(name) is None:
            message = f"The kernel has no parameter {name}."
            found.append(error("sysctl-unknown", message, "Correct host_limits_sysctls.", node))
    for name in wanted.users:
        if facts["users"][name]["uid"] is None:
            message = f"There is no user {name}."
            found.append(error("user-unknown", message, "Correct docker_users or host_limits_linger.", node))
    name = "vm.min_free_kbytes"
    now, then = (number(held.get(name)) for held in (facts["sysctls"], wanted.host_limits_sysctls))
    if now and then > now:
        less = 1.5 * (then - now) / (1 << 20)  # the high watermark is one and a half times the lowest
        message = f"{name} goes from {now} to {then}: MemAvailable will be up to {less:.1f} GiB less."
        remedy = "vLLM asks for its share of MemAvailable: run preflight again afterwards."
        found.append(warning("memory-reserve-grows", message, remedy, node))
    return found


# --- storage ---------------------------------------------------------------------------------------------------------


def storage_todo(facts: Document, wanted: Prepared) -> Todo:
    """``packages``, ``format``, ``mounts``, ``cache`` (a directory to make, or empty), ``probe`` (or None)."""
    found = [
        place
        for place in disks.places(wanted.storage_mounts, facts, wanted.storage_format_allowed)
        if not place.problem
    ]
    fresh = [place for place in found if place.device]
    mounts = [mount for place in found if place.uuid for mount in entries(place, facts)]
    cache = wanted.storage_cache_path
    if ((facts.get("files") or {}).get(cache) or {}).get("exists", not cache):
        cache = ""
    todo = probe.probe_todo(facts) if wanted.probes and not serving(facts) else None
    packages = lacking(facts, dict.fromkeys(MKFS_PACKAGES[place.mount.fstype] for place in fresh))
    packages += lacking(facts, ["fio"]) if todo else []
    keep: list[dict[str, Any]] = [{"kind": "package", "name": name} for name in packages]
    keep += [{"kind": "disk", "name": f"{place.device} ({place.mount.disk})"} for place in fresh]
    keep += [
        {"kind": "fstab", "name": m["path"], "ours": f"{m['src']} {m['path']} {m['fstype']} {m['opts']} 0 0"}
        for m in mounts
        if m["state"] == MOUNTED
    ]
    keep += [{"kind": "directory", "name": place} for place in [*(m["path"] for m in mounts), cache] if place]
    return {
        "keep": keep,
        "packages": packages,
        "format": [
            {"device": place.device, "fstype": place.mount.fstype, "opts": f"-L {disks.LABEL}"} for place in fresh
        ],
        "mounts": mounts,
        "cache": cache,
        "probe": todo,
    }


# States of the mount module: mounted now and at boot as its line says; the options of that line taken up once more.
MOUNTED, REMOUNTED = "mounted", "remounted"

# Options that the kernel shows as they were asked for; ro is not put right, since it may be the kernel's answer to a
# disk that fails. [mount(8), proc_pid_mounts(5)]
SHOWN = frozenset(("noatime", "nodiratime", "nosuid", "nodev", "noexec", "sync", "dirsync", "lazytime"))


def entries(place: disks.Place, facts: Document) -> list[dict[str, str]]:
    """What the mount module takes; nothing where the file system is mounted now and at boot, with these options."""
    mount, options = place.mount, place.mount.opts.split(",")
    now = any(v.get("uuid") == place.uuid and mount.path in v["mountpoints"] for v, _disk in disks.volumes(facts))
    lines = [line for line in facts.get("fstab") or [] if line["target"] == mount.path]
    line = {"source": f"UUID={place.uuid}", "target": mount.path, "fstype": mount.fstype, "options": options}
    live = [set(one["options"]) for one in facts.get("mounts") or [] if one["target"] == mount.path]
    state = MOUNTED
    if now and lines == [line]:
        if not live or {*options} & SHOWN == live[-1] & SHOWN:
            return []
        state = REMOUNTED
    given = {"src": f"UUID={place.uuid}", "path": mount.path, "fstype": mount.fstype, "opts": mount.opts}
    return [given | {"state": state}]


def storage_findings(node: str, facts: Document, wanted: Prepared) -> list[Finding]:
    """Disks that must not or cannot be taken."""
    places = disks.places(wanted.storage_mounts, facts, wanted.storage_format_allowed)
    found = [place.problem or fstab_problem(place.mount.path, facts) for place in places]
    return [replace(problem, node=node) for problem in found if problem]


def fstab_problem(path: str, facts: Document) -> Finding | None:
    """Several lines of fstab for one mount point, or one that spells it otherwise: systemd takes the first it meets."""
    held = [line for line in facts.get("fstab") or [] if str(line["target"]).rstrip("/") == path]
    if len(held) < 2 and all(line["target"] == path for line in held):
        return None
    lines = ", ".join(f"{line['source']} {line['target']}" for line in held)
    message = f"/etc/fstab must have one line for {path} and has: {lines}."
    return error("fstab-repeated", message, "Take out by hand those that are no longer meant.")


def node_findings(node: str, facts: Document, wanted: Prepared) -> list[Finding]:
    """All that speaks against preparing this node so, before anything is changed."""
    found = storage_findings(node, facts, wanted) + limits_findings(node, facts, wanted)
    return found + docker_findings(node, facts, wanted)
