"""Each role on lab nodes: check mode predicts, converge acts, a second run changes nothing, testinfra proves it."""

from __future__ import annotations

import pytest
from lab_run import molecule, play, recap
from support import ROOT

ROLES = ("preflight", "storage", "docker", "host_limits", "fabric", "nccl", "images", "weights")


@pytest.mark.parametrize("role", ROLES)
def test_role(role: str) -> None:
    scenario = ROOT / f"molecule/{role}"
    settings = [f"-e@{path}" for path in sorted(scenario.rglob("settings.yml"))]
    if (scenario / "prepare.yml").exists():
        molecule("prepare", role, "--force")  # molecule thinks the shared lab prepared once and for all
    try:
        for act in ("check", "converge", "idempotence"):
            molecule(act, role)
        again = play(f"molecule/{role}/converge.yml", "--check", *settings)
        assert again.returncode == 0, again.stdout[-3000:]
        assert not any(numbers["changed"] for numbers in recap(again).values()), again.stdout[-3000:]
        molecule("verify", role)
    finally:
        if (scenario / "cleanup.yml").exists():
            molecule("cleanup", role)
