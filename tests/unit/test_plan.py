"""The plan document: its contract, and every input that must be refused before a node is contacted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import codes, hosts

from gb10 import plan
from gb10.command import OWNED, capture_sizes

PROFILES = ("tp8-300k", "tp8-1m", "tp4-300k")
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
        assert "NCCL_IB_GID_INDEX" not in rank["env"]


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
        ("DSV41_ENGRAM_DISK", "1", "engram-crossed"),
    ],
)
def test_environment_that_works_against_the_ranks_is_refused(key: str, value: str, code: str) -> None:
    assert code in codes(plan.build("tp8-300k", hosts("tp8-300k", container_env={key: value})))


# --- cases 6 and 7: contradictions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "override", "code"),
    [
        ("tp8-300k", {"profile_env": {"DSV41_ENGRAM_DISK": "1"}}, "engram-crossed"),
        ("tp8-1m", {"profile_env": {}}, "engram-crossed"),
        ("tp8-1m", {"container_image": "vllm-dsv41:engram-mem"}, "image-crossed"),
        ("tp8-300k", {"container_image": "vllm-dsv41:latest"}, "image-crossed"),
        ("tp8-300k", {"api_port": 29501}, "ports-equal"),
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
