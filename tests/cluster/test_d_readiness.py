"""Readiness is a right answer, within its limit (case 26): an engine that lives and lists its model is not enough."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from lab_run import BIN, INVENTORY, on_node, run

# An engine as its log and /v1/models tell it, whose completions are what the test wants: run by the lab's Python.
ENGINE = """
import http.server, json, sys, time
answer = sys.argv[1]
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.reply({"data": [{"id": "deepseek-v4.1-flash"}]})
    def do_POST(self):
        if answer == "(silence)":
            time.sleep(600)
        self.reply({"choices": [{"message": {"content": answer}}]})
print("INFO:     Application startup complete.", flush=True)
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""
LIMIT = 20  # seconds


@pytest.fixture(autouse=True)
def _gone_afterwards() -> Iterator[None]:
    yield
    on_node("spark-153", "docker", "rm", "-f", "gb10-rank")


def serve(*command: str) -> None:
    mount = "type=bind,source=/srv/lab/engine,target=/srv/lab/engine,readonly"
    start = ["docker", "run", "-d", "--name", "gb10-rank", "--network", "host", "--mount", mount]
    done = on_node("spark-153", *start, "vllm-dsv41:engram-mem", *command)
    assert done.returncode == 0, done.stderr


def watch(limit: int = LIMIT) -> str:
    arguments = {"url": "http://10.77.1.153:8000", "model": "deepseek-v4.1-flash", "head": True, "booting": True}
    arguments |= {"run": "test", "timeout": limit, "slice": 3, "answer_timeout": 5}
    done = run(
        [BIN / "ansible", "spark-153", "-i", INVENTORY, "-b", "-m", "gb10_watch", "-a", json.dumps(arguments)], 180
    )
    return done.stdout + done.stderr


def test_a_living_engine_that_does_not_answer_is_not_ready() -> None:
    serve("/srv/lab/engine/bin/python", "-c", ENGINE, "(silence)")
    said = watch()
    assert "FAILED" in said
    assert f"not ready after {LIMIT} s (phase ready)" in said
    assert "timed out" in said


@pytest.mark.parametrize(
    ("answer", "words"), [("la la la la la la", "one repeated token"), ("1 2 3 4 5", "does not count")]
)
def test_an_engine_that_answers_garbage_is_given_up_long_before_the_limit(answer: str, words: str) -> None:
    serve("/srv/lab/engine/bin/python", "-c", ENGINE, answer)
    said = watch(limit=150)
    assert "FAILED" in said
    assert "3 answers in a row were wrong: " in said
    assert words in said
    assert "not ready after" not in said


def test_the_same_engine_with_the_right_answer_is() -> None:
    serve("/srv/lab/engine/bin/python", "-c", ENGINE, "1 2 3 4 5 6 7 8 9 10")
    assert "SUCCESS" in watch()


def test_a_rank_that_dies_ends_the_watch_at_once_with_its_cause() -> None:
    serve("sh", "-c", "sleep 4; echo 'torch.OutOfMemoryError: CUDA out of memory.'; exit 3")
    said = watch()
    assert "the rank exited with code 3: torch.OutOfMemoryError: CUDA out of memory." in said
    assert "not ready after" not in said


def test_a_known_fault_ends_the_watch_of_a_rank_that_lives_on() -> None:
    serve("sh", "-c", "sleep 4; echo 'NCCL WARN Call to ibv_modify_qp failed with 110'; sleep 300")
    said = watch(limit=150)
    assert "spark-153: [gid-index] The GID index is wrong. Leave nccl_ib_gid_index empty" in said
    assert "Its log says: NCCL WARN Call to ibv_modify_qp failed with 110" in said
