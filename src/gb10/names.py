"""Names of variables and profiles: what exists, what is a slip of the finger."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache

from gb10.findings import Finding, error

# Close enough to a known name to be a slip rather than a variable of the operator's own. max_model_length against
# max_model_len has 0.9; profile_dir against profile_env 0.73.
SLIP = 0.85


def unknown_variables(given: Iterable[str], known: Iterable[str], prefixes: Iterable[str]) -> list[Finding]:
    """One error per variable that carries one of our prefixes (``serve_``, ...) or nearly a known name, and is none.

    Ansible and argument specs let such variables through in silence.
    """
    names = tuple(sorted(set(known)))
    known_set = set(names)
    starts = tuple(prefixes)
    findings = []
    for name in sorted(set(given) - known_set):
        ours = name.startswith(starts)
        near = nearest(name, names, 0.5 if ours else SLIP)
        if not ours and not near:
            continue
        remedy = f"Did you mean {near[0]}?" if near else "Remove it or rename it: the prefix is reserved."
        findings.append(error("variable-unknown", f"{name} is no variable of this project.", remedy))
    return findings


@cache
def nearest(name: str, names: tuple[str, ...], cutoff: float) -> list[str]:
    """The one name that is like enough, if any. Clusters planned together ask the same again and again."""
    return difflib.get_close_matches(name, names, n=1, cutoff=cutoff)


def group_of(profile: str) -> str:
    """``tp8-300k`` -> ``profile_tp8_300k``: the Ansible group, and the file in group_vars."""
    return "profile_" + profile.replace("-", "_")


def profile_findings(profile: str, profiles: Iterable[str]) -> list[Finding]:
    """An error when the profile is empty or not one of ``profiles``."""
    choices = ", ".join(sorted(profiles))
    if not profile:
        return [error("profile-missing", "No profile is chosen.", f"Give -e profile=NAME with one of: {choices}.")]
    if profile not in profiles:
        near = difflib.get_close_matches(profile, list(profiles), n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        message = f"There is no profile {profile!r}.{hint}"
        return [error("profile-unknown", message, f"The profiles are: {choices}.")]
    return []
