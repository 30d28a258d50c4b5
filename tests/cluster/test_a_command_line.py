"""The GPU command lines, judged by vLLM's own argument parser (the lab's engine brings it)."""

from __future__ import annotations

import json
from typing import Any

from lab_run import engine_says
from support import hosts

from gb10 import plan

PROFILES = ("tp8-300k", "tp8-1m", "tp4-300k")


def verdicts(lines: list[list[str]]) -> list[dict[str, Any]]:
    judged: list[dict[str, Any]] = json.loads(engine_says("parse_args.py", json.dumps(lines)))
    return judged


def test_vllm_takes_every_ranks_command_line_and_refuses_a_wrong_one() -> None:
    lines = [rank["argv"][2:] for p in PROFILES for rank in plan.build(p, hosts(p))["ranks"]]
    assert len(lines) == 20
    wrong = [*lines[0], "--no-such-flag"]
    bad_json = [word.replace('"dspark"', "dspark") for word in lines[0]]
    judged = verdicts([*lines, wrong, bad_json])
    assert [v for v in judged[:20] if "accepted" not in v] == []
    assert all("refused" in v for v in judged[20:]), judged[20:]
    head = judged[0]["accepted"]
    assert head["tensor_parallel_size"] == 8
    assert head["max_model_len"] == 300000
