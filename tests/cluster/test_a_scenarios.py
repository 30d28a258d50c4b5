"""Each role on lab nodes: check mode predicts, converge acts, a second run changes nothing, testinfra proves it."""

from __future__ import annotations

import pytest
from lab_run import molecule
from support import ROOT

ROLES = ("preflight", "docker", "host_limits", "storage", "fabric", "nccl", "images", "weights")


@pytest.mark.parametrize("role", ROLES)
def test_role(role: str) -> None:
    if (ROOT / f"molecule/{role}/prepare.yml").exists():
        molecule("prepare", role, "--force")  # molecule thinks the shared lab prepared once and for all
    molecule("test", role)
