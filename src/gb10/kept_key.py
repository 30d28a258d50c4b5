"""What becomes of the API key that nodes keep, in a run by profile: none is dropped in silence."""

from __future__ import annotations

from collections.abc import Iterable

from gb10.findings import Finding, error

LEAVE, KEEP, REMOVE = "leave", "keep", "remove"


def decided(given: bool, remove: bool, kept: Iterable[str], serves: bool) -> tuple[str, list[Finding]]:
    """What a run by profile does with the key, and why it may not. ``kept``: nodes that keep one.

    ``serves``: the run starts ranks, or looks whether it could.
    """
    nodes = ", ".join(kept)
    if given and remove:
        message = "serve_api_key is given, and serve_api_key_remove is set."
        return LEAVE, [error("api-key-contradiction", message, "Give one of the two.")]
    if given:
        return KEEP, []
    if remove:
        return REMOVE, []
    if nodes and serves:
        message = f"The endpoint has an API key (kept on {nodes}), and this run has none: it would be open to all."
        remedy = "Give the key (GB10_API_KEY, or serve_api_key from a vault), or say serve_api_key_remove: true."
        return LEAVE, [error("api-key-missing", message, remedy)]
    return LEAVE, []
