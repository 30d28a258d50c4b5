"""The ledger file of the change history: appended under a lock, never rewritten."""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gb10.history import following


def new_run_id() -> str:
    """UTC time and something random: sorts by time, never the same twice."""
    return time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()) + uuid.uuid4().hex[:8]


def append(path: Path, body: Mapping[str, Any]) -> None:
    """Adds one entry. ValueError where the ledger does not verify, OSError where it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        stream.write(following(stream.read().splitlines(), body) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
