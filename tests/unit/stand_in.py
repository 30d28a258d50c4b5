"""An OpenAI-compatible endpoint on loopback that streams chat completions on a schedule, and misbehaves when told to.

``python stand_in.py PORT JSON`` runs one; tests start it in a thread.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "deepseek-v4.1-flash"

# By name what an answer may do wrong; ``good`` is right.
FAULTS = ("good", "404", "500", "hang", "no-usage", "cut", "closed", "empty", "text")


@dataclass
class Behaviour:
    """Chunks of an answer as (seconds since the request, text); the usage it tells; what goes wrong in turn."""

    chunks: list[tuple[float, str]] = field(
        default_factory=lambda: [(0.0, ""), (0.05, "a "), (0.06, "b "), (0.07, "c ")]
    )
    usage: int = 3
    faults: list[str] = field(default_factory=lambda: ["good"])
    models: list[str] = field(default_factory=lambda: [MODEL])
    metrics: str = ""
    api_key: str = ""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, behaviour: Behaviour) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.behaviour = behaviour
        self.bodies: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.closing = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def reply(self, body: bytes, status: int = 200, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def asked_with_key(self) -> bool:
        """As vLLM judges it: /v1 alone is guarded."""
        wanted = self.server.behaviour.api_key
        told = self.headers.get("Authorization") == f"Bearer {wanted}"
        return not wanted or told or not self.path.startswith("/v1")

    def do_GET(self) -> None:
        if not self.asked_with_key():
            self.reply(b'{"error": "Unauthorized"}', 401)
        elif self.path == "/health":
            self.reply(b"")
        elif self.path == "/metrics":
            self.reply(self.server.behaviour.metrics.encode(), kind="text/plain")
        elif self.path == "/v1/models":
            models = [{"id": name, "object": "model"} for name in self.server.behaviour.models]
            self.reply(json.dumps({"object": "list", "data": models}).encode())
        else:
            self.reply(b"{}", 404)

    def do_POST(self) -> None:
        begun = time.monotonic()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.asked_with_key():
            return self.reply(b'{"error": "Unauthorized"}', 401)
        told = self.server.behaviour
        with self.server.lock:
            fault = told.faults[len(self.server.bodies) % len(told.faults)]
            self.server.bodies.append(body)
        if body["model"] not in told.models:
            fault = "404"
        if fault in ("404", "500"):
            return self.reply(json.dumps({"error": {"message": f"fault {fault}"}}).encode(), int(fault))
        if fault == "hang":
            self.server.closing.wait(600)
            self.close_connection = True
            return None
        if fault == "text":
            return self.reply(b"<html>it works</html>", kind="text/html")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if fault == "closed":  # the end of the connection is the end of the answer
            self.send_header("Connection", "close")
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.stream(told, fault, begun)
        return None

    def stream(self, told: Behaviour, fault: str, begun: float) -> None:
        chunked = fault != "closed"
        chunks = told.chunks[: len(told.chunks) // 2 + 1] if fault in ("cut", "closed") else told.chunks
        for at, text in [] if fault == "empty" else chunks:
            time.sleep(max(0.0, begun + at - time.monotonic()))
            delta = {"content": text} if text else {"role": "assistant", "content": ""}
            self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, chunked)
        if fault in ("cut", "closed"):
            self.close_connection = True
            return
        if fault != "no-usage":
            self.event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": told.usage}}, chunked)
        self.write(b"data: [DONE]\n\n", chunked)
        self.wfile.write(b"0\r\n\r\n")

    def event(self, body: dict[str, Any], chunked: bool) -> None:
        self.write(
            b"data: "
            + json.dumps({"object": "chat.completion.chunk", "id": "x", "created": 1, "model": MODEL} | body).encode()
            + b"\n\n",
            chunked,
        )

    def write(self, data: bytes, chunked: bool) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n" if chunked else data)
        self.wfile.flush()


@contextmanager
def stand_in(behaviour: Behaviour | None = None, port: int = 0) -> Iterator[tuple[str, Server]]:
    """A running endpoint: its URL, and the server that keeps what it was asked."""
    server = Server(port, behaviour or Behaviour())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    given = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    with stand_in(Behaviour(**given), int(sys.argv[1])) as (url, _server):
        print(url, flush=True)
        threading.Event().wait()
