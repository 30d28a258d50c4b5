"""The GPU command lines, judged by vLLM's own argument parser (the lab's engine brings it)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml
from support import ROOT, hosts

from gb10 import plan

PROFILES = ("tp8-300k", "tp8-1m", "tp4-300k")


def verdicts(lines: list[list[str]]) -> list[dict[str, Any]]:
    engine = Path(yaml.safe_load((ROOT / ".lab/inventory/group_vars/lab.yml").read_text())["lab_engine_dir"])
    done = subprocess.run(
        [engine / "bin/python", ROOT / "lab/parse_args.py"],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    judged: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
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
