"""What stops a relay, as one readable line."""

from __future__ import annotations

import errno
from pathlib import Path


class Problem(Exception):
    """``code`` is a finding's; ``text`` names file and numbers and says what to do."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def blocked(problem: OSError, path: Path | str, doing: str) -> Problem:
    """A Problem for what the operating system refused while ``doing`` something with ``path``."""
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return Problem("fanout-disk-full", f"no space left while {doing} {path}. Free some, and run again.")
    if problem.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return Problem("fanout-read-only", f"{problem.strerror} while {doing} {path}. Make it writable, and run again.")
    return Problem("fanout-blocked", f"{problem.strerror or problem} while {doing} {path}. Look there, and run again.")
