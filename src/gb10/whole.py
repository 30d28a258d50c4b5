"""Files that are written whole or not at all, on the controller and on nodes alike."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write(path: Path, data: bytes, mode: int = 0o644, *, durable: bool = False, root: bool = False) -> None:
    """The old content or the new one, never a part; ``durable``: also when the machine loses power. Raises OSError.

    ``root``: root's and its group's, also in a directory that hands down its own group.
    What is written beside the place meanwhile has a hidden name that ends in ``.part``.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            if root:
                os.fchown(handle, 0, 0)
            os.fchmod(handle, mode)
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(handle)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
