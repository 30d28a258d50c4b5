"""The lab's two rank images: a small Debian root, the seven patch files at their real paths, and no engine of its own.

Written as `docker save` archives without any Docker, so that equal inputs give equal image ids everywhere. The engine
that `vllm` starts is the tree mounted at /srv/lab/engine.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Layer:
    """One layer: the bytes of its tar and their digest."""

    data: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def ensure() -> Path:
    """Return the directory of images.json and the archives, made when it is not in the cache (6 s, 2 x 43 MB)."""
    source = node_image.choose_source(node_image.read_sources(Path("/etc/apt")), node_image.host_release())
    architecture = run(["dpkg", "--print-architecture"], timeout=10).stdout.strip()
    inputs = [FILES / "vllm", *sorted(FILES.glob("patched/*.py")), *sorted(FILES.glob("stock/*.py"))]
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
    """Write both archives and images.json into ``dest``, from the tar of a root filesystem and the lab's files."""
    base = Layer(_tar(_root_entries(root, files)))
    patched = Layer(_tar(_patch_entries(files / "patched", PATCHES)))
    stock = Layer(_tar(_patch_entries(files / "stock", {name: PATCHES[name] for name in STOCK})))
    images = {}
    for tag, layers in {LATEST: [base, patched], ENGRAM_MEM: [base, patched, stock]}.items():
        name = f"{tag.partition(':')[2]}.tar"
        config = _config(tag, layers, architecture)
        archive = _archive(tag, config, layers)
        (dest / name).write_bytes(archive)
        images[tag] = {
            "archive": name,
            "archive_sha256": hashlib.sha256(archive).hexdigest(),
            "image_id": f"sha256:{hashlib.sha256(config).hexdigest()}",
            "size": len(archive),
            "layers": [f"sha256:{layer.sha256}" for layer in layers],
        }
    (dest / "images.json").write_text(_json({"schema": 1, "images": images}).decode() + "\n")


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


def _patch_entries(source: Path, paths: Mapping[str, str]) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """The named files at their places under ROOT, with the directories above them."""
    entries: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    for name, path in paths.items():
        full = f"{ROOT}/{path}"
        for parent in list(Path(full).parents)[:-1]:
            entries[parent.as_posix()] = (_info("", tarfile.DIRTYPE, 0o755), b"")
        entries[full] = (_info("", tarfile.REGTYPE, 0o644), (source / name).read_bytes())
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


def _config(tag: str, layers: Iterable[Layer], architecture: str) -> bytes:
    """The image's configuration, whose SHA-256 is the image id. No entrypoint: the container's argv is the rank's."""
    layers = list(layers)
    when = "2024-01-01T00:00:00Z"
    return _json(
        {
            "architecture": architecture,
            "os": "linux",
            "created": when,
            "config": {
                "Cmd": ["/bin/bash"],
                "Entrypoint": None,
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "Labels": {"gb10.lab": "true", "gb10.lab.image": tag},
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.sha256}" for layer in layers]},
            "history": [{"created": when, "created_by": "gb10 lab"} for _ in layers],
        }
    )


def _archive(tag: str, config: bytes, layers: Iterable[Layer]) -> bytes:
    """The `docker save` archive of one image."""
    layers = list(layers)
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": [f"{layer.sha256}/layer.tar" for layer in layers]}]
    files = {name: config, "manifest.json": _json(manifest)}
    files |= {f"{layer.sha256}/layer.tar": layer.data for layer in layers}
    entries = {path: (_info("", tarfile.REGTYPE, 0o644), data) for path, data in files.items()}
    entries |= {layer.sha256: (_info("", tarfile.DIRTYPE, 0o755), b"") for layer in layers}
    return _tar(entries)


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
