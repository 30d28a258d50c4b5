"""The machine the lab runs on: what it must have, and the Debian packages that are installed for it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from lab.cache import cache_dir
from lab.run import LabError, run, say

Tools = Mapping[str, tuple[str, ...]]

# tool -> the Debian and Ubuntu packages that may hold it: the first one known to apt is taken.
TOOLS = {
    "docker": ("docker-cli", "docker.io"),
    "dockerd": ("docker.io",),
    "mmdebstrap": ("mmdebstrap",),
    "iptables": ("iptables",),
    "ssh": ("openssh-client",),
    "ssh-keygen": ("openssh-client",),
    "unshare": ("util-linux",),
}
# What virtual machines need beside mmdebstrap and ssh.
VM_TOOLS = {
    "mke2fs": ("e2fsprogs",),
    "mmdebstrap": ("mmdebstrap",),
    "qemu-img": ("qemu-utils",),
    "qemu-system-x86_64": ("qemu-system-x86",),
    "ssh": ("openssh-client",),
    "ssh-keygen": ("openssh-client",),
    "unshare": ("util-linux",),
}
MEMORY_BASE_GIB = 2.0
MEMORY_NODE_GIB = 1.2  # a node with its rank serving; measured 10.8 GiB used on the machine with eight
DISK_FRESH_GIB = 8.0
DISK_AGAIN_GIB = 2.0
_ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


def project() -> Path:
    """Return the root of the checkout this package lies in."""
    return Path(__file__).resolve().parents[1]


def extend_path() -> None:
    """Make the administrator's tools findable where root's PATH lacks them (as after a plain `su`)."""
    os.environ["PATH"] = f"{os.environ.get('PATH', '/usr/bin:/bin')}:{_ADMIN_PATH}"


def missing_tools(tools: Tools = TOOLS) -> list[str]:
    """Return the names of the tools that are not on this machine."""
    return [tool for tool in tools if shutil.which(tool) is None]


def platform_problems() -> list[str]:
    """Return why no lab can run here at all, one readable line each; empty when it can."""
    if platform.system() != "Linux":
        return [f"the lab needs Linux, this is {platform.system()}: use a Debian or Ubuntu machine or virtual machine"]
    problems = []
    if os.geteuid() != 0:
        problems.append("the lab makes containers, networks and mounts and must be run as root: use sudo")
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        problems.append("the lab makes its nodes with apt and dpkg, missing here: use Debian 12+ or Ubuntu 24.04+")
    if not Path("/sys/fs/cgroup").is_dir() or not any(Path("/sys/fs/cgroup").iterdir()):
        problems.append("no cgroups at /sys/fs/cgroup: mount them (systemd machines have them)")
    return problems


def resource_problems(nodes: int) -> list[str]:
    """Return what memory or disk is too small for ``nodes`` nodes, one readable line each."""
    problems = []
    total = memory_total_gib(Path("/proc/meminfo").read_text())
    need = MEMORY_BASE_GIB + MEMORY_NODE_GIB * nodes
    if total < need:
        problems.append(
            f"{nodes} nodes need {need:.1f} GiB of memory, there are {total:.1f}: use fewer (--nodes 4, 2, 1)"
        )
    cache = cache_dir()
    fresh = not any(cache.glob("node-*"))
    need = DISK_FRESH_GIB if fresh else DISK_AGAIN_GIB
    free = shutil.disk_usage(cache).free / 2**30
    if free < need:
        problems.append(
            f"{cache} needs {need:.0f} GiB of disk, {free:.1f} are free: set GB10_LAB_CACHE to a larger disk"
        )
    return problems


def memory_total_gib(meminfo: str) -> float:
    """Return MemTotal of a /proc/meminfo text (kB there) in GiB."""
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) / 2**20
    raise LabError("/proc/meminfo has no MemTotal line")


def require(problems: list[str]) -> None:
    """Raise LabError with all ``problems``, if there are any."""
    if problems:
        raise LabError("this machine cannot run the lab:\n  - " + "\n  - ".join(problems))


def install_tools(tools: Tools = TOOLS) -> bool:
    """Install the packages of the missing tools; return whether any were missing."""
    missing = missing_tools(tools)
    if not missing:
        return False
    say(f"installing what is missing: {', '.join(missing)}")
    try:
        _install(missing, tools)
    except LabError:
        # Stale or empty package lists, or an installation interrupted earlier.
        run(["dpkg", "--configure", "-a"], timeout=600, check=False, env=_QUIET)
        run([*_APT, "update"], timeout=600, env=_QUIET)
        _install(missing, tools)
    still = missing_tools(tools)
    if still:
        raise LabError(f"still missing after the installation: {', '.join(still)}; install them by hand")
    return True


_APT = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300"]
_QUIET = {"DEBIAN_FRONTEND": "noninteractive"}


def _install(missing: list[str], tools: Tools) -> None:
    packages = sorted({_known(tools[tool]) for tool in missing})
    run([*_APT, "install", "--yes", "--no-install-recommends", *packages], timeout=1200, env=_QUIET)


def _known(packages: tuple[str, ...]) -> str:
    """Return the first of ``packages`` apt can install."""
    for package in packages:
        listed = run(["apt-cache", "policy", package], timeout=60).stdout
        if "Candidate:" in listed and "Candidate: (none)" not in listed:
            return package
    raise LabError(f"apt knows none of {', '.join(packages)}; run `apt-get update`")
