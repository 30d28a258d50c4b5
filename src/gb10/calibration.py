"""The calibration file of a cluster: what its own boots measured, in place of what others published. Reads and writes.

``{schema, measured: {key: {components: {name: GiB}, run, max_model_len}}}``; ``engine_report.key`` and ``learn`` say
what stands there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gb10 import whole

SCHEMA = 1
MOST_GIB = 1 << 16  # as memory_input takes them


class Unreadable(Exception):
    """A file that is none of ours; one line of text."""


def measurement_key(model: object, tensor_parallel: object, engram: object) -> str:
    """What a measurement is of."""
    return f"{model} tp{tensor_parallel} engram-{engram}"


def read(path: str) -> dict[str, Any]:
    """What was measured, by key; empty where there is no file yet. Raises Unreadable."""
    try:
        document = json.loads(Path(path).expanduser().read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise Unreadable(f"{path}: {problem}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise Unreadable(f"{path}: it is no calibration of schema {SCHEMA}")
    measured = document.get("measured")
    if not isinstance(measured, dict) or not all(map(_good, measured.values())):
        raise Unreadable(f"{path}: its figures have not the form they should have")
    return measured


def _good(entry: Any) -> bool:
    components = entry.get("components") if isinstance(entry, dict) else None
    length = entry.get("max_model_len", 0) if isinstance(entry, dict) else 0
    return (
        isinstance(components, dict)
        and isinstance(length, int)
        and all(
            isinstance(gib, int | float) and not isinstance(gib, bool) and 0 <= gib <= MOST_GIB
            for gib in components.values()
        )
    )


def keep(path: str, key: str, found: Mapping[str, Any]) -> None:
    """Puts one measurement in, in place of an earlier one. Raises Unreadable and OSError."""
    document = {"schema": SCHEMA, "measured": {**read(path), key: dict(found)}}
    place = Path(path).expanduser()
    place.parent.mkdir(parents=True, exist_ok=True)
    whole.write(place, (json.dumps(document, indent=2, sort_keys=True) + "\n").encode())
