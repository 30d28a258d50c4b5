"""Each role on lab nodes: check mode predicts, converge acts, a second run changes nothing, testinfra proves it."""

from __future__ import annotations

import pytest
from lab_run import molecule

ROLES = ("preflight", "docker", "host_limits", "storage", "fabric", "nccl", "images", "weights")


@pytest.mark.parametrize("role", ROLES)
def test_role(role: str) -> None:
    molecule("test", role)
