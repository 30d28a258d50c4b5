"""The controller's timers, as systemd itself reads them, with paths that mean something to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from gb10.timers import Units, quoted


def written(folder: Path, **more: str) -> Path:
    """The units in a directory, for a checkout whose name has a space and a per cent sign."""
    checkout = folder / "a 50% checkout"
    bin_ = checkout / ".venv/bin"
    bin_.mkdir(parents=True)
    for name in ("ansible-playbook", "gb10"):
        (bin_ / name).write_text("#!/bin/sh\n")
        (bin_ / name).chmod(0o755)
    given = {"checkout": str(checkout), "inventory": "/srv/my hosts.yml", "user": "root", "python_bin": str(bin_)}
    for name, text in Units(**given, **{"recover_every": "5min", "drift_every": "1h", **more}).files().items():
        (folder / name).write_text(text)
    return folder


def verify(folder: Path) -> subprocess.CompletedProcess[str]:
    units = sorted(folder.glob("gb10-*"))
    assert len(units) == 4
    return subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=60, check=False
    )


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    done = verify(written(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_says_what_is_no_time_span(tmp_path: Path) -> None:
    assert "often" in verify(written(tmp_path, recover_every="often")).stderr


@pytest.mark.parametrize(
    ("word", "text"), [("/a/b", "/a/b"), ("/a b", '"/a b"'), ("50%", "50%%"), ("$HOME", "$$HOME"), ('a"b', '"a\\"b"')]
)
def test_words_are_quoted_as_systemd_reads_them(word: str, text: str) -> None:
    assert quoted(word) == text


def test_the_command_writes_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gb10.cli", "timers", "-i", "inventory/hosts.yml", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "gb10-recover.service").read_text()
    assert f"-i {ROOT}/inventory/hosts.yml" in text
    assert "enable --now gb10-recover.timer" in done.stderr
