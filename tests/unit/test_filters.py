"""Every filter is documented as ansible-doc reads it, its examples run and give what they say, nonsense is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT

from gb10 import memory_filters
from gb10.memory_input import MemoryInput

BIN = Path(sys.executable).parent
ENVIRONMENT = os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
RESULT = re.compile(r"^# => (.*(?:\n#    .*)*)", re.M)
RANK = {"tensor_parallel": 8, "gpu_memory_utilization": 0.8, "max_model_len": 300000, "nccl_max_nchannels": 8}


def registered() -> dict[str, Any]:
    """The filters by name, as Ansible gets them."""
    spec = importlib.util.spec_from_file_location("gb10_filters", ROOT / "filter_plugins/gb10.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    filters: dict[str, Any] = module.FilterModule().filters()
    return filters


def run(*command: Any) -> subprocess.CompletedProcess[str]:
    """From the repository, bounded."""
    return subprocess.run(
        [BIN / command[0], *command[1:]],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def play(book: Path) -> subprocess.CompletedProcess[str]:
    """A playbook on this machine."""
    python = f"ansible_python_interpreter={sys.executable}"
    return run("ansible-playbook", "-i", "localhost,", "-c", "local", "-e", python, book)


@cache
def documented() -> dict[str, Any]:
    """What ansible-doc says of every filter."""
    done = run("ansible-doc", "-t", "filter", "--json", "--playbook-dir", ROOT, *registered())
    assert done.returncode == 0, done.stderr
    assert "was not found" not in done.stderr, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def sidecar(name: str) -> dict[str, Any]:
    """The file beside the plugin."""
    document: dict[str, Any] = yaml.safe_load((ROOT / f"filter_plugins/{name}.yml").read_text())
    return document


def examples(name: str) -> list[tuple[dict[str, Any], Any]]:
    """Every example with the result written below it."""
    text = sidecar(name)["EXAMPLES"]
    results = [re.sub(r"\n#", "\n ", match) for match in RESULT.findall(text)]
    return list(zip(yaml.safe_load(text), map(yaml.safe_load, results), strict=True))


# --- documentation ----------------------------------------------------------------------------------------------------


def test_every_filter_has_its_file_and_every_file_its_filter() -> None:
    assert sorted(path.stem for path in (ROOT / "filter_plugins").glob("*.yml")) == sorted(registered())


@pytest.mark.parametrize("name", registered())
def test_ansible_doc_prints_it(name: str) -> None:
    found = documented()[name]
    assert found["doc"]["name"] == name
    assert found["doc"]["short_description"]
    assert "_input" in found["doc"]["options"]
    assert found["doc"]["positional"].split(", ") == list(sidecar(name)["DOCUMENTATION"]["options"])
    assert found["examples"]
    assert found["return"]["_value"]["description"]


def test_the_filters_are_found_from_the_playbooks_too() -> None:
    done = run("ansible-doc", "-t", "filter", "--playbook-dir", ROOT / "playbooks", "gb10_memory")
    assert done.returncode == 0, done.stderr
    assert "The memory plan of one rank" in (ROOT / "playbooks/filter_plugins/gb10_memory.yml").read_text()
    assert "gpu_memory_utilization" in done.stdout


def test_the_input_of_gb10_memory_is_documented_field_by_field() -> None:
    options = sidecar("gb10_memory")["DOCUMENTATION"]["options"]["_input"]["suboptions"]
    assert list(options) == list(memory_filters.TYPES)
    own = {f.name: f for f in fields(MemoryInput)}
    example = MemoryInput(8, 0.8, 300000)
    for name, option in options.items():
        kind = memory_filters.TYPES[name].removesuffix(" | None")
        expected = "raw" if name == memory_filters.GMU else {"Model": "dict"}.get(kind, kind)
        assert option["type"] == expected, name
        if name in ("tensor_parallel", "gpu_memory_utilization", "max_model_len"):
            assert option["required"], name
        elif name != "model":
            assert own[name].name == name
            assert option.get("default") == getattr(example, name), name


def test_every_example_gives_what_it_says(tmp_path: Path) -> None:
    """All in one real ansible-playbook on localhost."""
    tasks, wanted = [], []
    for name in registered():
        assert examples(name), name
        for task, result in examples(name):
            tasks.append(task | {"register": f"result_{len(tasks)}"})
            wanted.append((name, task["name"], result))
    said = "{{ [" + ", ".join(f"result_{n}.msg" for n in range(len(tasks))) + "] | to_json }}"
    write = {"ansible.builtin.copy": {"content": said, "dest": str(tmp_path / "said.json"), "mode": "0644"}}
    book = tmp_path / "examples.yml"
    book.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": [*tasks, write]}]))
    done = play(book)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    given = json.loads((tmp_path / "said.json").read_text())
    assert [(*what[:2], result) for what, result in zip(wanted, given, strict=True)] == wanted


# --- nonsense ---------------------------------------------------------------------------------------------------------


def test_strings_are_numbers() -> None:
    strings = {name: str(value) for name, value in RANK.items()}
    assert memory_filters.memory(strings) == memory_filters.memory(RANK)
    assert memory_filters.memory(RANK | {"flashinfer_autotune": "false"}) == memory_filters.memory(RANK)
    assert memory_filters.floor(RANK, "8") == memory_filters.floor(RANK, 8)


def test_another_model_is_its_config() -> None:
    """The lab's: two layers, eight heads of 32."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "hidden_size": 256,
        "max_position_embeddings": 1048576,
        "dtype": "bfloat16",
    }
    lab = {"model": config, "accelerator": "cpu", "weights_gib": 0.01, "kv_cache_memory_bytes": 301989888}
    assert memory_filters.kv_tokens(RANK | lab) == 1179522
    assert memory_filters.kv_blocks(RANK | lab) == 2344


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpu_memory_utilization": "0,80"}, "gpu_memory_utilization is '0,80' but must be a number from 0.01 to 1"),
        ({"gpu_memory_utilization": 80}, "gpu_memory_utilization is 80 but must be a number from 0.01 to 1"),
        ({"gpu_memory_utilization": True}, "gpu_memory_utilization is True but must be a number from 0.01 to 1"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization is nan but must be a number"),
        ({"gpu_memory_utilization": "nan"}, "gpu_memory_utilization is 'nan' but must be a number"),
        ({"gpu_memory_utilization": None}, "gpu_memory_utilization is not given, but must be"),
        ({"tensor_parallel": "eight"}, "tensor_parallel is 'eight' but must be an integer from 1 to 1024"),
        ({"tensor_parallel": 7.5}, "tensor_parallel is 7.5 but must be an integer from 1 to 1024"),
        ({"max_model_len": -1}, "max_model_len is -1 but must be an integer"),
        ({"max_model_len": "1e6"}, "max_model_len is '1e6' but must be an integer"),
        ({"nccl_buffsize": "1M"}, "nccl_buffsize is '1M' but must be an integer"),
        ({"max_num_seqs": [8]}, "max_num_seqs is [8] but must be an integer"),
        ({"engram": "ram"}, "engram is 'ram' but must be one of memory, disk, none"),
        ({"kv_layout": {}}, "kv_layout is {} but must be a word"),
        ({"kv_layout": "new"}, "kv_layout 'new' is unknown; it is one of sm12x-64-state, stock"),
        ({"flashinfer_autotune": "perhaps"}, "flashinfer_autotune is 'perhaps' but must be true or false"),
        ({"model": {"architectures": ["GptForCausalLM"]}}, "model: architectures is ['GptForCausalLM'], of which"),
        ({"model": "DeepSeek"}, "model: config.json is no JSON object"),
        ({"max_model_len": 10**5000}, "max_model_len is a number of thousands of digits but must be plain YAML"),
        ({"num_speculative_tokens": 31}, "num_speculative_tokens 31 does not fit the sm12x-64-state layout"),
        ({"max_model_length": 1}, "max_model_length is no input of the memory plan. Did you mean max_model_len?"),
        ({"colour": 1}, "colour is no input of the memory plan. Known are tensor_parallel, gpu_memory_utilization,"),
        ({"auto": True}, "auto is no input of the memory plan"),
        ({8: 1}, "8 is no input of the memory plan"),
    ],
)
def test_nonsense_is_one_line(change: dict[Any, Any], said: str) -> None:
    with pytest.raises(ValueError, match="(?i)" + re.escape(said)) as refusal:
        memory_filters.memory(RANK | change)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("values", ["tp8", 8, None, [RANK]])
def test_what_is_no_mapping_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="must be a mapping"):
        memory_filters.kv_blocks(values)


def test_arguments_are_checked_too() -> None:
    with pytest.raises(ValueError, match="requests is 'many' but must be a plain integer from 1 to 65536"):
        memory_filters.floor(RANK, "many")
    for call in (memory_filters.floor, memory_filters.ceiling, memory_filters.kv_tokens):
        with pytest.raises(ValueError, match="accounting is 'guess' but must be engine or reported"):
            call(RANK, accounting="guess")


def test_a_playbook_fails_with_the_line_and_no_traceback(tmp_path: Path) -> None:
    task = {
        "ansible.builtin.debug": {"msg": "{{ rank | gb10_memory }}"},
        "vars": {"rank": RANK | {"max_model_length": 1}},
    }
    book = tmp_path / "wrong.yml"
    book.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
    done = play(book)
    assert done.returncode != 0
    assert "max_model_length is no input of the memory plan. Did you mean max_model_len?" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
