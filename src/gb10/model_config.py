"""What memory depends on of a checkpoint, read from its config.json as vLLM reads it. Pure: the JSON comes parsed.

Known are DeepSeek-V4.1 and the plain transformers of data/models.yml; anything else is refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gb10.data import load
from gb10.engram import EngramTables, head_rows
from gb10.findings import Finding, error
from gb10.settings import shown

GIB = 1 << 30
DRAFT_LAYERS = 3  # where a DeepSeek config says nothing (models/deepseek_v41/nvidia/dspark.py)
RECORD_DIMENSIONS = (512, 64)  # head_dim and qk_rope_head_dim that vLLM's DeepSeek records are made for


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as the controller has it: its parsed config.json, the bytes of its weights where known."""

    config: Any
    weight_bytes: int | None = None


@dataclass(frozen=True)
class Deepseek:
    """A DeepSeek-V4.1 model. Its compressed KV cache is the same on every rank."""

    name: str
    max_model_len: int
    heads: int
    layers: int
    draft_layers: int
    ratios: tuple[int, ...]
    """Tokens a state, of each layer that owns a compressed cache."""
    window: int
    index_head_dim: int
    engram: EngramTables | None


@dataclass(frozen=True)
class Plain:
    """A transformer that keeps keys and values of every token in every layer; ranks share the heads."""

    name: str
    max_model_len: int
    heads: int
    layers: int
    kv_heads: int
    head_size: int
    dtype_bytes: int


Model = Deepseek | Plain


class BadConfig(ValueError):
    """One line: which key, its value, what would be right."""


@cache
def builtin() -> Deepseek:
    """DeepSeek-V4.1-Flash, the model of the report."""
    data = load("model_v41")
    return _deepseek(data["name"], data["config"])


def read_model(config: Any) -> tuple[Model | None, list[Finding]]:
    """The model of a parsed config.json, or None with one finding."""
    known = load("models")
    names = config.get("architectures") if isinstance(config, Mapping) else None
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    try:
        if not isinstance(config, Mapping):
            raise BadConfig("config.json is no JSON object")
        if isinstance(name, str) and name in known["deepseek"]:
            return _named(_deepseek(name, config)), []
        if isinstance(name, str) and name in known["plain"]:
            return _plain(name, config), []
    except BadConfig as bad:
        remedy = "Give the config.json the engine is to read, or none for DeepSeek-V4.1-Flash."
        return None, [error("model-config-invalid", f"model_config: {bad}.", remedy)]
    choices = ", ".join((*known["deepseek"], *known["plain"]))
    message = f"model_config: architectures is {shown(names)}, of which the memory plan knows nothing."
    return None, [error("model-unknown", message, f"Its KV cache is not guessed. Known are {choices}.")]


def _named(model: Deepseek) -> Deepseek:
    """The built-in model where all that memory depends on is the same: what was measured of it then holds."""
    own = builtin()
    return own if model == Deepseek(**{**vars(own), "name": model.name}) else model


def _deepseek(name: str, config: Mapping[str, Any]) -> Deepseek:
    nested = config.get("text_config")
    text = _Text({**config, **nested} if isinstance(nested, Mapping) else config)
    for key, wanted in zip(("head_dim", "qk_rope_head_dim"), RECORD_DIMENSIONS, strict=True):
        if text.get(key) != wanted:
            raise BadConfig(f"{key} is {shown(text.get(key))} but vLLM's records of this model need {wanted}")
    layers = text.integer("num_hidden_layers", 1, 4096)
    ratios = text.integers("compress_ratios", 0, 2)
    sources = [n for n in text.integers("kv_source_layer_ids", 0, 1 << 20) if n < layers]
    index = text.integers("index_source_layer_ids", 0, 1 << 20)
    if any(n >= len(ratios) or not ratios[n] or n not in index for n in sources) or len(set(sources)) < len(sources):
        raise BadConfig(
            f"kv_source_layer_ids {shown(sources)} must each be once, in index_source_layer_ids, and have a ratio of "
            "1 or 2 in compress_ratios"
        )
    draft = text.integer("n_mtp_layers", 0, 64, 0) or text.integer("num_nextn_predict_layers", 0, 64, 0)
    return Deepseek(
        name=name,
        max_model_len=text.length(),
        heads=text.integer("num_attention_heads", 1, 4096),
        layers=layers,
        draft_layers=draft or DRAFT_LAYERS,
        ratios=tuple(ratios[n] for n in sources),
        window=text.integer("sliding_window", 1, 1 << 20),
        index_head_dim=text.integer("index_head_dim", 1, 4096),
        engram=_engram(text),
    )


def _engram(text: _Text) -> EngramTables | None:
    layers = text.integers("engram_layer_ids", 0, 4096) if text.get("engram_layer_ids") else []
    if not layers:
        return None
    if len(set(layers)) < len(layers) or len(layers) > 8:
        raise BadConfig(f"engram_layer_ids is {shown(layers)} but must be at most 8 layers, each once")
    width = text.integer("engram_head_dim", 1, 1 << 16)
    tables = EngramTables(
        layers=tuple(layers),
        heads=(text.integer("engram_max_ngram_size", 2, 8) - 1) * text.integer("engram_n_heads", 1, 16),
        bucket_floor=text.integer("engram_vocab_size", 1, 1 << 28),
        row_bytes=width + width // 32,  # FP8 values, one scale for 32 (common/engram.py)
    )
    rows = [sum(sizes) for sizes in head_rows(tables).values()]
    stored = text.integers("engram_num_embeddings", 0, 1 << 48)
    if len(stored) != len(rows) or any(own > held for own, held in zip(rows, stored, strict=True)):
        raise BadConfig(f"engram_num_embeddings is {shown(stored)} but the hash heads have {rows} rows")
    return tables


def _plain(name: str, config: Mapping[str, Any]) -> Plain:
    text = _Text(config)
    kinds = text.get("layer_types") or []
    sliding = text.get("sliding_window") is not None and text.get("use_sliding_window", True) is not False
    if sliding or (isinstance(kinds, list) and any(kind != "full_attention" for kind in kinds)):
        raise BadConfig(f"{name} with sliding_window {shown(text.get('sliding_window'))} has another KV cache")
    quantized = text.get("quantization_config")
    if isinstance(quantized, Mapping) and quantized.get("kv_cache_scheme"):
        raise BadConfig("quantization_config.kv_cache_scheme gives the KV cache a type of its own")
    heads = text.integer("num_attention_heads", 1, 4096)
    dtype = text.get("torch_dtype") if text.get("dtype") is None else text.get("dtype")
    widths = load("models")["dtype_bytes"]
    if dtype is not None and (not isinstance(dtype, str) or dtype not in widths):
        raise BadConfig(f"dtype is {shown(dtype)} but must be one of {', '.join(widths)}")
    return Plain(
        name=name,
        max_model_len=text.length(),
        heads=heads,
        layers=text.integer("num_hidden_layers", 1, 4096),
        kv_heads=text.integer("num_key_value_heads", 1, 4096, heads),
        head_size=text.integer("head_dim", 1, 1 << 16, text.integer("hidden_size", 0, 1 << 24, 0) // heads),
        dtype_bytes=int(widths[dtype or "float32"]),
    )


class _Text(dict[str, Any]):
    """The keys of a config, read with their limits. Raises BadConfig."""

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number; the default where the key is absent or null."""
        value = default if self.get(key) is None else self[key]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadConfig(f"{key} is {shown(value)} but must be an integer from {low} to {high}")
        return value

    def integers(self, key: str, low: int, high: int) -> list[int]:
        """A list of whole numbers."""
        value = self.get(key)
        if not isinstance(value, list) or not all(
            isinstance(n, int) and not isinstance(n, bool) and low <= n <= high for n in value
        ):
            raise BadConfig(f"{key} is {shown(value)} but must be a list of integers from {low} to {high}")
        return value

    def length(self) -> int:
        """The longest context in tokens, as vLLM derives it: RoPE scaling counts unless it is in there already."""
        limit = self.integer("max_position_embeddings", 1, 1 << 31)
        rope = self.get("rope_parameters") or self.get("rope_scaling")
        if rope is None:
            return limit
        if not isinstance(rope, Mapping):
            raise BadConfig(f"the RoPE scaling is {shown(rope)} but must be a mapping, or null")
        kind, factor = rope.get("rope_type", rope.get("type", "default")), rope.get("factor")
        if kind in load("models")["rope_scaled_already"] or factor is None:
            return limit
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1 << 16:
            raise BadConfig(f"the RoPE factor is {shown(factor)} but must be a number from 1 to {1 << 16}")
        return int(limit * factor)
