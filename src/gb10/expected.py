"""What nodes are judged against: the settings of an assessment, parsed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gb10.findings import Finding, error
from gb10.settings import (
    PORT,
    BadValue,
    Parser,
    choice,
    flag,
    integer,
    mapping,
    maybe_text,
    nullable,
    sequence,
    shown,
)


def _setting(parse: Parser, default: Any, variable: bool = True) -> Any:
    """A field with its parser; the default stands where the setting is not given or null."""
    about = {"parse": parse, "variable": variable}
    if isinstance(default, dict | list):
        return field(default_factory=lambda: type(default)(default), metadata=about)
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Expected:
    """Settings of ``assess``. The first part are variables of group_vars and role defaults, named as there."""

    api_port: int = _setting(PORT, 8000)
    master_port: int = _setting(PORT, 29501)
    engram: str = _setting(choice("memory", "disk", "none"), "memory")
    nccl_transport: str = _setting(choice("roce", "socket"), "roce")
    fabric_mtu: int | None = _setting(nullable(integer(576, 65535)), None)
    weights_path: str = _setting(maybe_text, "")
    weights_source: str = _setting(maybe_text, "")
    images_source: str = _setting(maybe_text, "")
    storage_weights_mount: str = _setting(maybe_text, "")
    storage_mounts: list[Any] = _setting(sequence, [])
    preflight_require_gpu: bool = _setting(flag, True)
    preflight_arch: str = _setting(maybe_text, "aarch64")
    # What the controller holds: file path -> bytes; shards with Engram tables; image name -> gb10.layout.Image;
    # node -> bytes its image takes.
    weights_manifest: dict[str, Any] | None = _setting(mapping, None, variable=False)
    engram_shards: list[Any] = _setting(sequence, [], variable=False)
    images: dict[str, Any] = _setting(dict, {}, variable=False)
    image_space: dict[str, Any] = _setting(mapping, {}, variable=False)
    # Nodes on which the fabric role will apply its netplan file: their rails have no address yet.
    fabric_pending: list[Any] = _setting(sequence, [], variable=False)
    # In place of those of data/nodes.yml.
    kernel_faults: list[Any] | None = _setting(sequence, None, variable=False)
    free_margin_bytes: int | None = _setting(integer(0, 1 << 50), None, variable=False)

    def cures(self, role: str) -> bool:
        """Whether ``role`` will put right what it is responsible for; a finding about that is then a warning."""
        mounted = [str(item.get("path", "")).rstrip("/") for item in self.storage_mounts if isinstance(item, Mapping)]
        return {
            "docker": True,
            "images": bool(self.images_source),
            "weights": bool(self.weights_source),
            "storage": self.storage_weights_mount.rstrip("/") in mounted,
        }[role]


# Variables an assessment reads.
SETTINGS = tuple(item.name for item in fields(Expected) if item.metadata["variable"])


def read_expected(settings: Mapping[str, Any]) -> tuple[Expected, list[Finding]]:
    """The settings, with one finding per unknown or bad one (which then has its default)."""
    values: dict[str, Any] = {}
    findings = []
    known = {item.name: item for item in fields(Expected)}
    for name, value in settings.items():
        if name not in known:
            findings.append(
                error("setting-unknown", f"assess knows no setting {name}.", "Remove it, or correct its name.")
            )
        elif value is not None:
            try:
                values[name] = known[name].metadata["parse"](value)
            except BadValue as bad:
                message = f"{name} is {shown(value)} but must be {bad}."
                findings.append(error("setting-invalid", message, "Correct the variable."))
    return Expected(**values), findings
