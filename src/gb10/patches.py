"""The files that make a rank image of a base: patched ones from a directory or tarball, stock ones from a checkout.

Nothing goes into an image whose sha256 nobody gave, or that is not of the commit that was meant.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path

from gb10.findings import Finding, error

GIT_SECONDS = 60
# The package's directory inside of vLLM's repository.
PACKAGE = "vllm"

Sums = Mapping[str, Mapping[str, str]]


class Refused(Exception):
    """Files that do not go into an image; ``findings`` say why."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__(findings[0].message)
        self.findings = findings


def patched(source: str, names: Collection[str], known: Sums) -> dict[str, bytes]:
    """Content by patch file, from a directory or a tarball. Raises Refused."""
    path = Path(source).expanduser()
    try:
        found = {n: (path / n).read_bytes() for n in names if (path / n).is_file()} if path.is_dir() else None
        if found is None:
            found = unpacked(path, names)
    except (OSError, EOFError, tarfile.TarError) as problem:
        remedy = "Give a directory or tarball with the patch files."
        raise Refused([error("patch-source-unreadable", f"images_patch_source {path}: {problem}.", remedy)]) from None
    return proved(found, names, known, "patched", f"images_patch_source {path}")


def unpacked(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """The files of a tarball, wherever in it they are. Raises OSError and tarfile.TarError."""
    found: dict[str, bytes] = {}
    with tarfile.open(path) as tar:
        for item in tar:
            name = Path(item.name).name
            if name in names and item.isreg():
                stream = tar.extractfile(item)
                data = stream.read() if stream else b""
                if found.get(name, data) != data:
                    raise tarfile.TarError(f"{name} is there twice with different content")
                found[name] = data
    return found


def stock(checkout: str, commit: str, paths: Mapping[str, str], known: Sums) -> dict[str, bytes]:
    """Content by patch file as vLLM has it at ``commit``; ``paths``: patch file to its path in the package.

    The checkout's HEAD must be that commit and the files unchanged. Raises Refused.
    """
    root = Path(checkout).expanduser()
    where = f"images_vllm_checkout {root}"
    if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        message = f"images_vllm_commit is {commit!r}."
        raise Refused([error("vllm-commit", message, "Give 7 to 40 digits of the commit, quoted.")])
    remedy = f"git -C {root} checkout {commit}"
    code, head = git(root, "rev-parse", "--verify", "HEAD^{commit}")
    if code:
        raise Refused([error("vllm-checkout", f"{where} is no git checkout ({words(head)}).", "Clone vLLM there.")])
    at = head.decode().strip()
    if not at.startswith(commit):
        raise Refused([error("vllm-checkout", f"{where} is at {at[:12]}, not at {commit}.", remedy)])
    found: dict[str, bytes] = {}
    findings = []
    for name, path in paths.items():
        place = root / PACKAGE / path
        code, data = git(root, "cat-file", "blob", f"{at}:{PACKAGE}/{path}")
        if code:
            findings.append(
                error("vllm-checkout", f"{where} has no {PACKAGE}/{path} at {commit}.", "Correct the path.")
            )
        elif place.is_symlink() or not place.is_file() or place.read_bytes() != data:
            findings.append(error("vllm-checkout", f"{where}: {PACKAGE}/{path} is not as committed.", remedy))
        found[name] = data
    if findings:
        raise Refused(findings)
    return proved(found, list(paths), known, "stock", where)


def proved(found: Mapping[str, bytes], names: Collection[str], known: Sums, kind: str, where: str) -> dict[str, bytes]:
    """All ``names``, each with the sha256 it must have. Raises Refused."""
    findings = []
    for name in names:
        wanted = known.get(name, {}).get(kind)
        if name not in found:
            findings.append(error("patch-missing", f"{where} has no {name}.", "Complete it."))
        elif not wanted:
            message = f"{name} ({kind}) has no sha256 to be proved by."
            findings.append(error("patch-unpinned", message, f"Give images_patch_sha256.{name}.{kind}."))
        elif hashlib.sha256(found[name]).hexdigest() != wanted:
            is_what = hashlib.sha256(found[name]).hexdigest()[:12]
            message = f"{where}: {name} has sha256 {is_what}, images_patch_sha256 says {wanted[:12]} ({kind})."
            findings.append(error("patch-wrong", message, "Give the file that was meant, or its sum."))
    if findings:
        raise Refused(findings)
    return {name: found[name] for name in names}


def git(root: Path, *arguments: str) -> tuple[int, bytes]:
    """Exit code and output; what it says about a failure in place of the latter."""
    # Somebody else's directory is read, but nothing it configures is run.
    argv = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(root), *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=GIT_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as problem:
        return 1, str(problem).encode()
    return done.returncode, done.stderr if done.returncode else done.stdout


def words(said: bytes) -> str:
    """The last line of what a program said."""
    return (said.decode(errors="replace").strip().splitlines() or ["no word"])[-1].rstrip(".")
