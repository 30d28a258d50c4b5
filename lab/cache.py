"""Where the lab keeps what is slow to make: directories keyed by a hash of what goes into them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DIGEST_LENGTH = 12


def cache_dir() -> Path:
    """Return the lab's cache directory, made if absent: $GB10_LAB_CACHE or the user's cache."""
    named = os.environ.get("GB10_LAB_CACHE")
    if named:
        path = Path(named).expanduser().absolute()
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        path = Path(base).expanduser().absolute() / "gb10-lab"
    path.mkdir(parents=True, exist_ok=True)
    return path


def digest(*parts: str | bytes | Path) -> str:
    """Return the first 12 hex digits of the SHA-256 over ``parts``; a Path stands for its file's content.

    Each part's length goes in before it, so ("ab", "c") and ("a", "bc") differ.
    """
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        total.update(f"{len(data)}:".encode())
        total.update(data)
    return total.hexdigest()[:_DIGEST_LENGTH]


@contextmanager
def atomic_dir(dest: Path) -> Iterator[Path]:
    """Yield an empty directory beside ``dest`` that becomes ``dest`` on success and vanishes on failure.

    An existing ``dest`` is replaced. An interrupt (Ctrl-C) counts as a failure. Where another process made
    ``dest`` meanwhile, the later one wins: both were made from the same inputs.
    """
    dest.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{dest.name}.", suffix=".tmp", dir=dest.parent))
    temporary.chmod(0o755)
    try:
        yield temporary
        if dest.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{dest.name}.", suffix=".old", dir=dest.parent))
            dest.rename(old / "old")
            temporary.rename(dest)
            shutil.rmtree(old, ignore_errors=True)
        else:
            temporary.rename(dest)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
