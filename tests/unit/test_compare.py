"""Two plans side by side."""

from __future__ import annotations

from typing import Any

import pytest
from support import hosts

from gb10 import compare, plan

A, B = "tp8-300k", "tp8-1m"


def document(profile: str, **overrides: Any) -> dict[str, Any]:
    return plan.build(profile, hosts(profile, **overrides))


def found(left: dict[str, Any], right: dict[str, Any]) -> dict[tuple[str, str], tuple[str, str]]:
    return {(line.section, line.what): (line.left, line.right) for line in compare.lines(left, right)}


def test_the_reports_tables_stand_side_by_side() -> None:
    """Tables 6.1 and 6.2 of the report."""
    lines = found(document(A), document(B))
    assert lines["reported", "budget, GiB"] == ("96.8", "90.75")
    assert lines["reported", "used inside the budget, GiB"] == ("85.65", "60.5")
    assert lines["reported", "left, GiB"] == ("11.15", "30.25")
    assert lines["reported", "engram, GiB"][1] == "-"
    assert lines["plan", "--gpu-memory-utilization"] == ("0.8", "0.75")
    assert lines["plan", "--max-model-len"] == ("300000", "1048576")
    assert lines["plan", "image"] == ("vllm-dsv41:engram-mem", "vllm-dsv41:latest")
    assert lines["memory", "one request, GiB"] == ("1.4056", "3.6644")
    assert {("engine", "KV cache, GiB"), ("engine", "requests of full length"), ("engine", "GMU ceiling")} <= set(lines)
    assert lines["env", "DSV41_ENGRAM_DISK"] == ("-", "1")
    assert lines["argv", "--engram-config.cpu_offload"] == ("-", "false")
    twice = {("argv", "--max-model-len"), ("container", "image"), ("container", "profile")}
    assert not twice & set(lines), "said above already"


def test_of_ranks_only_what_differs_is_listed() -> None:
    lines = found(document(A), document(A, container_env={"NCCL_DEBUG": "INFO", "X": "1"}, container_shm_size="1g"))
    ranks = {key: value for key, value in lines.items() if key[0] in ("argv", "env", "nccl", "container")}
    assert ranks == {
        ("nccl", "NCCL_DEBUG"): ("WARN", "INFO"),
        ("env", "X"): ("-", "1"),
        ("container", "shm size"): ("8g", "1g"),
    }


def test_only_what_differs_is_marked() -> None:
    text = compare.text(compare.lines(document(A), document(A, max_num_seqs=4)), A, "other")
    marked = [line for line in text.splitlines() if line.startswith("*")]
    assert any("--max-num-seqs" in line for line in marked)
    assert not any("weights" in line for line in marked)
    same = compare.lines(document(A), document(A))
    assert not any(line.differs for line in same)
    assert "*" not in compare.text(same, A, A)


@pytest.mark.parametrize(("left", "right"), [(A, B), (B, A)])
def test_a_plan_with_errors_is_compared_as_far_as_it_goes(left: str, right: str) -> None:
    wrong = document(left, gpu_memory_utilization="80")
    assert wrong["ranks"] == []
    lines = found(wrong, document(right))
    assert lines["plan", "nodes"] == ("0", "8")
    assert lines["reported", "budget, GiB"][0] == "-"
