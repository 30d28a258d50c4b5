"""The API key as a node keeps it: a file for root alone, which the head's rank is made with.

For modules of Ansible on nodes: the standard library alone. vLLM reads the key from its environment where no
``--api-key`` is given, so that no command line, label or plan holds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PATH = "/var/lib/gb10/api/key.env"  # the directory is for root alone, too
NAME = "VLLM_API_KEY"


def text(key: str) -> str:
    """The file, as ``docker run --env-file`` takes it."""
    return f"{NAME}={key}\n"


def key_in(lines: Iterable[str]) -> str:
    """The key among ``NAME=value`` lines, of the file or of a container's environment; empty without one."""
    found = [value.strip() for name, _, value in (line.partition("=") for line in lines) if name == NAME]
    return found[-1] if found else ""


def read(path: str) -> str:
    """The key a node keeps; empty where it keeps none. Raises OSError where it may not be read."""
    try:
        return key_in(Path(path).read_text(errors="replace").splitlines())
    except (FileNotFoundError, NotADirectoryError):
        return ""
