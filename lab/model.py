"""The lab's checkpoint: a tiny model trained on the spot by the engine, laid out and listed like the real one."""

from __future__ import annotations

import platform
from pathlib import Path

from gb10 import weights_manifest
from lab.cache import atomic_dir, cache_dir, digest
from lab.run import run, say

TRAINER = Path(__file__).with_name("train_model.py")
TRAIN_SECONDS = 600


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
    """As ``gb10 weights manifest`` makes it."""
    weights_manifest.write(directory / weights_manifest.MANIFEST, weights_manifest.of_directory(directory))
