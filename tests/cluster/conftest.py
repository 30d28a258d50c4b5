"""The lab is made before the first of these tests and removed after the last, also when one fails.

A lab that was up before stays up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from lab_run import molecule, run


@pytest.fixture(scope="session", autouse=True)
def _lab() -> Iterator[None]:
    was_up = run([sys.executable, "-m", "lab", "status"], 120).returncode == 0
    molecule("reset", "default")  # what it remembers of a lab that is gone
    try:
        molecule("create", "default", seconds=2400)
        yield
    finally:
        if not was_up:
            molecule("destroy", "default", seconds=300)
            run([sys.executable, "-m", "lab", "down"], 300)  # where molecule believes there is nothing to destroy
