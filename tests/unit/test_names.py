"""Misspelt variables and unknown profiles (case 9)."""

from __future__ import annotations

import pytest

from gb10.names import group_of, profile_findings, unknown_variables
from gb10.settings import NAMES

PREFIXES = ("serve_", "images_", "container_")
KNOWN = [*NAMES, "serve_ready_timeout"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("serve_max_model_length", "max_model_len"),
        ("max_model_length", "max_model_len"),
        ("gpu_memory_utilisation", "gpu_memory_utilization"),
        ("serve_ready_timeuot", "serve_ready_timeout"),
        ("container_enviroment", "container_env"),
    ],
)
def test_a_slip_is_refused_with_the_nearest_name(given: str, meant: str) -> None:
    found = unknown_variables([given], KNOWN, PREFIXES)
    assert [f.code for f in found] == ["variable-unknown"]
    assert given in found[0].message
    assert meant in found[0].remedy


@pytest.mark.parametrize("given", ["max_model_len", "my_site", "rack", "serve_ready_timeout", "profile_owner"])
def test_known_and_foreign_names_pass(given: str) -> None:
    assert unknown_variables([given], KNOWN, PREFIXES) == []


@pytest.mark.parametrize(
    ("profile", "code"), [("", "profile-missing"), ("tp8", "profile-unknown"), ("tp8-300K", "profile-unknown")]
)
def test_an_unknown_profile_is_refused_with_the_list(profile: str, code: str) -> None:
    found = profile_findings(profile, ["tp8-300k", "tp8-1m", "tp4-300k"])
    assert [f.code for f in found] == [code]
    assert "tp4-300k, tp8-1m, tp8-300k" in found[0].remedy


def test_a_profile_is_a_group() -> None:
    assert group_of("tp8-300k") == "profile_tp8_300k"
