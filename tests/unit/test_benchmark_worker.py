"""The worker on the head against a real HTTP server that behaves and misbehaves; every end is clear and bounded."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmark_runs import SETTINGS
from stand_in import MODEL, Behaviour, stand_in
from support import ROOT

from gb10 import benchmark_client, benchmark_run, benchmark_settings
from gb10.benchmark_client import Unmeasured, fault, result_of

WORKER = ROOT / "src/gb10/benchmark_worker.py"

# A program in the client's place, for what the worker does with clients: it answers with what the real one once wrote.
CLIENT = """
import json, pathlib, sys
given = dict(zip(sys.argv, sys.argv[1:]))
asked = json.loads(pathlib.Path(given["--dataset-path"]).read_text())
assert len(asked) == int(given["--num-prompts"]), asked
raw = json.loads(pathlib.Path(RECORDED).read_text())["good"] | {"input_lens": [], "start_times": []}
pathlib.Path(given["--result-dir"], given["--result-filename"]).write_text(json.dumps(raw))
"""
RECORDED = str(ROOT / "tests/data/vllm-bench.json")
GOOD_CLIENT = [sys.executable, "-c", CLIENT.replace("RECORDED", repr(RECORDED))]


def spec(url: str, **changes: Any) -> dict[str, Any]:
    made = benchmark_settings.spec(SETTINGS, url, MODEL, "/nowhere", "run")
    short = {"timeout": 1.5, "level_timeout": 20, "interval": 0.05, "output_tokens": 15, "command": GOOD_CLIENT}
    return made | short | {"levels": [{"concurrency": 2, "repeat": 1, "requests": 9}]} | changes


def work(url: str, **changes: Any) -> dict[str, Any]:
    """What the worker brings back, run as the container runs it; it must end well in any case."""
    argv = [sys.executable, "-c", WORKER.read_text(), json.dumps(spec(url, **changes))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return result_of(done.stdout)


def with_key(url: str, key: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, Any]:
    """With the environment that the head's file gives the container."""
    monkeypatch.setenv("VLLM_API_KEY", key)
    return work(url, **changes)


def why(url: str, **changes: Any) -> str:
    return fault(work(url, **changes), MODEL, url)


def test_a_level_is_measured_with_the_engines_figures_around_it() -> None:
    metrics = 'vllm:num_preemptions_total{engine="0"} 3.0\nvllm:kv_cache_usage_perc{engine="0"} 0.5\nother 1\n'
    slow = [sys.executable, "-c", "import time; time.sleep(0.5)\n" + GOOD_CLIENT[2]]
    with stand_in(Behaviour(metrics=metrics)) as (url, _):
        found = work(url, command=slow)
    assert fault(found, MODEL, url) == ""
    (level,) = found["levels"]
    assert level["before"] == level["after"] == metrics.splitlines()[:2]
    assert level["highest"] == {"vllm:kv_cache_usage_perc": 0.5}
    (measured,) = benchmark_run.levels(found, 15)
    assert (measured["c"], measured["completed"], measured["repeats"][0]["server"]["preemptions"]) == (2, 9, 0)
    assert measured["ttft_ms"]["p50"] == pytest.approx(500, rel=0.05)


def test_the_probe_asks_as_the_client_does() -> None:
    with stand_in() as (url, server):
        found = work(url)
    assert found["probe"] == {"chunks": ["role", *["content"] * 3], "tokens": 3, "done": True, "error": ""}
    (body,) = server.bodies
    assert (body["model"], body["max_completion_tokens"], body["ignore_eos"], body["stream"]) == (MODEL, 15, True, True)


def test_no_two_prompts_begin_alike() -> None:
    namespace: dict[str, Any] = {"__name__": "worker"}
    exec(compile(WORKER.read_text(), "worker", "exec"), namespace)
    given = spec("http://h")
    levels = benchmark_settings.spec(SETTINGS, "http://h", MODEL, "/m", "run")["levels"]
    asked = [p["conversations"][0]["value"] for level in levels for p in namespace["prompts_of"](given, level)]
    assert len({text.split()[1] for text in asked}) == len(asked) == SETTINGS.requests * SETTINGS.repeats


# --- endpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"faults": ["404"]}, "one streamed answer failed: HTTP 404"),
        ({"faults": ["500"]}, 'one streamed answer failed: HTTP 500: {"error": {"message": "fault 500"}}'),
        ({"faults": ["hang"]}, "one streamed answer failed: timed out"),
        ({"faults": ["no-usage"]}, "told no usage"),
        ({"faults": ["cut"]}, "stopped before its end"),
        ({"faults": ["closed"]}, "stopped before its end"),
        ({"faults": ["empty"]}, "a streamed answer of 0 chunks had no content"),
        ({"faults": ["text"]}, "a streamed answer of 0 chunks had no content"),
        ({"chunks": [[0.0, ""], [0.1, ""]]}, "a streamed answer of 2 chunks had no content"),
        ({"models": ["/data/models/m"]}, f"the endpoint serves /data/models/m, not {MODEL}"),
        ({"models": []}, f"the endpoint serves nothing, not {MODEL}"),
    ],
)
def test_an_endpoint_that_misbehaves_is_not_measured(behaviour: dict[str, Any], words: str) -> None:
    begun = time.monotonic()
    with stand_in(Behaviour(**behaviour)) as (url, _):
        found = work(url)
    assert words in fault(found, MODEL, url)
    assert found["levels"] == []
    assert time.monotonic() - begun < 30


def test_an_endpoint_that_is_down_is_said() -> None:
    with stand_in() as (url, _):
        pass
    assert why(url).startswith(f"nothing answers at {url}: ")


# --- clients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/nowhere/vllm"], "the client /nowhere/vllm does not start: No such file or directory"),
        ([sys.executable, "-c", "raise SystemExit('it is broken')"], "the client ended with 1: it is broken"),
        ([sys.executable, "-c", "pass"], "the client's result cannot be read"),
    ],
)
def test_a_client_that_fails_is_said(command: list[str], words: str) -> None:
    with stand_in() as (url, _):
        found = work(url, command=command)
    with pytest.raises(Unmeasured) as said:
        benchmark_run.levels(found, 15)
    assert words in str(said.value)
    assert "2 at once, repeat 1" in str(said.value)


def test_a_client_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = "import subprocess; p = subprocess.Popen(['sleep', '600'])\n"
    code += f"open({str(pid)!r}, 'w').write(str(p.pid))\np.wait()"
    begun = time.monotonic()
    with stand_in() as (url, _):
        found = work(url, command=[sys.executable, "-c", code], level_timeout=1)
    assert found["levels"][0]["error"] == "the client had not ended after 1 s"
    assert time.monotonic() - begun < 30
    assert not Path(f"/proc/{pid.read_text()}").exists() or "Z" in Path(f"/proc/{pid.read_text()}/stat").read_text()


def test_after_a_level_that_failed_no_other_is_measured() -> None:
    levels = [{"concurrency": c, "repeat": 1, "requests": 1} for c in (1, 2)]
    with stand_in() as (url, _):
        found = work(url, command=["/nowhere"], levels=levels)
    assert len(found["levels"]) == 1


def test_no_success_at_a_level_is_an_end() -> None:
    raw = json.loads(Path(RECORDED).read_text())["good"]
    empty = {
        "ttfts": [0.0] * 2,
        "itls": [[], []],
        "latencies": [0.0] * 2,
        "output_lens": [0, 0],
        "errors": ["Not Found"] * 2,
    }
    level = {"concurrency": 2, "repeat": 1, "requests": 2, "error": "", "before": [], "after": [], "highest": {}}
    probe = {"chunks": ["role", "content"], "tokens": 15, "done": True, "error": ""}
    with pytest.raises(Unmeasured, match=r"2 at once: none of 2 requests completed: Not Found \(2\)"):
        benchmark_run.levels({"probe": probe, "levels": [level | {"raw": raw | empty}]}, 15)
    with pytest.raises(Unmeasured, match="no level was measured"):
        benchmark_run.levels({"probe": probe, "levels": []}, 15)
    assert benchmark_client.leading(probe) == 1


def test_the_key_is_sent_and_handed_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "0123456789abcdef-key"
    client = f"import os\nassert os.environ['OPENAI_API_KEY'] == {key!r}\n" + GOOD_CLIENT[2]
    with stand_in(Behaviour(api_key=key)) as (url, _):
        assert "another API key" in why(url)
        found = with_key(url, key, monkeypatch, command=[sys.executable, "-c", client])
    assert fault(found, MODEL, url) == ""
    assert [level["error"] for level in found["levels"]] == [""]
    assert key not in json.dumps(found)
