"""The environment of a rank: strings only, merged in a fixed order, with what a node must tell marked as detected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gb10 import data
from gb10.findings import Finding, error, warning
from gb10.nodes import Node
from gb10.settings import Settings, shown

# What only a node can tell reads so in a plan.
DETECTED = "detected"

# Later ones win. One key may be removed again with null.
LAYERS = ("container_base_env", "nccl_env", "profile_env", "container_env")

# Keys a cluster-wide variable must not carry, with the reason.
REFUSED = {
    "VLLM_PORT": "workers inherit it and collide on one port",
    "VLLM_HOST_IP": "it differs per node and is set from fabric_address",
    "VLLM_API_KEY": "it would stand in plans and records; serve_api_key takes it",
}
# All three carry the node's interface.
SOCKETS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
PER_NODE_KEYS = {
    "NCCL_IB_HCA": "nccl_ib_hca",
    "NCCL_IB_GID_INDEX": "nccl_ib_gid_index",
    **dict.fromkeys(SOCKETS, "nccl_socket_ifname"),
}
KEY = re.compile(r"^[A-Za-z_]\w*$", re.ASCII)

# NCCL reads these with strtoll: a suffix is silently cut off.
INTEGERS = ("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_IB_TC")

# Traffic class of the fabric role's lossless class: its DSCP in the upper six bits, and ECN capable.
LOSSLESS_TC = str(4 * int(data.load("fabric")["lossless"]["dscp"]) + 2)


def shared_environment(settings: Settings) -> tuple[dict[str, str], list[Finding]]:
    """What all ranks share: the layers merged, each value a string."""
    merged: dict[str, str] = {}
    findings: list[Finding] = []
    for layer in LAYERS:
        values: Mapping[str, Any] = getattr(settings, layer)
        for key, value in values.items():
            if not KEY.match(key):
                findings.append(
                    error(
                        "env-key-invalid",
                        f"{layer} has a key {shown(key)}, which is no name of a variable.",
                        "Use letters, digits and _.",
                    )
                )
            elif value is None:
                merged.pop(key, None)
            elif _is_string(value):
                merged[key] = str(value)
            else:
                merged.pop(key, None)
                findings.append(
                    error(
                        "env-not-string",
                        f"{layer}.{key} is {shown(value)}, not a line of text.",
                        f'Quote it: {key}: "...".',
                    )
                )
    findings += _judged(merged)
    return merged, findings


def _is_string(value: Any) -> bool:
    """One line of text, or a single digit that YAML cannot have bent (0644 arrives as 420, 2.30 as 2.3)."""
    if isinstance(value, str):
        return value != "" and not set(value) & set("\n\r\0")
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 7


def _judged(env: Mapping[str, str]) -> list[Finding]:
    findings = []
    for key, reason in REFUSED.items():
        if key in env:
            findings.append(error("env-refused", f"{key} is set for the ranks, but {reason}.", f"Remove {key}."))
    for key, variable in PER_NODE_KEYS.items():
        if key in env:
            findings.append(
                error(
                    "env-per-node",
                    f"{key} is set for all ranks, but it differs per node.",
                    f"Remove it; where detection is wrong, set {variable} in that host's variables.",
                )
            )
    for key in INTEGERS:
        if key in env and not (env[key].isascii() and env[key].strip().isdigit()):
            findings.append(
                error(
                    "env-not-integer",
                    f"{key} is {shown(env[key])} but NCCL reads an integer.",
                    "Write all digits: 1048576, not 1M.",
                )
            )
    return findings


def rank_environment(shared: Mapping[str, str], settings: Settings, node: Node) -> dict[str, str]:
    """The whole environment of one rank, keys sorted."""
    interface = node.socket_ifname or DETECTED
    env = dict(shared)
    env["VLLM_HOST_IP"] = node.address
    for key in SOCKETS:
        env[key] = interface
    if settings.nccl_transport == "roce":
        env["NCCL_IB_HCA"] = node.ib_hca or DETECTED
        env["NCCL_IB_GID_INDEX"] = node.gid_index or DETECTED
        if settings.fabric_lossless:
            env.setdefault("NCCL_IB_TC", LOSSLESS_TC)
    else:
        env["NCCL_IB_DISABLE"] = "1"
    return dict(sorted(env.items()))


def environment_warnings(env: Mapping[str, str], settings: Settings) -> list[Finding]:
    """Settings that work against each other without being wrong by themselves."""
    findings = []
    if (
        settings.fabric_lossless
        and settings.nccl_transport == "roce"
        and env.get("NCCL_IB_TC", LOSSLESS_TC) != LOSSLESS_TC
    ):
        findings.append(
            warning(
                "nccl-tc-differs",
                f"NCCL_IB_TC is {env['NCCL_IB_TC']} while fabric_lossless prepares traffic class {LOSSLESS_TC}.",
                "Remove NCCL_IB_TC: it follows fabric_lossless.",
            )
        )
    return findings
