"""The API key an operator gives: what is refused before a node is contacted. Nothing here says any of it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gb10 import rank_container
from gb10.findings import Finding, error

SHORTEST = 16
# All that a bearer token may hold (RFC 6750, b64token): no client could send another.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
# On the command line: serve_api_key=..., serve_api_key: ..., "serve_api_key": ...
GIVEN = re.compile(r"\bserve_api_key[\"']?\s*[=:]")


def refusals(key: object, extra_vars: Iterable[str], launcher: str) -> list[Finding]:
    """Why a key cannot be used, without saying any of it. ``extra_vars``: each ``-e`` as it was typed."""
    found = shown(extra_vars)
    if not key:
        return found
    fault = invalid(key)
    if fault:
        remedy = "Make one: openssl rand -hex 24."
        found.append(error("api-key-invalid", f"serve_api_key {fault}.", remedy))
    if launcher == rank_container.SPARKRUN:
        message = "serve_api_key is given, and sparkrun would write it into its recipe and onto command lines."
        remedy = "Take serve_launcher: docker, or put nginx in front of the endpoint (docs/proxy.md)."
        found.append(error("api-key-launcher", message, remedy))
    return found


def shown(extra_vars: Iterable[str]) -> list[Finding]:
    """The finding where a key stands on a command line."""
    if not any(GIVEN.search(given) for given in extra_vars if not given.startswith("@")):
        return []
    message = "serve_api_key was given with -e: every process list of this machine showed it."
    remedy = "Take another key; give it as GB10_API_KEY in the environment, or from a vault (-e @FILE is one way)."
    return [error("api-key-on-command-line", message, remedy)]


def invalid(key: object) -> str:
    """What is wrong with a key, in words that follow its name; empty for a good one."""
    if not isinstance(key, str):
        return "is no text: quote it"
    if not TOKEN.fullmatch(key):
        return "holds what no bearer token may: letters, digits and -._~+/ are allowed, and = at its end"
    if len(key) < SHORTEST:
        return f"has {len(key)} characters, {SHORTEST} are the least"
    return ""
