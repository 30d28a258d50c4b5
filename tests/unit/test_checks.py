"""Tool calls, images, answers without reasoning: asked of a real server, judged by what it answered."""

from __future__ import annotations

import base64
import json
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from modules import load_module
from support import hosts

from gb10 import checks, plan

MODULE = load_module("gb10_endpoint")
MODEL = "deepseek-v4.1-flash"
COUNTED = {"content": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"}
CALL = {"tool_calls": [{"function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}], "content": None}


def pixel(url: str) -> tuple[int, int, int]:
    """The first pixel of a PNG given as a data URL, read by hand."""
    data = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, pixels = 8, b""
    while at < len(data):
        (size,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0]
        pixels += body if kind == b"IDAT" else b""
        at += 12 + size
    red, green, blue = zlib.decompress(pixels)[1:4]
    return red, green, blue


@contextmanager
def engine(**given: Any) -> Iterator[str]:
    """An engine that counts, calls the tool it is offered, and sees the colour of an image, unless ``given`` else."""

    def message(body: Any) -> Any:
        if body.get("tools"):
            (tool,) = body["tools"]
            assert tool["function"]["parameters"]["required"] == ["city"]
            return given.get("tools", CALL)
        content = body["messages"][0]["content"]
        if isinstance(content, list):
            colour = {(255, 0, 0): "Red."}[pixel(content[0]["image_url"]["url"])]
            return given.get("vision", {"content": colour})
        return given.get("count", COUNTED)

    class Handler(BaseHTTPRequestHandler):
        def reply(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.reply(200, {"data": [{"id": MODEL}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert (body["model"], body["temperature"]) == (MODEL, 0)
            answer = message(body)
            if isinstance(answer, int):
                self.reply(answer, {"message": "not on this engine"})
            else:
                self.reply(200, {"choices": [{"message": answer}]})

        def log_message(self, *args: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_address[1]}"
    finally:
        running.shutdown()
        running.server_close()


def fault(url: str, names: Any = checks.NAMES) -> str:
    asked = MODULE.everything(url, MODEL, "Count from 1 to 10.", 50, checks.bodies(names), 5)
    return checks.fault(asked, MODEL, names)


def test_an_engine_that_can_do_all_passes() -> None:
    with engine() as url:
        assert fault(url) == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tools": {"content": "It is sunny in Paris."}}, "tools: the answer holds no tool call"),
        ({"tools": {"tool_calls": [{"function": {"name": "get_weather", "arguments": "{"}}]}}, "no tool call with its"),
        ({"tools": {"tool_calls": [{"function": {"name": "rm", "arguments": '{"city": "Paris"}'}}]}}, "it called rm"),
        ({"tools": {"tool_calls": [{"function": {"name": "get_weather", "arguments": '{"city": "x"}'}}]}}, "'x'"),
        ({"tools": 400}, "tools: HTTP 400"),
        ({"vision": {"content": "I see no image."}}, "vision: a red image was answered with 'I see no image.'"),
        ({"vision": 500}, "vision: HTTP 500"),
        ({"count": COUNTED | {"reasoning_content": "The user wants"}}, "reasoning-off: the answer holds reasoning"),
        ({"count": {"content": "<think>so</think> " + COUNTED["content"]}}, "'<think>'"),
        ({"count": {"content": "la la la la la la"}}, "one repeated token"),
    ],
)
def test_what_it_cannot_do_is_named(given: Any, words: str) -> None:
    with engine(**given) as url:
        assert words in fault(url)


def test_what_a_profile_has_not_is_not_asked() -> None:
    with engine(tools=500, vision=500) as url:
        assert fault(url, [checks.REASONING_OFF]) == ""
    assert checks.bodies([checks.REASONING_OFF]) == {}


def test_the_command_line_tells_what_a_profile_has() -> None:
    argv = plan.build("tp8-300k", hosts("tp8-300k"))["ranks"][0]["argv"]
    assert checks.wanted(argv) == list(checks.NAMES)
    assert checks.wanted(argv, ["vision"]) == ["tools", "reasoning-off"]
    plain = plan.build("tp8-300k", hosts("tp8-300k", tool_call_parser="", limit_mm_per_prompt=None,
                                         default_chat_template_kwargs={"thinking": True}))  # fmt: skip
    assert checks.wanted(plain["ranks"][0]["argv"]) == []
    with pytest.raises(ValueError, match="verify_skip names tool; there are tools, vision"):
        checks.wanted(argv, ["tool"])
