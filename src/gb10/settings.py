"""The operator's settings: read once at the edge, typed from there on.

Ansible hands over strings (``-e n=8``), YAML booleans and numbers alike. Each setting is parsed here once; nonsense
becomes a finding that names the variable, the value and what would be right.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gb10.findings import Finding, error

Parser = Callable[[Any], Any]


class BadValue(ValueError):
    """What would be right, in words that follow "must be"."""


def number(low: float, high: float) -> Parser:
    """A finite number in [low, high]; decimal strings are numbers too."""

    def parse(value: Any) -> float:
        wanted = f"a number from {low:g} to {high:g}"
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise BadValue(wanted)
        if isinstance(value, str) and "," in value:
            raise BadValue(f"{wanted}, with a decimal point")
        try:
            result = float(value)
        except (ValueError, OverflowError):
            raise BadValue(wanted) from None
        if not math.isfinite(result) or not low <= result <= high:
            raise BadValue(wanted)
        return result

    return parse


def integer(low: int, high: int) -> Parser:
    """A whole number in [low, high]; digit strings are numbers too, ``1M`` and ``1e6`` are not."""

    def parse(value: Any) -> int:
        wanted = f"a plain integer from {low} to {high}"
        if isinstance(value, str) and value.isascii() and value.strip().isdigit() and len(value.strip()) < 20:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadValue(wanted)
        return value

    return parse


def flag(value: Any) -> bool:
    """A boolean; ``-e flag=false`` arrives as a string and means false."""
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, int | str) and str(value).strip().lower() in words:
        return words[str(value).strip().lower()]
    raise BadValue("true or false")


def text(value: Any) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise BadValue("a string that is not empty")
    return str(value)


def maybe_text(value: Any) -> str:
    """A string, empty for none."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadValue("a string (quote it), or empty")
    return str(value)


def choice(*words: str) -> Parser:
    """One of the given words."""

    def parse(value: Any) -> str:
        if value not in words:
            raise BadValue("one of " + ", ".join(words))
        return str(value)

    return parse


def plain(value: Any) -> Any:
    """The value as built-in types all the way down (Ansible tags its strings), ready for JSON."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, int) and value.bit_length() > 64:  # Python may not even print it
        raise BadValue("plain YAML, not a number of more than 64 bits")
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    raise BadValue(f"plain YAML, not a {type(value).__name__}")


def mapping(value: Any) -> dict[str, Any]:
    """A mapping that JSON can hold; its values are judged where they are used."""
    if not isinstance(value, Mapping):
        raise BadValue("a mapping")
    result: dict[str, Any] = plain(value)
    try:
        json.dumps(result, allow_nan=False)
    except ValueError:
        raise BadValue("a mapping without NaN and infinity") from None
    return result


def sequence(value: Any) -> list[Any]:
    """A list."""
    if not isinstance(value, list | tuple):
        raise BadValue("a list")
    result: list[Any] = plain(value)
    return result


def words(value: Any) -> list[str]:
    """A list of strings."""
    result = sequence(value)
    if not all(isinstance(item, str) and item for item in result):
        raise BadValue("a list of strings (quote them)")
    return result


# What -e KEY=VALUE makes of null is a word.
NULL = ("", "null", "~", "none")


def word_lists(value: Any) -> dict[str, list[str]]:
    """Name to a list of strings."""
    try:
        return {name: words(item) for name, item in mapping(value).items()}
    except BadValue:
        raise BadValue("a mapping of lists of strings") from None


def nullable(parse: Parser, words: Sequence[str] = NULL) -> Parser:
    """``null``, or one of ``words`` in any case, for "not set", else what ``parse`` takes."""

    def maybe(value: Any) -> Any:
        if value is None or (isinstance(value, str) and value.strip().lower() in words):
            return None
        try:
            return parse(value)
        except BadValue as bad:
            raise BadValue(f"{bad}, or null") from None

    return maybe


def capture_sizes(value: Any) -> list[int] | str:
    """``auto`` or a list of positive integers."""
    if value == "auto":
        return "auto"
    one = integer(1, 65536)
    try:
        return [one(item) for item in sequence(value)]
    except BadValue:
        raise BadValue("auto, or a list of positive integers") from None


def gmu(value: Any) -> float | str:
    """``auto`` or a share of the node's memory."""
    if value == "auto":
        return "auto"
    try:
        share: float = number(0.01, 1.0)(value)
    except BadValue as bad:
        raise BadValue(f"auto, or {bad}") from None
    return share


def setting(parse: Parser) -> Any:
    """A dataclass field with its parser."""
    return field(metadata={"parse": parse})


PORT = integer(1, 65535)

SIZE = re.compile(r"^[1-9]\d*(\.\d+)?[bkmg]?$", re.IGNORECASE)
LIMIT = re.compile(r"^(-1|\d+)(:(-1|\d+))?$")
DEVICE = re.compile(r"^/dev/[\w./-]+$")
CAPABILITY = re.compile(r"^[A-Z_]+$")
PATH = re.compile(r"^/[\w./@+-]*$")
NAME = re.compile(r"^[\w./:@-]+$")


def matching(pattern: re.Pattern[str], wanted: str) -> Parser:
    """A string of the given form."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or not pattern.match(value):
            raise BadValue(wanted)
        return str(value)

    return parse


def each(parse: Parser) -> Parser:
    """A list whose every item ``parse`` takes."""
    return lambda value: [parse(item) for item in sequence(value)]


size = matching(SIZE, "a size as Docker takes it, like 112g or 256m")
device = matching(DEVICE, "a list of devices, like /dev/infiniband")
capability = matching(CAPABILITY, "a list of capabilities, like IPC_LOCK")
clean_path = matching(PATH, "an absolute path without spaces")
clean_name = matching(NAME, "a name without spaces")


def path(value: Any) -> str:
    """An absolute path that stays where it says."""
    if ".." in str(clean_path(value)).split("/"):
        raise BadValue("an absolute path without ..")
    return str(value)


def ulimits(value: Any) -> dict[str, str]:
    """Name to ``soft:hard`` or one number for both; -1 is unlimited."""
    wanted = 'a mapping of limits, like {nofile: "1048576:1048576"}'
    limits = {key: str(limit) for key, limit in mapping(value).items() if isinstance(limit, int | str)}
    if len(limits) < len(value) or not all(LIMIT.match(limit) for limit in limits.values()):
        raise BadValue(wanted)
    return limits


def gpus(value: Any) -> str:
    """``all``, a count, or empty for none."""
    if value in ("", None, "all") or str(value).isdigit():
        return str(value or "")
    raise BadValue("all, a number, or empty")


def mounts(value: Any) -> list[dict[str, Any]]:
    """Bind mounts: source and target absolute, read_only a flag."""
    result = []
    for item in sequence(value):
        if not isinstance(item, dict) or not {"source", "target"} <= set(item) <= {"source", "target", "read_only"}:
            raise BadValue("a list of {source, target, read_only}")
        read_only = flag(item.get("read_only", True))
        result.append({"source": path(item["source"]), "target": path(item["target"]), "read_only": read_only})
    return result


# vLLM's CUDAGraphMode (config/compilation.py). NONE is no null: it turns graphs off, null leaves them to vLLM.
GRAPHS = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


@dataclass(frozen=True)
class Settings:
    """Every cluster-wide setting the plan reads. No defaults here: group_vars/all has the values, with sources."""

    container_image: str = setting(clean_name)
    tensor_parallel: int = setting(integer(1, 64))
    gpu_memory_utilization: float | str = setting(gmu)
    max_model_len: int = setting(integer(1, 1 << 24))
    engram: str = setting(choice("memory", "disk", "none"))
    flashinfer_autotune: bool = setting(flag)
    weights_path: str = setting(path)
    served_model_name: str = setting(clean_name)
    api_port: int = setting(PORT)
    api_host: str = setting(maybe_text)
    master_port: int = setting(PORT)
    distributed_executor_backend: str = setting(choice("mp"))
    max_num_seqs: int = setting(integer(1, 4096))
    max_num_batched_tokens: int = setting(integer(1, 1 << 20))
    block_size: int = setting(integer(1, 4096))
    kv_cache_memory_bytes: int | None = setting(nullable(integer(1, 1 << 40)))
    speculative_config: dict[str, Any] | None = setting(nullable(mapping))
    cudagraph_mode: str | None = setting(nullable(choice(*GRAPHS), NULL[:-1]))
    cudagraph_capture_sizes: list[int] | str = setting(capture_sizes)
    tool_call_parser: str | None = setting(nullable(text))
    reasoning_parser: str | None = setting(nullable(text))
    limit_mm_per_prompt: dict[str, Any] | None = setting(nullable(mapping))
    default_chat_template_kwargs: dict[str, Any] | None = setting(nullable(mapping))
    engram_config: dict[str, Any] | None = setting(nullable(mapping))
    engine_extra_args: list[str] = setting(words)
    node_memory_gib: float = setting(number(1, 4096))
    memory_reserve_gib: float = setting(number(0, 4096))
    kv_layout: str = setting(choice("sm12x-64-state", "stock"))
    accelerator: str = setting(choice("gpu", "cpu"))
    model_config: str = setting(maybe_text)
    calibration_file: str = setting(maybe_text)
    model_weights_gib: float | None = setting(nullable(number(0.001, 4096)))
    serve_nodes: dict[str, Any] = setting(mapping)
    container_ulimits: dict[str, str] = setting(ulimits)
    container_cap_add: list[str] = setting(each(capability))
    container_memory_limit: str | None = setting(nullable(size))
    container_shm_size: str = setting(size)
    container_devices: list[str] = setting(each(device))
    container_gpus: str = setting(gpus)
    container_mounts: list[dict[str, Any]] = setting(mounts)
    container_base_env: dict[str, Any] = setting(mapping)
    container_env: dict[str, Any] = setting(mapping)
    profile_env: dict[str, Any] = setting(mapping)
    nccl_env: dict[str, Any] = setting(mapping)
    nccl_communicators: int = setting(integer(1, 64))
    nccl_transport: str = setting(choice("roce", "socket"))
    fabric_mtu: int = setting(integer(576, 65535))
    fabric_lossless: bool = setting(flag)
    storage_weights_mount: str = setting(maybe_text)
    storage_cache_path: str = setting(maybe_text)
    images_site_packages: str = setting(text)
    images_patch_files: dict[str, Any] = setting(mapping)
    images_stock_files: dict[str, list[str]] = setting(word_lists)
    images_patch_sha256: dict[str, Any] = setting(mapping)


NAMES = tuple(f.name for f in fields(Settings))


def read(variables: Mapping[str, Any]) -> tuple[Settings | None, list[Finding]]:
    """Settings from variables by name. ``None`` with one finding per bad or missing setting otherwise."""
    values: dict[str, Any] = {}
    findings: list[Finding] = []
    for item in fields(Settings):
        if item.name not in variables:
            findings.append(
                error("setting-missing", f"{item.name} is not set.", "Set it in the profile or in group_vars/all.")
            )
            continue
        value = variables[item.name]
        try:
            values[item.name] = item.metadata["parse"](value)
        except BadValue as bad:
            findings.append(
                error("setting-invalid", f"{item.name} is {shown(value)} but must be {bad}.", "Correct the variable.")
            )
    return (None if findings else Settings(**values)), findings


def shown(value: Any) -> str:
    """The value as one short readable piece of text, in YAML's words."""
    try:
        short = repr(value) if not isinstance(value, str) else repr(str(value))
    except ValueError:  # Python writes no integer of more than 4,300 digits
        short = "a number of thousands of digits"
    short = {"None": "null", "True": "true", "False": "false"}.get(short, short)
    return short if len(short) <= 80 else short[:77] + "..."
