"""What virtual machines boot: kernel, initial file system and root disk, from the machine's own package source."""

from __future__ import annotations

import shutil
from pathlib import Path

from lab import node_image
from lab.cache import atomic_dir, cache_dir, digest
from lab.run import LabError, run, step

# Beside those of a container node: what a GB10 brings for disks and RDMA, the program of the initial file system.
PACKAGES = (
    "busybox-static",
    "e2fsprogs",
    "earlyoom",
    "fio",
    "ibverbs-providers",
    "ibverbs-utils",
    "netplan.io",
    "nftables",
    "perftest",
    "rdma-core",
    "udev",
    "xfsprogs",
    "xz-utils",
    "zstd",
)
KERNEL = {"debian": ("linux-image-amd64",), "ubuntu": ("linux-image-generic", "linux-modules-extra-generic")}
# Sparse: the weights' and images' margins of free space are real (data/nodes.yml), the machine's disk is not filled.
ROOT_SIZE = "64G"
FILES = ("vmlinuz", "initrd", "root.ext4")
# The kernel's package shall not make an initial file system of its own: ours has what this machine needs, and is small.
_NO_INITRD = {"INITRD": "No"}


def ensure() -> Path:
    """Return the directory of FILES, made when it is not in the cache.

    Raises:
        LabError: this machine is no amd64, or the root could not be made.
    """
    architecture = run(["dpkg", "--print-architecture"], timeout=10).stdout.strip()
    if architecture != "amd64":
        raise LabError(f"virtual machines are made for amd64 only, this is {architecture}: use an amd64 machine")
    release = node_image.host_release()
    source = node_image.choose_source(node_image.read_sources(Path("/etc/apt")), release)
    kernel = KERNEL["ubuntu" if release["ID"] == "ubuntu" else "debian"]
    packages = tuple(sorted({*node_image.packages_for(source.suite), *PACKAGES, *kernel}))
    hooks = [Path(__file__).with_name(name) for name in ("node_setup.sh", "vm_setup.sh")]
    dest = cache_dir() / f"vm-{digest(source.suite, ' '.join(packages), ROOT_SIZE, *hooks)}"
    if not dest.exists():
        with step(f"root of virtual machines ({source.suite}) built"), atomic_dir(dest) as work:
            root = work / "root"
            options = ["--variant=minbase", "--format=directory", *(f"--customize-hook={hook}" for hook in hooks)]
            node_image.bootstrap(source, packages, root, *options, env=_NO_INITRD)
            for name in ("vmlinuz", "initrd"):
                (root / "boot" / name).rename(work / name)
            argv = ["mke2fs", "-q", "-t", "ext4", "-L", "lab-root", "-d", str(root), str(work / "root.ext4"), ROOT_SIZE]
            run(argv, timeout=600)
            shutil.rmtree(root)
    return dest
