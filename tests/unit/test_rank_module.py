"""The rank's module where no Docker answers: looking says so, acting fails, the record is kept.

Where one does: whether its rank carries the API key it should, and not which.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from modules import run_module

from gb10 import key_file


def rank(tmp_path: Path, **given: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"docker_socket": str(tmp_path / "none.sock"), **given}
    return run_module("gb10_rank", **arguments)


def test_looking_says_that_docker_does_not_answer(tmp_path: Path) -> None:
    found = rank(tmp_path, image="sha256:aa", node=True)
    assert not found["changed"]
    assert found["rank"]["exists"] is False
    assert found["rank"]["problem"].startswith("Docker does not answer: ")
    assert found["image_held"] is False
    assert found["node"]["total_kib"] > found["node"]["available_kib"] > 0


def test_acting_fails_in_words(tmp_path: Path) -> None:
    found = rank(tmp_path, state="stopped")
    assert found["msg"].startswith("Docker does not answer: ")
    assert "Traceback" not in json.dumps(found)


def test_the_record_is_written_once_for_root_alone(tmp_path: Path) -> None:
    path = tmp_path / "below/wanted.json"
    checked = rank(tmp_path, check=True, record=str(path), wanted="one\n")
    assert (checked["changed"], path.exists(), checked["record"]) == (True, False, "")
    first = rank(tmp_path, record=str(path), wanted="one\n")
    assert (first["changed"], first["record"]) == (True, "one\n")
    assert path.stat().st_mode & 0o777 == 0o600
    assert not rank(tmp_path, record=str(path), wanted="one\n")["changed"]
    assert [p.name for p in path.parent.iterdir()] == ["wanted.json"]
    assert rank(tmp_path, record=str(path))["record"] == "one\n"


def test_what_the_node_lacks_of_what_a_rank_was_told_to_use(tmp_path: Path) -> None:
    """A renamed interface, an HCA that is gone, an address of another node."""
    assert rank(tmp_path, needs={"interfaces": ["lo"], "addresses": ["127.0.0.1"], "hcas": []})["lacks"] == []
    needs = {"interfaces": ["lo", "enp9s9"], "hcas": ["rocep9s9"], "addresses": ["192.0.2.7", "2001:db8::7", "host"]}
    interface, hca, *addresses = rank(tmp_path, needs=needs)["lacks"]
    assert interface.startswith("interface enp9s9 (it has ")
    assert "lo" in interface
    assert hca.startswith("HCA rocep9s9 (it has ")
    assert addresses == ["address 192.0.2.7", "address 2001:db8::7", "address host"]
    assert "lacks" not in rank(tmp_path)


KEY = "0123456789abcdef-key"
OTHER = "another-0123456789"


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def docker(path: Path, env: list[str]) -> Iterator[None]:
    """Docker's API on a socket, with a rank of this environment."""
    rank = {"Id": "aa", "Config": {"Env": env, "Labels": {}}, "State": {"Running": True, "Status": "running"}}
    answers = {"/containers/json?all=true": [], "/containers/gb10-rank/json": rank}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers.get(self.path, {})).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "docker"

        def log_message(self, *args: Any) -> None:
            pass

    with UnixServer(str(path), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield
        running.shutdown()


@pytest.mark.parametrize(
    ("kept", "carried", "given", "differs"),
    [
        ("", "", None, False),
        (KEY, KEY, None, False),
        (KEY, OTHER, None, True),  # a run was killed between the file and the restart
        (KEY, "", None, True),
        ("", KEY, None, True),
        ("", "", KEY, True),
        (KEY, KEY, OTHER, True),
        ("", KEY, KEY, False),  # somebody removed the file: the rank is right
        (KEY, KEY, "", True),
    ],
)
def test_a_rank_with_another_key_is_told(
    tmp_path: Path, kept: str, carried: str, given: str | None, differs: bool
) -> None:
    path, more = tmp_path / "key.env", {} if given is None else {"key": given}
    if kept:
        path.write_text(key_file.text(kept))
    with docker(tmp_path / "docker.sock", ["A=1", *([f"VLLM_API_KEY={carried}"] if carried else [])]):
        found = run_module(
            "gb10_rank", docker_socket=str(tmp_path / "docker.sock"), key_file=str(path), lines=0, **more
        )
    assert (found["rank"]["key_differs"], found["key_file"]) == (differs, str(path) if kept else "")
    assert KEY not in json.dumps(found)
    assert OTHER not in json.dumps(found)


def test_a_key_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    assert "The API key cannot be read" in rank(tmp_path, key_file=str(tmp_path))["msg"]
