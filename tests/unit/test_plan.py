"""The plan document: its contract, and every input that must be refused before a node is contacted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import codes, hosts

from gb10 import plan, report
from gb10.assess import Case, judge_memory
from gb10.command import OWNED, capture_sizes
from gb10.expected import read_expected
from gb10.findings import Finding, line
from gb10.model_config import Checkpoint
from gb10.nodes import PER_NODE
from gb10.settings import NAMES

PROFILES = ("tp8-300k", "tp8-1m", "tp4-300k")
HOSTS = {profile: hosts(profile) for profile in PROFILES}
KEYS = {
    "rank", "node", "address", "image", "image_digest", "argv", "env", "ulimits", "cap_add", "devices", "mounts",
    "memory_limit", "shm_size",
}  # fmt: skip


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


@pytest.mark.parametrize("profile", PROFILES)
def test_profiles_plan_without_errors(profile: str) -> None:
    document = plan.build(profile, hosts(profile))
    assert codes(document) == []
    ranks = document["ranks"]
    assert [r["rank"] for r in ranks] == list(range(int(option(ranks[0]["argv"], "--tensor-parallel-size"))))
    assert document["head"] == ranks[0]["node"] == "spark-153"
    for rank in ranks:
        assert set(rank) >= KEYS
        assert option(rank["argv"], "--node-rank") == str(rank["rank"])
        assert option(rank["argv"], "--master-addr") == "192.168.1.153"
        assert ("--headless" in rank["argv"]) == (rank["rank"] > 0)
        assert rank["env"]["VLLM_HOST_IP"] == rank["address"]
        assert all(isinstance(v, str) and v for v in rank["env"].values())
        assert rank["env"]["NCCL_IB_HCA"] == "detected"
        assert rank["env"]["NCCL_IB_GID_INDEX"] == "detected"


@pytest.mark.parametrize("profile", PROFILES)
def test_two_plans_of_the_same_inputs_are_byte_identical(profile: str) -> None:
    first, second = (json.dumps(plan.build(profile, hosts(profile)), indent=2, sort_keys=True) for _ in range(2))
    assert first == second


def test_order_in_the_inventory_does_not_matter() -> None:
    given = hosts("tp8-300k")
    turned = dict(reversed(list(given.items())))
    assert plan.build("tp8-300k", given)["ranks"] == plan.build("tp8-300k", turned)["ranks"]


def test_the_plan_hash_is_of_the_ranks() -> None:
    ranks = plan.build("tp8-300k", hosts("tp8-300k"))["ranks"]
    assert plan.plan_hash(ranks) == plan.plan_hash(json.loads(json.dumps(ranks)))
    changed = plan.build("tp8-300k", hosts("tp8-300k", max_num_seqs=7))["ranks"]
    assert plan.plan_hash(ranks) != plan.plan_hash(changed)


def test_capture_sizes_are_the_published_list() -> None:
    assert capture_sizes(8, 5) == [5, 6, 10, 12, 15, 18, 20, 24, 25, 30, 35, 36, 40, 42, 48]


@pytest.mark.parametrize("profile", PROFILES)
def test_json_flags_are_json(profile: str) -> None:
    """Case 5: five keys, false a boolean, 5 an integer; the same for every other JSON flag."""
    argv = plan.build(profile, hosts(profile))["ranks"][0]["argv"]
    speculative = json.loads(option(argv, "--speculative-config"))
    assert speculative == {
        "method": "dspark",
        "num_speculative_tokens": 5,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
        "enable_adaptive_verification": False,
    }
    assert isinstance(speculative["num_speculative_tokens"], int)
    assert speculative["enable_adaptive_verification"] is False
    assert json.loads(option(argv, "--default-chat-template-kwargs")) == {"thinking": False}
    assert json.loads(option(argv, "--limit-mm-per-prompt")) == {"image": 4}
    assert json.loads(option(argv, "--compilation-config"))["cudagraph_capture_sizes"] == capture_sizes(8, 5)
    if profile != "tp8-300k":
        assert json.loads(option(argv, "--engram-config")) == {"cpu_offload": False}


# --- case 1: nodes -----------------------------------------------------------------------------------------------


def test_seven_nodes_for_eight_ranks_are_refused() -> None:
    assert "world-size" in codes(plan.build("tp8-300k", hosts("tp8-300k", count=7)))


def test_eight_nodes_for_four_ranks_need_a_subset() -> None:
    assert "world-size" in codes(plan.build("tp8-300k", hosts("tp8-300k", tensor_parallel=4)))


@pytest.mark.parametrize(
    ("node", "key", "value", "code"),
    [
        ("spark-157", "ansible_host", "192.168.1.147", "address-repeated"),
        ("spark-157", "fabric_address", "192.168.1.147", "address-repeated"),
        ("spark-157", "ansible_host", "spark-157", "address-invalid"),
        ("spark-157", "ansible_host", "127.0.0.1", "address-invalid"),
        ("spark-157", "node_rank", 1, "rank-repeated"),
        ("spark-157", "node_rank", "1", "rank-repeated"),
        ("spark-157", "node_rank", None, "rank-missing"),
        ("spark-157", "node_rank", 8, "rank-invalid"),
        ("spark-157", "node_rank", -1, "rank-invalid"),
        ("spark-157", "node_rank", True, "rank-invalid"),
        ("spark-157", "node_rank", 2.0, "rank-invalid"),
        ("spark-157", "node_rank", "two", "rank-invalid"),
        ("spark-157", "nccl_ib_hca", "enp1s0f1np1", "hca-is-interface"),
        ("spark-157", "nccl_ib_hca", "rocep1s0f1,enP2p1s0f1np1", "hca-is-interface"),
        ("spark-157", "nccl_ib_gid_index", "three", "setting-invalid"),
        ("spark-157", "max_model_len", 4096, "setting-differs"),
    ],
)
def test_a_wrong_node_is_refused_by_name(node: str, key: str, value: Any, code: str) -> None:
    given = hosts("tp8-300k")
    given[node][key] = value
    document = plan.build("tp8-300k", given)
    assert document["ranks"] == []
    assert {(f["code"], f["node"]) for f in document["findings"] if f["level"] == "error"} >= {(code, node)}


def test_the_odd_host_is_named_also_where_it_comes_first() -> None:
    given = hosts("tp8-300k")
    first, second = list(given)[:2]
    given[first]["max_model_len"] = 4096
    found = [f for f in plan.build("tp8-300k", given)["findings"] if f["code"] == "setting-differs"]
    assert [(f["node"], f["message"]) for f in found] == [
        (first, f"max_model_len is 4096 here and 300000 on {second}.")
    ]
    del given[first]["max_model_len"]
    found = [f for f in plan.build("tp8-300k", given)["findings"] if f["code"] == "setting-differs"]
    assert [f["message"] for f in found] == [f"max_model_len is not set here and 300000 on {second}."]


@pytest.mark.parametrize(("one", "other"), [("fd00::1", "fd00:0::1"), ("192.168.1.147", "::ffff:192.168.1.147")])
def test_one_address_in_two_spellings_is_refused(one: str, other: str) -> None:
    given = hosts("tp8-300k")
    given["spark-147"]["fabric_address"], given["spark-157"]["fabric_address"] = one, other
    assert codes(plan.build("tp8-300k", given)) == ["address-repeated"]


def test_a_missing_rank_variable_is_refused() -> None:
    given = hosts("tp8-300k")
    del given["spark-157"]["node_rank"]
    assert "rank-missing" in codes(plan.build("tp8-300k", given))


def test_no_node_at_all_is_refused() -> None:
    assert "no-nodes" in codes(plan.build("tp8-300k", {}))


def test_a_subset_names_hosts_of_the_inventory() -> None:
    document = plan.build(
        "tp4-300k", hosts("tp4-300k", serve_nodes={"spark-153": 0, "spark-999": 1}, tensor_parallel=2)
    )
    assert "subset-unknown" in codes(document)


def test_link_local_fabric_and_shared_gid_are_warned_about() -> None:
    """Case 8."""
    given = hosts("tp8-300k", nccl_ib_gid_index=3)
    given["spark-147"]["fabric_address"] = "169.254.3.4"
    warned = codes(plan.build("tp8-300k", given), "warning")
    assert {"address-link-local", "gid-index-shared"} <= set(warned)


# --- cases 2 and 3: numbers -----------------------------------------------------------------------------------------


def test_a_number_given_as_a_string_plans_the_same() -> None:
    assert plan.build("tp8-300k", hosts("tp8-300k", gpu_memory_utilization="0.80", max_num_seqs="8")) == plan.build(
        "tp8-300k", hosts("tp8-300k")
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu_memory_utilization", "80"),
        ("gpu_memory_utilization", "0,80"),
        ("gpu_memory_utilization", "1.7"),
        ("gpu_memory_utilization", "nan"),
        ("gpu_memory_utilization", True),
        ("gpu_memory_utilization", None),
        ("max_model_len", "1M"),
        ("max_model_len", "300k"),
        ("max_model_len", 300000.5),
        ("max_model_len", -1),
        ("max_num_seqs", 0),
        ("tensor_parallel", "eight"),
        ("api_port", 0),
        ("api_port", 65536),
        ("engram", "ram"),
        ("speculative_config", "dspark"),
        ("engine_extra_args", "--enforce-eager"),
        ("flashinfer_autotune", "perhaps"),
        ("weights_path", "models"),
        ("container_env", ["A=1"]),
        ("images_stock_files", {"vllm-dsv41:engram-mem": 5}),
        ("images_stock_files", {"vllm-dsv41:engram-mem": "engram.py"}),
        ("limit_mm_per_prompt", {"image": float("nan")}),
        ("engram_config", {"a": {"b": float("-inf")}}),
        ("container_shm_size", "banana"),
        ("container_memory_limit", "1.5xyz"),
        ("container_gpus", "two"),
        ("container_devices", ["nope"]),
        ("container_devices", ["/dev/x:y:z"]),
        ("container_cap_add", ["a b"]),
        ("container_ulimits", {"nofile": [1]}),
        ("container_ulimits", {"x": "a:b:c"}),
        ("container_ulimits", {"stack": None}),
        ("container_mounts", [1]),
        ("container_mounts", "/a:/b"),
        ("container_mounts", [{"source": "/a"}]),
        ("container_mounts", [{"source": "a", "target": "/b"}]),
        ("weights_path", "/data/a b"),
        ("weights_path", "/data/../etc"),
        ("served_model_name", "a b; rm"),
    ],
)
def test_nonsense_is_refused_with_the_variables_name(name: str, value: Any) -> None:
    document = plan.build("tp8-300k", hosts("tp8-300k", **{name: value}))
    messages = [f["message"] for f in document["findings"] if f["level"] == "error"]
    assert any(m.startswith(f"{name} is ") and "must be" in m and "\n" not in m for m in messages), messages


@pytest.mark.parametrize("word", ["null", "NULL", "~", "", "none", " None "])
@pytest.mark.parametrize(
    "name", ["speculative_config", "kv_cache_memory_bytes", "model_weights_gib", "tool_call_parser"]
)
def test_null_may_be_a_word_as_a_command_line_gives_it(name: str, word: str) -> None:
    assert plan.build("tp8-1m", hosts("tp8-1m", **{name: word})) == plan.build(
        "tp8-1m", hosts("tp8-1m", **{name: None})
    )


def test_none_is_a_mode_of_cuda_graphs() -> None:
    argv = plan.build("tp8-1m", hosts("tp8-1m", cudagraph_mode="NONE"))["ranks"][0]["argv"]
    assert json.loads(option(argv, "--compilation-config"))["cudagraph_mode"] == "NONE"
    assert (
        "--compilation-config" not in plan.build("tp8-1m", hosts("tp8-1m", cudagraph_mode="null"))["ranks"][0]["argv"]
    )
    (refused,) = [
        f for f in plan.build("tp8-1m", hosts("tp8-1m", cudagraph_mode="none"))["findings"] if f["node"] == ""
    ][:1]
    assert refused["message"].startswith("cudagraph_mode is 'none' but must be one of NONE, PIECEWISE")


@pytest.mark.parametrize(
    ("value", "off"), [("false", True), (False, True), ("true", False), ("yes", False), ("0", True)]
)
def test_a_flag_given_as_a_string_means_what_it_says(value: Any, off: bool) -> None:
    argv = plan.build("tp8-1m", hosts("tp8-1m", flashinfer_autotune=value))["ranks"][0]["argv"]
    assert ("--no-enable-flashinfer-autotune" in argv) == off


# --- case 4: environment --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [False, True, 2.30, 420, 754, "", ["a"], {"a": "b"}])
def test_values_that_yaml_bent_are_refused(value: Any) -> None:
    document = plan.build("tp8-300k", hosts("tp8-300k", container_env={"X": value}))
    found = [f for f in document["findings"] if f["code"] == "env-not-string"]
    assert len(found) == 1
    assert "container_env.X" in found[0]["message"]
    assert "Quote" in found[0]["remedy"]


@pytest.mark.parametrize("value", ["no", "off", "2.30", "0644", "52:54:00:12:34:56", "0"])
def test_quoted_values_reach_the_container_literally(value: str) -> None:
    document = plan.build("tp8-300k", hosts("tp8-300k", container_env={"X": value}))
    assert document["ranks"][3]["env"]["X"] == value


@pytest.mark.parametrize("key", ["C D", "E=F", "", "1A", "É"])
def test_a_key_that_is_no_name_is_refused(key: str) -> None:
    assert "env-key-invalid" in codes(plan.build("tp8-300k", hosts("tp8-300k", container_env={key: "x"})))


def test_a_value_of_two_lines_is_refused() -> None:
    assert "env-not-string" in codes(plan.build("tp8-300k", hosts("tp8-300k", container_env={"G": "a\nB=b"})))


@pytest.mark.parametrize(
    "args",
    [
        ["--tensor-parallel-size=4"],
        ["--port", "99"],
        ["--max_model_len", "5"],
        ["-tp", "2"],
        ["-cc.mode=0"],
        ["--model=x"],
    ],
)
def test_an_option_that_the_plan_sets_is_refused_in_extra_args(args: list[str]) -> None:
    assert codes(plan.build("tp8-300k", hosts("tp8-300k", engine_extra_args=args))) == ["engine-arg-owned"]
    given = {word.split("=")[0] for r in plan.build("tp8-1m", hosts("tp8-1m"))["ranks"] for word in r["argv"]}
    assert {word for word in given if word.startswith("--")} <= OWNED


def test_eight_nodes_with_a_wrong_rank_are_still_eight() -> None:
    given = hosts("tp8-300k")
    given["spark-157"]["node_rank"] = "two"
    assert codes(plan.build("tp8-300k", given)) == ["rank-invalid"]


def test_zero_is_a_value_and_null_removes() -> None:
    env = plan.build("tp8-300k", hosts("tp8-300k", container_env={"NCCL_CUMEM_ENABLE": 0, "NCCL_DEBUG": None}))[
        "ranks"
    ][0]["env"]
    assert env["NCCL_CUMEM_ENABLE"] == "0"
    assert "NCCL_DEBUG" not in env


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("VLLM_PORT", "9000", "env-refused"),
        ("VLLM_HOST_IP", "10.0.0.1", "env-refused"),
        ("NCCL_IB_HCA", "rocep1s0f1", "env-per-node"),
        ("NCCL_IB_GID_INDEX", "3", "env-per-node"),
        ("NCCL_BUFFSIZE", "1M", "env-not-integer"),
        ("NCCL_MAX_NCHANNELS", "eight", "env-not-integer"),
        ("NCCL_MAX_NCHANNELS", "\u00b2", "env-not-integer"),
        ("NCCL_MAX_NCHANNELS", "-8", "env-not-integer"),
        ("NCCL_MAX_NCHANNELS", "0", "memory-input"),
        ("NCCL_MAX_NCHANNELS", "65", "memory-input"),
        ("NCCL_MAX_NCHANNELS", "64", "nccl-channels"),
        ("NCCL_BUFFSIZE", "1e6", "env-not-integer"),
        ("NCCL_BUFFSIZE", "9" * 5000, "memory-input"),
        ("NCCL_LL128_BUFFSIZE", "0.5", "env-not-integer"),
        ("DSV41_ENGRAM_DISK", "1", "engram-crossed"),
    ],
)
def test_environment_that_works_against_the_ranks_is_refused(key: str, value: str, code: str) -> None:
    assert code in codes(plan.build("tp8-300k", hosts("tp8-300k", container_env={key: value})))


@pytest.mark.parametrize("value", [8, "8x"])
def test_what_nccl_takes_is_not_planned_from_a_value_that_was_refused(value: Any) -> None:
    """Not: refused as no string, and then as not set."""
    document = plan.build("tp8-300k", hosts("tp8-300k", container_env={"NCCL_MAX_NCHANNELS": value}))
    assert codes(document) == ["env-not-string" if value == 8 else "env-not-integer"]
    assert document["memory"] == {"reported": {}, "engine": {}}
    assert plan.planned_memory(hosts("tp8-300k", container_env={"NCCL_MAX_NCHANNELS": value})) is None


# --- cases 6 and 7: contradictions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "override", "code"),
    [
        ("tp8-300k", {"profile_env": {"DSV41_ENGRAM_DISK": "1"}}, "engram-crossed"),
        ("tp8-1m", {"profile_env": {}}, "engram-crossed"),
        ("tp8-1m", {"container_image": "vllm-dsv41:engram-mem"}, "image-crossed"),
        ("tp8-300k", {"container_image": "vllm-dsv41:latest"}, "image-crossed"),
        ("tp8-300k", {"api_port": 29501}, "ports-equal"),
        ("tp8-300k", {"max_num_seqs": 64, "max_num_batched_tokens": 63}, "batch-below-seqs"),
        ("tp8-300k", {"speculative_config": {"method": "dspark", "num_speculative_tokens": "five"}}, "setting-invalid"),
    ],
)
def test_contradictions_are_refused(profile: str, override: dict[str, Any], code: str) -> None:
    assert code in codes(plan.build(profile, hosts(profile, **override)))


def test_an_image_the_controller_does_not_hold_is_refused() -> None:
    document = plan.build("tp8-300k", hosts("tp8-300k"), {"vllm-dsv41:latest": "sha256:aa"})
    assert codes(document) == ["image-unknown"]
    held = plan.build("tp8-1m", hosts("tp8-1m"), {"vllm-dsv41:latest": "sha256:aa"})
    assert {r["image_digest"] for r in held["ranks"]} == {"sha256:aa"}


# --- gpu_memory_utilization: auto ---------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_auto_plans_what_its_number_plans(profile: str) -> None:
    auto = plan.build(profile, hosts(profile, gpu_memory_utilization="auto"))
    share = auto["memory"]["gpu_memory_utilization"]
    assert auto["memory"]["gpu_memory_utilization_given"] == "auto"
    assert share == auto["memory"]["gmu_recommended"]
    assert {option(rank["argv"], "--gpu-memory-utilization") for rank in auto["ranks"]} == {f"{share:g}"}
    explicit = plan.build(profile, hosts(profile, gpu_memory_utilization=share))
    assert plan.plan_hash(auto["ranks"]) == plan.plan_hash(explicit["ranks"])
    assert auto["memory"] | {"gpu_memory_utilization_given": share} == explicit["memory"]


def test_auto_without_room_says_so_with_the_numbers() -> None:
    document = plan.build("tp8-300k", hosts("tp8-300k", gpu_memory_utilization="auto", memory_reserve_gib=40))
    assert codes(document) == ["gmu-auto-none"]
    message = next(f["message"] for f in document["findings"] if f["code"] == "gmu-auto-none")
    assert "from 0.7398 to 0.6694 (reported), from 0.6887 to 0.5794 (engine)" in message
    assert document["ranks"] == []


@pytest.mark.parametrize("value", ["Auto", "automatic", "", " auto", ["auto"], {"auto": 1}, "=80", "0,80", 10**400])
def test_other_words_are_no_auto(value: Any) -> None:
    document = plan.build("tp8-300k", hosts("tp8-300k", gpu_memory_utilization=value))
    (found,) = [f for f in document["findings"] if f["level"] == "error"]
    assert found["message"].startswith("gpu_memory_utilization is ")
    assert "must be auto, or a number from 0.01 to 1" in found["message"]


# --- real nodes: case 10 ----------------------------------------------------------------------------------------------

TOTAL_KIB = 127601788  # MemTotal of a GB10


def facts(available_gib: float = 117, **own: float) -> dict[str, Any]:
    """Facts of every node of the worked example; ``own``: MemAvailable of single ones, ``_`` for ``-``."""
    sizes = dict.fromkeys(HOSTS["tp8-300k"], available_gib) | {k.replace("_", "-"): v for k, v in own.items()}
    return {
        name: {"memory": {"total_kib": TOTAL_KIB, "available_kib": int(size * 2**20)}} for name, size in sizes.items()
    }


def test_a_node_without_the_memory_is_refused_by_name() -> None:
    seen = facts(spark_161=100)
    document = plan.build("tp8-300k", hosts("tp8-300k", gpu_memory_utilization=0.87), facts=seen)
    found = {f["code"]: f for f in document["findings"] if f["node"] == "spark-161"}
    assert "wants 105.9 GiB, but 100.0 GiB are available" in found["memory-not-available"]["message"]
    assert "0.80 is the largest that starts here" in found["memory-not-available"]["remedy"]
    assert document["ranks"] == []
    passed = plan.build("tp8-300k", hosts("tp8-300k", gpu_memory_utilization=0.75), facts=seen)
    assert codes(passed) == []
    assert len(passed["ranks"]) == 8


def test_preflight_says_of_a_node_what_the_plan_says_with_its_facts() -> None:
    seen = facts(spark_161=100, spark_157=104)
    document = plan.build("tp8-300k", hosts("tp8-300k", gpu_memory_utilization=0.82), facts=seen)
    later = plan.build("tp8-300k", hosts("tp8-300k", gpu_memory_utilization=0.82))
    judged = []
    for rank in later["ranks"]:
        case = Case(later, rank, seen[rank["node"]], read_expected({})[0], {})
        judged += [f.as_dict() for f in judge_memory(case)]
    assert {f["code"] for f in judged} == {"memory-not-available", "memory-reserve-low"}
    named = [f for f in document["findings"] if f["node"]]
    assert sorted(named, key=str) == sorted(judged, key=str)


def test_the_smallest_node_decides_and_all_are_listed_in_rank_order() -> None:
    seen = facts()
    seen["spark-158"]["memory"] = {"total_kib": 110 << 20, "available_kib": 108 << 20}
    document = plan.build("tp8-300k", hosts("tp8-300k", gpu_memory_utilization="auto"), facts=seen)
    memory = document["memory"]
    assert memory["engine"]["total_gib"] == 110
    assert [node["node"] for node in memory["nodes"]] == [rank["node"] for rank in document["ranks"]]
    assert memory["gpu_memory_utilization"] < plan.build("tp8-300k", hosts("tp8-300k"))["memory"]["gmu_recommended"]
    small = next(node for node in memory["nodes"] if node["node"] == "spark-158")
    assert small["mem_total_gib"] == 110
    assert {key: type(value).__name__ for key, value in small.items()} == {
        "node": "str", "mem_total_gib": "float", "mem_available_gib": "float", "wanted_gib": "float",
        "free_gib": "float", "gmu_starts": "float", "gmu_keeps": "float", "serving": "bool",
    }  # fmt: skip
    table = report.plan_text(document).splitlines()
    assert any(text.startswith("spark-158 ") and "110.00" in text for text in table)


def test_a_node_missing_in_the_facts_is_named() -> None:
    seen = facts()
    del seen["spark-158"]
    document = plan.build("tp8-300k", hosts("tp8-300k"), facts=seen)
    assert [(f["code"], f["node"]) for f in document["findings"] if f["level"] == "error"] == [
        ("facts-missing", "spark-158")
    ]


# --- another model ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_not_known_is_refused() -> None:
    document = plan.build("tp8-300k", hosts("tp8-300k"), checkpoint=Checkpoint({"architectures": ["GemmaForCausalLM"]}))
    assert codes(document) == ["model-unknown"]
    assert document["ranks"] == []
    assert plan.planned_memory(hosts("tp8-300k"), checkpoint=Checkpoint([])) is None


def test_planned_memory_is_that_of_the_document() -> None:
    given_input, memory = plan.planned_memory(hosts("tp8-1m", gpu_memory_utilization="auto"), facts()) or (None, None)
    document = plan.build("tp8-1m", hosts("tp8-1m", gpu_memory_utilization="auto"), facts=facts())
    assert memory is not None
    assert given_input is memory.input
    assert memory.as_dict() | {"nodes": document["memory"]["nodes"]} == document["memory"]
    assert plan.planned_memory(hosts("tp8-1m", max_model_len="long")) is None


# --- any value --------------------------------------------------------------------------------------------------------

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.from_regex(r"-?\d{1,6}", fullmatch=True)
    | st.sampled_from(["auto", "0", "1", "8", "NaN", "1e9", "\u00b2", "9" * 5000, 10**400, -1, 64, 1 << 62, "/x"])
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)
ENV_KEYS = ("NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "DSV41_ENGRAM_DISK", "X")


@example("tp8-300k", {"serve_nodes": {"a\nb": 0}}, {}, None)
@given(
    st.sampled_from(PROFILES),
    st.dictionaries(st.sampled_from([*NAMES, *PER_NODE]), values, max_size=4),
    st.dictionaries(st.sampled_from(ENV_KEYS), values, max_size=2),
    st.sampled_from([None, "spark-157"]),
)
@settings(max_examples=400, deadline=None)
def test_no_value_of_any_setting_raises(profile: str, changes: Any, env: Any, only: str | None) -> None:
    changed = {
        name: own | {"container_env": env} | (changes if only in (None, name) else {})
        for name, own in HOSTS[profile].items()
    }
    document = plan.build(profile, changed)
    for found in document["findings"]:
        assert len(line(Finding(**found)).splitlines()) == 1
    assert bool(document["ranks"]) != bool(codes(document))
    json.dumps(document, allow_nan=False)
    report.plan_text(document)


FACTS = facts()


@given(st.sampled_from(["auto", 0.8]), st.dictionaries(st.sampled_from(["spark-157", "x"]), values, max_size=2))
@settings(max_examples=100, deadline=None)
def test_no_facts_raise(share: Any, seen: Any) -> None:
    given_hosts = {name: own | {"gpu_memory_utilization": share} for name, own in HOSTS["tp8-300k"].items()}
    document = plan.build("tp8-300k", given_hosts, facts=FACTS | seen)
    json.dumps(document, allow_nan=False)
