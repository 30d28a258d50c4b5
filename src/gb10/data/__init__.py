"""Constants of the field, one YAML file a subject, each value with its source. The package's only file access."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml


@cache
def load(name: str) -> dict[str, Any]:
    """The data file ``<name>.yml`` as a dict. Cached and shared: do not change what it returns.

    Raises FileNotFoundError when there is no such file, ValueError when it is not a mapping.
    """
    text = resources.files(__name__).joinpath(f"{name}.yml").read_text(encoding="utf-8")
    loaded = yaml.safe_load(text)
    if not isinstance(loaded, dict):
        raise ValueError(f"{name}.yml must be a mapping")
    return loaded
