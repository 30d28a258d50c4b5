"""The lab's checkpoint: a tiny model trained on the spot by the engine, laid out and listed like the real one."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path

from lab.cache import atomic_dir, cache_dir, digest
from lab.run import run, say

TRAINER = Path(__file__).with_name("train_model.py")
TRAIN_SECONDS = 600
MANIFEST = "manifest.json"


def ensure(engine: Path) -> Path:
    """Return the checkpoint directory, trained with the engine's Python when it is not in the cache (15 s).

    Raises:
        LabError: the training did not reach the right answers, or did not run; with its last lines.
    """
    dest = cache_dir() / f"model-{digest(TRAINER, engine.name, platform.machine())}"
    if dest.is_dir():
        return dest
    say(f"model: training {dest.name}")
    with atomic_dir(dest) as work:
        argv = [str(engine / "bin" / "python"), str(TRAINER), str(work)]
        done = run(argv, timeout=TRAIN_SECONDS, env={"HF_HUB_OFFLINE": "1"})
        for path in work.iterdir():
            path.chmod(0o644)
        write_manifest(work)
        say(done.stdout.strip().splitlines()[-1])
    return dest


def write_manifest(directory: Path) -> None:
    """List every file of ``directory`` with its size in bytes and SHA-256, sorted by path; not the list itself."""
    files = [
        {"path": path.relative_to(directory).as_posix(), "size": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    ]
    document = {"schema": 1, "files": sorted(files, key=lambda entry: str(entry["path"]))}
    (directory / MANIFEST).write_text(json.dumps(document, indent=2) + "\n")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
