"""Each role on lab nodes: check mode predicts, converge acts, a second run changes nothing, testinfra proves it."""

from __future__ import annotations

import pytest
from lab_run import molecule
from support import ROOT

ROLES = ("preflight", "storage", "docker", "host_limits", "fabric", "nccl", "images", "weights")


@pytest.mark.parametrize("role", ROLES)
def test_role(role: str) -> None:
    scenario = ROOT / f"molecule/{role}"
    if (scenario / "prepare.yml").exists():
        molecule("prepare", role, "--force")  # molecule thinks the shared lab prepared once and for all
    try:
        for act in ("check", "converge", "idempotence"):
            molecule(act, role)
        molecule("verify", role)
    finally:
        if (scenario / "cleanup.yml").exists():
            molecule("cleanup", role)
