"""nginx as docs/proxy.md says, on loopback: the documentation's own file with addresses, names and paths put in."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import ROOT

RECIPE = ROOT / "docs/proxy/gb10.conf"
KEY = "a-key-of-this-test-alone"
# Debian's package must not start a server of its own.
QUIET = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}


def _installed() -> str:
    """Path of nginx, installed from the distribution where it is missing."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    if shutil.which("nginx", path=path) is None:
        for command in (["update"], ["install", "--yes", "--no-install-recommends", "nginx-light"]):
            subprocess.run(
                ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *command], env=QUIET, check=True, timeout=600
            )
    found = shutil.which("nginx", path=path)
    assert found
    return found


def free_port() -> int:
    """A port of loopback nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _put_in(text: str, old: str, new: str) -> str:
    assert old in text, f"{RECIPE.name} no longer has {old!r}"
    return text.replace(old, new)


@contextmanager
def proxy(folder: Path, *upstreams: str) -> Iterator[tuple[int, Path]]:
    """Port and certificate of an nginx in front of ``upstreams`` (``address:port``), ended when the context is."""
    nginx, port = _installed(), free_port()
    subject = ["-subj", "/CN=gb10.example.org", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    made += ["-keyout", str(folder / "gb10.key"), "-out", str(folder / "gb10.crt")]
    subprocess.run(made, check=True, timeout=60, capture_output=True)
    (folder / "gb10-keys.map").write_text(f'"Bearer {KEY}" 1;\n')
    text = _put_in(RECIPE.read_text(), "/etc/nginx/", f"{folder}/")
    text = _put_in(text, "/var/log/nginx/", f"{folder}/")
    text = _put_in(text, "listen 443", f"listen 127.0.0.1:{port}")
    line = "server 192.168.1.153:8000 max_fails=1 fail_timeout=10s;"
    text = _put_in(text, line, "\n".join(line.replace("192.168.1.153:8000", each) for each in upstreams))
    body = f"daemon off; pid {folder}/pid; error_log {folder}/error.log;\nevents {{}}\nhttp {{\n{text}\n}}\n"
    (folder / "nginx.conf").write_text(body)
    command = [nginx, "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=30, check=False)
    assert checked.returncode == 0, checked.stderr
    with subprocess.Popen(command, start_new_session=True) as server:
        try:
            _until_it_listens(port)
            yield port, folder / "gb10.crt"
        finally:
            server.terminate()
            server.wait(30)


def _until_it_listens(port: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("nginx does not listen after 30 s")
