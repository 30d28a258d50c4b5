"""What memory depends on, from a checkpoint's config.json: derived, or refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gb10.data import load
from gb10.engram import engram_split, head_rows
from gb10.findings import line
from gb10.kv_cache import full_attention, kv_blocks, layout
from gb10.memory_input import MemoryInput
from gb10.model_config import Plain, builtin, read_model
from gb10.sources import SourceError, checkpoint

FLASH = load("model_v41")["config"]
# The form of a published checkpoint: more keys than memory reads, on both levels.
PUBLISHED = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "text_config": {**FLASH["text_config"], "hidden_size": 5120, "rope_scaling": {"rope_type": "yarn", "factor": 16}},
    "vision_config": {"num_hidden_layers": 32, "hidden_size": 1024},
    "quantization_config": {"quant_method": "fp8", "expert_dtype": "fp4"},
}
# As the lab's model is saved, and as older Transformers wrote it.
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8,
    "head_dim": 32, "hidden_size": 256, "max_position_embeddings": 32768, "dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
}  # fmt: skip


def without(config, key):
    return {k: v for k, v in config.items() if k != key}


def text(**changes):
    """The published config with other text keys; None removes one."""
    config = copy.deepcopy(PUBLISHED)
    config["text_config"].update(changes)
    config["text_config"] = {k: v for k, v in config["text_config"].items() if v is not None}
    return config


# --- DeepSeek-V4.1 ----------------------------------------------------------------------------------------------------


def test_the_published_config_is_the_builtin_model():
    model, findings = read_model(PUBLISHED)
    assert findings == []
    assert model == builtin()
    assert MemoryInput(8, 0.8, 300000, model=model).measured


def test_flash_derives_to_the_known_constants():
    """138,240 and 230,400 bytes a block, and the groups the published boots were printed with."""
    report, stock = layout("sm12x-64-state"), layout("stock")
    assert (report.bytes_per_block, report.full, report.window_block) == (138240, (128, 64), 64)
    assert (report.window_groups, report.window_groups_without_draft) == (15, 14)
    assert (stock.bytes_per_block, stock.full, stock.window_block) == (230400, (128,), 32)
    assert (stock.window_groups, stock.window_groups_without_draft) == (4, 4)
    for shape in (report, stock):
        assert (shape.window, shape.state_layers, shape.state_row_bytes) == (128, 3, 4096)
    assert builtin().max_model_len == 1048576


def test_engram_rows_of_the_config_are_what_its_hash_heads_have():
    tables = builtin().engram
    assert (tables.heads, tables.row_bytes) == (24, 264)
    assert [sum(sizes) for sizes in head_rows(tables).values()] == FLASH["text_config"]["engram_num_embeddings"]
    assert engram_split(tables, 1)[0].bytes == (384006168 + 384016682) * 264


def test_a_config_without_nesting_is_read_alike():
    assert read_model({**PUBLISHED["text_config"], "architectures": PUBLISHED["architectures"]})[0] == builtin()


@pytest.mark.parametrize(
    ("changes", "size", "full", "groups"),
    [
        # printed by vLLM 0.32.0's planner for such caches (64-state pages, k = 5)
        ({"num_hidden_layers": 60}, 138240, (128, 64), 21),
        ({"kv_source_layer_ids": [2, 8, 20, 26]}, 92160, (128, 64), 22),
        ({"kv_source_layer_ids": [2, 4, 6, 8, 14, 20]}, 230400, (128, 64), 9),
        ({"kv_source_layer_ids": [20]}, 46080, (64,), 43),
        ({"num_nextn_predict_layers": 1}, 138240, (128, 64), 14),
    ],
)
def test_another_geometry_derives_its_own_layout(changes, size, full, groups):
    if "kv_source_layer_ids" in changes:
        changes["index_source_layer_ids"] = changes["kv_source_layer_ids"]
    model, findings = read_model(text(**changes))
    assert findings == []
    assert model != builtin()
    shape = layout("sm12x-64-state", model)
    assert (shape.bytes_per_block, shape.full, shape.window_groups) == (size, full, groups)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (text(num_hidden_layers=None), "num_hidden_layers is null but must be an integer from 1"),
        (text(num_hidden_layers="40"), "num_hidden_layers is '40'"),
        (text(num_hidden_layers=True), "num_hidden_layers is true"),
        (text(num_hidden_layers=-1), "num_hidden_layers is -1"),
        (text(num_hidden_layers=10**400), "num_hidden_layers is 1000"),
        (text(head_dim=256), "head_dim is 256 but vLLM's records of this model need 512"),
        (text(qk_rope_head_dim=None), "qk_rope_head_dim is null"),
        (text(compress_ratios=[0, 4]), "compress_ratios is [0, 4] but must be a list of integers from 0 to 2"),
        (text(compress_ratios="0"), "compress_ratios is '0'"),
        (text(kv_source_layer_ids=[0]), "kv_source_layer_ids [0] must"),
        (text(kv_source_layer_ids=[2, 2]), "kv_source_layer_ids [2, 2] must"),
        (text(kv_source_layer_ids=[3]), "in index_source_layer_ids"),
        (text(sliding_window=float("nan")), "sliding_window is nan"),
        (text(max_position_embeddings=0), "max_position_embeddings is 0"),
        (text(engram_vocab_size=1 << 60), "engram_vocab_size is"),
        (text(engram_num_embeddings=[1, 2]), "the hash heads have [384006168, 384016682] rows"),
        (text(engram_num_embeddings=None), "engram_num_embeddings is null"),
        (text(engram_layer_ids=[1, 1]), "engram_layer_ids is [1, 1]"),
        ({"architectures": ["DeepseekV41ForCausalLM"], "text_config": 7}, "head_dim is null"),
        ([], "config.json is no JSON object"),
        (None, "config.json is no JSON object"),
        ("x", "config.json is no JSON object"),
    ],
)
def test_a_broken_config_is_refused_with_its_key(config, words):
    model, (found,) = read_model(config)
    assert model is None
    assert (found.level, found.code) == ("error", "model-config-invalid")
    assert words in found.message
    assert "\n" not in line(found)


# --- plain transformers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_a_plain_transformer(name):
    model, findings = read_model({**LLAMA, "architectures": [name]})
    assert findings == []
    assert model == Plain(name, 32768, heads=8, layers=2, kv_heads=8, head_size=32, dtype_bytes=2)
    shape = MemoryInput(8, 0.5, 1024, model=model, weight_bytes=0).shape()
    assert shape == full_attention(2, 8, 32, 2, 128, 8)
    assert kv_blocks(1024, 2048, shape) == 8


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"head_dim": None}, "head_size", 32),
        ({"num_key_value_heads": None}, "kv_heads", 8),
        ({"dtype": None, "torch_dtype": "float16"}, "dtype_bytes", 2),
        ({"dtype": None}, "dtype_bytes", 2),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 4.0}}, "max_model_len", 131072),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "max_model_len", 32768),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "max_model_len", 32768),
        ({"sliding_window": 4096, "use_sliding_window": False}, "layers", 2),
        ({"layer_types": ["full_attention"] * 2}, "layers", 2),
    ],
)
def test_what_a_plain_config_may_leave_out_or_add(changes, field, value):
    model, findings = read_model({**LLAMA, **changes})
    assert findings == []
    assert getattr(model, field) == value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": 4096}, "LlamaForCausalLM with sliding_window 4096 has another KV cache"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "has another KV cache"),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "kv_cache_scheme"),
        ({"dtype": "int8"}, "dtype is 'int8' but must be one of bfloat16"),
        ({"dtype": ["bfloat16"]}, "dtype is ['bfloat16']"),
        ({"head_dim": None, "hidden_size": None}, "head_dim is 0 but"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"rope_scaling": {"type": "dynamic", "factor": "four"}, "rope_parameters": None}, "RoPE factor is 'four'"),
        ({"rope_scaling": {"type": ["x"], "factor": float("nan")}, "rope_parameters": None}, "RoPE factor is nan"),
        (
            {"rope_scaling": {"type": "linear", "factor": 1e-9}, "rope_parameters": None},
            "must be a number from 1 to 65536",
        ),
        ({"rope_scaling": [8], "rope_parameters": None}, "the RoPE scaling is [8] but must be a mapping"),
    ],
)
def test_a_plain_config_of_another_cache_is_refused(changes, words):
    model, (found,) = read_model({**LLAMA, **changes})
    assert model is None
    assert found.code == "model-config-invalid"
    assert words in found.message


@pytest.mark.parametrize(
    "names", [None, [], ["GemmaForCausalLM"], ["LlamaForCausalLM", "GemmaForCausalLM"], "LlamaForCausalLM", [7], [[]]]
)
def test_an_unknown_architecture_is_refused_with_the_known_ones(names):
    model, (found,) = read_model({**LLAMA, "architectures": names})
    assert model is None
    assert (found.level, found.code) == ("error", "model-unknown")
    assert "DeepseekV41ForCausalLM, LlamaForCausalLM, MistralForCausalLM" in found.remedy


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(st.sampled_from([PUBLISHED, LLAMA]), st.data(), values)
@settings(max_examples=300, deadline=None)
def test_no_value_of_any_key_raises(config, data, value):
    config = copy.deepcopy(config)
    target = config.get("text_config", config) if data.draw(st.booleans()) else config
    target[data.draw(st.sampled_from(sorted(target)))] = value
    model, findings = read_model(config)
    assert (model is None) == bool(findings)
    if model is not None and model != builtin():
        given = MemoryInput(8, 0.8, 1024, model=model, weight_bytes=1 << 30)
        given.shape()


# --- the file ---------------------------------------------------------------------------------------------------------


def write(folder, name, content):
    text_of = content if isinstance(content, str | bytes) else json.dumps(content)
    (folder / name).write_bytes(text_of if isinstance(text_of, bytes) else text_of.encode())


def test_the_file_or_its_directory_or_the_source_of_weights(tmp_path):
    write(tmp_path, "config.json", LLAMA)
    for given_config, weights in ((tmp_path / "config.json", ""), (tmp_path, ""), ("", tmp_path)):
        found = checkpoint(str(given_config), str(weights))
        assert found.config == LLAMA
        assert found.weight_bytes is None
    assert checkpoint("", "") is None


def test_weights_without_a_config_are_the_builtin_model(tmp_path):
    write(tmp_path, "manifest.json", {"files": []})
    assert checkpoint("", str(tmp_path)) is None


def test_the_bytes_come_from_the_index_else_from_the_manifest(tmp_path):
    write(tmp_path, "config.json", LLAMA)
    files = [{"path": "a.safetensors", "size": 3}, {"path": "b.safetensors", "size": 4}, {"path": "x.json", "size": 9}]
    write(tmp_path, "manifest.json", {"files": files})
    assert checkpoint(str(tmp_path), "").weight_bytes == 7
    write(tmp_path, "model.safetensors.index.json", {"metadata": {"total_size": 11}})
    assert checkpoint(str(tmp_path), "").weight_bytes == 11
    write(tmp_path, "model.safetensors.index.json", {"metadata": {"total_size": 0}})
    assert checkpoint(str(tmp_path), "").weight_bytes is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("other.json", "{}", "No such file"),
        ("config.json", "{", "Expecting property name"),
        ("config.json", "[" * 100000, "nested too deeply"),
        ("config.json", b"\xff\xfe", "no UTF-8 text"),
        ("config.json", " ", "it is empty"),
        ("model.safetensors.index.json", "{", "model.safetensors.index.json beside it: it is no JSON"),
        ("model.safetensors.index.json", "[]", "beside it"),
        ("model.safetensors.index.json", '{"metadata": {"total_size": "x"}}', "'x' is no number of bytes"),
        ("manifest.json", '{"files": [{"path": "a.safetensors"}]}', "no key 'size'"),
        ("manifest.json", '{"files": 7}', "beside it"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, words):
    if name != "other.json":
        write(tmp_path, "config.json", LLAMA)
    write(tmp_path, name, content)
    with pytest.raises(SourceError) as caught:
        checkpoint(str(tmp_path), "")
    assert caught.value.finding.code == "model-config-unreadable"
    assert str(tmp_path) in caught.value.finding.message
    assert words in caught.value.finding.message
    assert "\n" not in line(caught.value.finding)


def test_one_limit_is_lifted_by_vllms_own_variable():
    given = MemoryInput(8, 0.5, 1 << 20, model=read_model(LLAMA)[0], weight_bytes=0)
    assert given.model_limit == 32768
    assert replace(given, allow_long=True).model_limit is None
