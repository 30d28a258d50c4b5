"""A stand-in for Hugging Face's hub on loopback: the endpoints its own client asks, no more. It proves how the client
is driven, not that the public hub answers so.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass
class Hub:
    """One repository. ``served`` stands for what a damaged store gives out in place of a file; ``slow`` seconds pass
    after every 64 KiB; ``asked`` holds (method, path, Range, Authorization)."""

    files: dict[str, bytes]
    large: tuple[str, ...] = (".safetensors",)
    token: str = ""
    slow: float = 0.0
    served: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str, str, str]] = field(default_factory=list)
    sent: int = 0
    endpoint: str = ""

    def about(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        known: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": blob_id(data)}
        if name.endswith(self.large):
            known["lfs"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}
        return known

    def __enter__(self) -> Hub:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                self.answer(False)

            def do_GET(self) -> None:
                self.answer(True)

            def answer(self, body: bool) -> None:
                seen = self.headers.get("Range", ""), self.headers.get("Authorization", "")
                hub.asked.append((self.command, self.path, *seen))
                if hub.token and seen[1] != f"Bearer {hub.token}":
                    return self.say(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "no access"}, b"", body)
                path, _, _query = self.path.partition("?")
                parts = path.strip("/").split("/")
                if parts[:2] == ["api", "models"] and len(parts) > 4 and parts[4] == "tree":
                    listed = [hub.about(name) for name in hub.files]
                    items = [
                        {"type": "file", "path": a["rfilename"], "size": a["size"], "oid": a["blobId"]}
                        | (
                            {"lfs": {"oid": a["lfs"]["sha256"], "size": a["size"], "pointerSize": 134}}
                            if "lfs" in a
                            else {}
                        )
                        for a in listed
                    ]
                    return self.say(200, {"Content-Type": "application/json"}, json.dumps(items).encode(), body)
                if parts[:2] == ["api", "models"]:
                    repo = {"id": "/".join(parts[2:4]), "sha": COMMIT, "private": False}
                    repo["siblings"] = [hub.about(name) for name in hub.files]  # type: ignore[assignment]
                    return self.say(200, {"Content-Type": "application/json"}, json.dumps(repo).encode(), body)
                if len(parts) > 4 and parts[2] == "resolve" and (name := "/".join(parts[4:])) in hub.files:
                    about = hub.about(name)
                    etag = about["lfs"]["sha256"] if "lfs" in about else about["blobId"]
                    head = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
                    if "lfs" in about:
                        head |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(about["size"])}
                    data, start = hub.served.get(name, hub.files[name]), 0
                    if seen[0]:
                        start = int(seen[0].removeprefix("bytes=").partition("-")[0])
                        head["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                    return self.say(206 if seen[0] else 200, head, data[start:], body)
                return self.say(404, {"X-Error-Code": "RepoNotFound"}, b"", body)

            def say(self, status: int, head: dict[str, str], data: bytes, body: bool) -> None:
                self.send_response(status)
                for key, value in head.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                for at in range(0, len(data) if body else 0, 1 << 16):
                    try:
                        self.wfile.write(data[at : at + (1 << 16)])
                    except OSError:  # the client was killed
                        self.close_connection = True
                        return
                    hub.sent += len(data[at : at + (1 << 16)])
                    time.sleep(hub.slow)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self.server.shutdown()
        self.server.server_close()
