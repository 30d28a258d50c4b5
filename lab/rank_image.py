"""The lab's two rank images: a small Debian root, the seven patch files at their real paths, and no engine of its own.

An OCI layout, built as the product builds images (gb10.oci_build) on a base made here: equal inputs give equal digests
everywhere. The engine that `vllm` starts is the tree mounted at /srv/lab/engine.
"""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from gb10 import oci_build
from lab import node_image
from lab.cache import atomic_dir, cache_dir, digest
from lab.run import run, say

FILES = Path(__file__).with_name("files")
ROOT = "usr/local/lib/python3.12/dist-packages/vllm"
LATEST, ENGRAM_MEM = "vllm-dsv41:latest", "vllm-dsv41:engram-mem"
PATCHES = {
    "engram.py": "models/deepseek_v4_1/common/engram.py",
    "model_state.py": "models/deepseek_v4_1/nvidia/model_state.py",
    "weight_utils.py": "model_executor/model_loader/weight_utils.py",
    "attention.py": "models/deepseek_v4_1/attention.py",
    "flashinfer_sparse.py": "models/deepseek_v4_1/nvidia/flashinfer_sparse.py",
    "sparse_swa.py": "v1/attention/backends/mla/sparse_swa.py",
    "sparse_attn_indexer.py": "model_executor/layers/sparse_attn_indexer.py",
}
"""The seven patch files and where they live under ROOT (source: the report's image chapter)."""

STOCK = ("engram.py", "model_state.py", "weight_utils.py")
"""What vllm-dsv41:engram-mem puts back to stock."""

# What the engine's interpreter and packages load from the system, lscpu, which its workers run, and a shell.
PACKAGES = (
    "base-files",
    "bash",
    "coreutils",
    "dash",
    "libbz2-1.0",
    "libc-bin",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libncursesw6",
    "libnuma1",
    "libreadline8t64",
    "libsqlite3-0",
    "libssl3t64",
    "libstdc++6",
    "libuuid1",
    "util-linux",
    "zlib1g",
)
_BEFORE_TIME64 = {"bookworm": {"libreadline8t64": "libreadline8", "libssl3t64": "libssl3"}}
BUILD_SECONDS = 900
EPOCH = 1_704_067_200
"""Time of every file and image, seconds since 1970 (2024-01-01): images differ by content only."""

_MERGED = ("bin", "sbin", "lib", "lib64")
_UNWANTED = re.compile(
    r"(usr/share/(doc|man|info|locale|lintian|menu|gdb|gcc|bug|bash-completion|common-licenses|polkit-1|zoneinfo)"
    r"|usr/lib/[^/]+/gconv|var/(lib/(apt|dpkg)|cache|log)|etc/(apt|resolv\.conf|hostname|hosts)|dev|proc|sys|boot|tmp|run)/?.*"
)


def ensure() -> Path:
    """Return the directory of the OCI layout, made when it is not in the cache (6 s, 43 MB)."""
    source = node_image.choose_source(node_image.read_sources(Path("/etc/apt")), node_image.host_release())
    architecture = run(["dpkg", "--print-architecture"], timeout=10).stdout.strip()
    inputs = [
        FILES / "vllm",
        Path(oci_build.__file__),
        *sorted(FILES.glob("patched/*.py")),
        *sorted(FILES.glob("stock/*.py")),
    ]
    dest = cache_dir() / f"rank-images-{digest(source.suite, architecture, Path(__file__), *inputs)}"
    if dest.is_dir():
        return dest
    say(f"rank images: making {dest.name} from {source.suite}")
    with atomic_dir(dest) as work:
        root = work / "root.tar"
        _make_root(source, root)
        write_images(root, FILES, architecture, work)
        root.unlink()
    return dest


def write_images(root: Path, files: Path, architecture: str, dest: Path) -> None:
    """Write both images into the layout ``dest``, from the tar of a root filesystem and the lab's files."""
    oci_build.start(dest)
    layer = oci_build.put_blob(dest, _tar(_root_entries(root, files)), oci_build.LAYER)
    base = oci_build.put_image(dest, "gb10-lab-base", _config(layer.digest, architecture), [layer])
    latest = oci_build.extend(dest, base, LATEST, _patches(files / "patched", PATCHES), "gb10 lab: patched files")
    stock = oci_build.extend(dest, latest, ENGRAM_MEM, _patches(files / "stock", STOCK), "gb10 lab: stock files")
    oci_build.put_names(dest, [latest, stock])


def _patches(source: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The named files' content by their absolute path in the image."""
    return {f"/{ROOT}/{PATCHES[name]}": (source / name).read_bytes() for name in names}


def _make_root(source: node_image.Source, target: Path) -> None:
    """Unpack PACKAGES without running anything of theirs: fast, and the same every time."""
    names = [_BEFORE_TIME64.get(source.suite, {}).get(name, name) for name in PACKAGES]
    scratch = target.with_name("scratch")
    scratch.mkdir()
    argv = ["unshare", "--mount", "--propagation", "private", "mmdebstrap", "--mode=root", "--variant=extract"]
    argv += [f"--include={','.join(names)}", f"--components={','.join(source.components)}"]
    argv += node_image._apt_options()
    if source.keyring:
        argv.append(f"--keyring={source.keyring}")
    argv += [source.suite, str(target), source.uri]
    environment = {"TMPDIR": str(scratch), "SOURCE_DATE_EPOCH": str(EPOCH)}
    log = target.with_name("build.log")
    run(argv, timeout=BUILD_SECONDS, env=environment, log=log)
    shutil.rmtree(scratch)
    log.unlink()


def _root_entries(root: Path, files: Path) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """What of the root's tar goes into the base layer, by path: no documentation, no package tools, merged /usr."""
    entries: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    with tarfile.open(root) as tar:
        for member in tar:
            name = member.name.removeprefix("./").strip("/")
            first = name.partition("/")[0]
            if (
                name in ("", ".", *_MERGED)
                or _UNWANTED.fullmatch(name)
                or not (member.isfile() or member.isdir() or member.issym() or member.islnk())
            ):
                continue
            name = f"usr/{name}" if first in _MERGED else name
            content = tar.extractfile(member) if member.isfile() or member.islnk() else None
            if member.islnk():
                member.type, member.linkname = tarfile.REGTYPE, ""
            entries[name] = (member, content.read() if content else b"")
    for name in _MERGED:
        entries[name] = (_info(name, tarfile.SYMTYPE, 0o777, f"usr/{name}"), b"")
    for name, mode in {"tmp": 0o1777, "run": 0o755, "proc": 0o755, "sys": 0o755, "dev": 0o755}.items():
        entries[name] = (_info(name, tarfile.DIRTYPE, mode), b"")
    entries.setdefault("usr/bin/sh", (_info("usr/bin/sh", tarfile.SYMTYPE, 0o777, "dash"), b""))
    for path, text in {
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
        "etc/group": "root:x:0:\n",
        "etc/nsswitch.conf": "hosts: files dns\n",
    }.items():
        entries[path] = (_info(path, tarfile.REGTYPE, 0o644), text.encode())
    entries["usr/local/bin/vllm"] = (_info("vllm", tarfile.REGTYPE, 0o755), (files / "vllm").read_bytes())
    return entries


def _info(name: str, kind: bytes, mode: int, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = kind, mode, link
    return info


def _tar(entries: Mapping[str, tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """A tar of ``entries`` that depends on nothing but them: sorted, one time, root's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(entries):
            old, data = entries[name]
            info = _info(name, old.type, old.mode, old.linkname)
            info.mtime, info.size = EPOCH, len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _config(layer: str, architecture: str) -> bytes:
    """The base's configuration."""
    when = "2024-01-01T00:00:00Z"
    return oci_build.dump(
        {
            "architecture": architecture,
            "os": "linux",
            "created": when,
            "config": {
                "Cmd": ["/bin/bash"],
                # As vLLM's images have it: what is built on this must take it away.
                "Entrypoint": ["vllm", "serve"],
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "Labels": {"gb10.lab": "true"},
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [layer]},
            "history": [{"created": when, "created_by": "gb10 lab"}],
        }
    )
