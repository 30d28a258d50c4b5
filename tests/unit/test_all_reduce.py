"""The all-reduce: containers as the ranks' own, refusals, and what the output says."""

from __future__ import annotations

import json

import pytest
from support import hosts

from gb10 import all_reduce, deploy, plan

FACTS = {"docker": {"images": [{"id": "sha256:1", "tags": ["vllm-dsv41:engram-mem"]}], "containers": []}}
RUNNING = {"docker": FACTS["docker"] | {"containers": [{"ours": True, "state": "running"}]}}
LINE = json.dumps({"rank": 0, "ranks": 8, "host": "", "right": True, "bytes": 1, "bus_gbps": 88.5})


def deployed(**overrides):
    document = plan.build("tp8-300k", hosts("tp8-300k", **overrides))
    return deploy.resolve(document, {})


def test_containers_are_the_ranks_own_but_for_the_command():
    plan_ = deployed()
    ranks = deploy.containers(plan_, "run")
    for node, one in all_reduce.containers(plan_, "run", "nccl", ["python3"], 300).items():
        for key in ("image", "ulimits", "capabilities", "devices", "device_requests", "memory", "shm_size", "mounts"):
            assert one[key] == ranks[node][key]
        assert {key: one["env"][key] for key in ranks[node]["env"] if key != "NCCL_DEBUG"} == {
            key: value for key, value in ranks[node]["env"].items() if key != "NCCL_DEBUG"
        }
        assert one["command"][:5] == ["timeout", "--kill-after=5", "300", "python3", "-c"]
        assert one["env"]["MASTER_ADDR"] == "192.168.1.153"
        assert (one["env"]["WORLD_SIZE"], one["env"]["MASTER_PORT"]) == ("8", "29501")
    bare = all_reduce.containers(plan_, "run", "nccl", ["p"], 1, ["/data/models/deepseek-v4.1-flash"])
    assert "/data/models/deepseek-v4.1-flash" in [m["source"] for m in ranks["spark-153"]["mounts"]]
    assert "/data/models/deepseek-v4.1-flash" not in [m["source"] for m in bare["spark-153"]["mounts"]]
    assert [one["env"]["RANK"] for one in bare.values()] == list("01234567")


@pytest.mark.parametrize(
    ("gpus", "facts", "backend", "code"),
    [
        ("all", FACTS, "nccl", None),
        ("", FACTS, "nccl", "all-reduce-no-gpu"),
        ("", FACTS, "gloo", None),
        ("all", RUNNING, "nccl", "test-under-rank"),
        ("all", {"docker": {"images": [], "containers": []}}, "nccl", "all-reduce-no-image"),
    ],
)
def test_why_it_cannot_run(gpus, facts, backend, code):
    plan_ = deployed(container_gpus=gpus)
    found = all_reduce.refusals(plan_, {rank["node"]: facts for rank in plan_["ranks"]}, backend)
    assert {f.code for f in found} == ({code} if code else set())
    assert len(found) == (8 if code else 0)


@pytest.mark.parametrize(
    ("output", "transport", "code"),
    [
        (f"NCCL INFO NET/IB : Using [0]rocep1s0f1\n{LINE}", "roce", None),
        (f"NCCL INFO NET/Socket : Using [0]enP7s7\n{LINE}", "roce", "all-reduce-over-tcp"),
        (LINE, "", None),
        (LINE.replace("true", "false"), "", "all-reduce-wrong"),
        ("Traceback\nRuntimeError: no device", "", "all-reduce-failed"),
        ('{"rank": 0, "ran', "", "all-reduce-failed"),
        ("", "", "all-reduce-failed"),
    ],
)
def test_what_the_output_says(output, transport, code):
    plan_ = deployed()
    good = f"NET/IB\n{LINE}"
    outputs = {rank["node"]: good for rank in plan_["ranks"]} | {"spark-158": output}
    line, found = all_reduce.judge(plan_, outputs, transport)
    assert [(f.node, f.code) for f in found] == ([("spark-158", code)] if code else [])
    assert "88.50 Gb/s" in line
