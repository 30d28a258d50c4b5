"""Docker's API over its Unix socket, for modules of Ansible on nodes: the standard library alone."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.parse
from typing import Any

TIMEOUT = 20.0  # seconds for one answer of the daemon, beside what an act itself may take


class Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("docker", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        """Opens the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Refused(Exception):
    """Docker did not do what it was asked, or did not answer; the text is its own."""


class Docker:
    """The engine behind a socket. Every call raises Refused where no engine answers."""

    def __init__(self, path: str) -> None:
        self.path = path

    def call(self, method: str, url: str, seconds: float = 0.0) -> tuple[int, bytes]:
        """Status and body. ``seconds``: what the act may take beyond ``TIMEOUT``."""
        connection = Connection(self.path, TIMEOUT + seconds)
        try:
            connection.request(method, url)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as problem:
            raise Refused(f"Docker does not answer: {problem}") from None
        finally:
            connection.close()

    def get(self, url: str) -> Any:
        """A JSON answer; None where there is no such thing (404). Raises Refused for any other status."""
        status, body = self.call("GET", url)
        if status == 404:
            return None
        if status != 200:
            raise Refused(said(status, body))
        try:
            return json.loads(body)
        except ValueError:
            raise Refused(f"Docker answered no JSON to {url}") from None

    def act(self, method: str, url: str, seconds: float = 0.0, done: tuple[int, ...] = (200, 204, 304)) -> None:
        """An act; ``done``: the statuses that mean it is as wanted. Raises Refused."""
        status, body = self.call(method, url, seconds)
        if status not in done:
            raise Refused(said(status, body))


def said(status: int, body: bytes) -> str:
    """Docker's own words about an error."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}"


def container(name: str) -> str:
    """The address of a container in the API."""
    return "/containers/" + urllib.parse.quote(name, safe="")
