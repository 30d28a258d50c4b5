"""The endpoint module against real servers that are right, wrong, silent or gone (cases 26 and 27)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from modules import load_module, run_module
from stand_in import Behaviour, stand_in

from gb10 import key_file
from gb10.answer import endpoint_fault

MODELS = {"data": [{"id": "deepseek-v4.1-flash"}]}


@contextmanager
def server(answer: str | None, status: int = 200, models: Any = MODELS) -> Iterator[str]:
    """An endpoint whose /health and /v1/models are well; ``answer`` None never answers a completion."""
    release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def reply(self, code: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.reply(200, models)

        def do_POST(self) -> None:
            if answer is None:
                release.wait(30)
                return
            self.reply(status, {"choices": [{"message": {"content": answer}}]})

        def log_message(self, *args: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_address[1]}"
    finally:
        release.set()
        running.shutdown()
        running.server_close()


MODULE = load_module("gb10_endpoint")


def ask(url: str) -> dict[str, Any]:
    return MODULE.everything(url, "deepseek-v4.1-flash", "Count from 1 to 10.", 50, {}, 2)


def test_a_right_answer_is_brought_back() -> None:
    with server("1, 2, 3, 4, 5, 6, 7, 8, 9, 10") as url:
        assert endpoint_fault(ask(url), "deepseek-v4.1-flash") == ""
        whole = run_module("gb10_endpoint", url=url, model="deepseek-v4.1-flash", question="Count from 1 to 10.")
        assert endpoint_fault(whole, "deepseek-v4.1-flash") == ""


@pytest.mark.parametrize(
    ("answer", "status", "models", "words"),
    [
        (None, 200, MODELS, "timed out"),
        ("la la la la la la la", 200, MODELS, "repeated token"),
        ("1 2 3", 500, MODELS, "HTTP 500"),
        ("1 2 3", 404, {"data": [{"id": "other"}]}, "serves other"),
        ("1 2 3", 200, {"object": "list"}, "no list"),
    ],
)
def test_everything_else_is_a_fault(answer: str | None, status: int, models: Any, words: str) -> None:
    with server(answer, status, models) as url:
        assert words in endpoint_fault(ask(url), "deepseek-v4.1-flash")


def test_nobody_there_is_a_fault() -> None:
    with server("x") as url:
        pass
    assert "nothing answers" in endpoint_fault(ask(url), "deepseek-v4.1-flash")


KEY = "0123456789abcdef-key"


@pytest.mark.parametrize(
    ("kept", "words"), [(KEY, "HTTP 404"), ("another-0123456789", "another API key"), ("", "another API key")]
)
def test_the_key_the_node_keeps_is_sent_and_a_401_is_named(tmp_path: Path, kept: str, words: str) -> None:
    """The stand-in knows another model only: what comes after the key is judged is said by its 404."""
    path = tmp_path / "key.env"
    if kept:
        path.write_text(key_file.text(kept))
    with stand_in(Behaviour(api_key=KEY, models=["other"])) as (url, _server):
        asked = run_module("gb10_endpoint", url=url, model="deepseek-v4.1-flash", question="?", key_file=str(path))
    assert words in endpoint_fault(asked, "other")
    assert KEY not in json.dumps(asked)


def test_a_key_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    asked = run_module("gb10_endpoint", url="http://127.0.0.1:9", model="m", question="?", key_file=str(tmp_path))
    assert "The API key cannot be read" in asked["msg"]


def test_what_is_known_is_not_asked_again_and_the_rest_is() -> None:
    chats = {"tools": {"messages": [{"role": "user", "content": "second"}], "max_tokens": 5}}
    known = {"models": {"status": 200, "body": MODELS}, "completion": {"status": 200, "body": {"choices": []}}}
    with stand_in(Behaviour()) as (url, running):
        asked = run_module("gb10_endpoint", url=url, model="m", question="first", chats=chats, known=known)
        questions = [body["messages"][0]["content"] for body in running.bodies]
    assert questions == ["second"]
    assert {part: asked[part] for part in known} == known
