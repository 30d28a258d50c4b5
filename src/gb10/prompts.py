"""The benchmark's prompts: the same for the same seed, on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from gb10 import data


def prompt_set(seed: int) -> list[str]:
    """The prompts of a seed, each from a task and a subject."""
    known = data.load("benchmark")
    tasks, subjects = known["tasks"], known["subjects"]
    found = []
    for number in range(known["prompts"]):
        chosen = int.from_bytes(sha256(f"{seed}/{number}".encode()).digest()[:8], "big")
        task, subject = chosen % len(tasks), chosen // len(tasks) % len(subjects)
        found.append(str(tasks[task]).format(subjects[subject]))
    return found


def digest(prompts: Sequence[str]) -> str:
    """SHA-256 of a set, for the record."""
    return sha256("\n".join(prompts).encode()).hexdigest()
