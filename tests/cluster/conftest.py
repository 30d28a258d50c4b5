"""The lab is made before the first of these tests and removed after the last, also when one fails.

GB10_KEEP_LAB=1 leaves it up for the next run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from lab_run import molecule, run


@pytest.fixture(scope="session", autouse=True)
def _lab() -> Iterator[None]:
    molecule("reset", "default")  # what it remembers of a lab that is gone
    try:
        molecule("create", "default", seconds=2400)
        yield
    finally:
        if not os.environ.get("GB10_KEEP_LAB"):
            molecule("destroy", "default", seconds=300)
            run([sys.executable, "-m", "lab", "down"], 300)  # where molecule believes there is nothing to destroy
