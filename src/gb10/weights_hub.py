"""A download by Hugging Face's own tool on a node: begun, looked at, ended. Standard library only.

The tool runs under a supervisor of its own session, which ends it when nobody looked for ``lease`` seconds. What it
brought stays in its folder, so that the next one goes on from there; nothing there counts before it was verified.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import whole
from .relay.node import birth
from .relay.problem import Problem

STATE, LOG, BEAT, HOME = ".gb10-hf.json", ".gb10-hf.log", ".gb10-hf.beat", ".gb10-hf-home"
TICK = 0.2  # s between two looks of the supervisor
END = 10.0  # s the tool gets to end before it is killed


def argv(program: str, repository: str, revision: str, folder: Path, paths: Sequence[str]) -> list[str]:
    """The command line; no token is on it."""
    given = ["--revision", revision] if revision else []
    return [program, "download", repository, *paths, *given, "--local-dir", str(folder)]


def environment(folder: Path, endpoint: str, token: str) -> dict[str, str]:
    """What the tool sees: nothing of it stays outside of the folder, and no telemetry."""
    own = {"HF_HOME": str(folder / HOME), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    own["HF_HUB_DISABLE_XET"] = "1"  # its transfers begin a file anew when they were killed
    own |= {"HF_ENDPOINT": endpoint} if endpoint else {}
    own |= {"HF_TOKEN": token} if token else {}
    return {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"} | own


def start(folder: Path, command: Sequence[str], env: Mapping[str, str], lease: float) -> None:
    """Begins, or goes on looking at the one that runs. Raises Problem."""
    beat(folder)
    if status(folder)["running"]:
        return
    ready, told = os.pipe()
    child = os.fork()
    if child:
        os.close(told)
        with os.fdopen(ready, "rb") as pipe:
            pipe.read()
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        supervise(folder, command, env, lease, told)
    finally:
        os._exit(0)


def supervise(folder: Path, command: Sequence[str], env: Mapping[str, str], lease: float, told: int) -> None:
    """Runs the tool to its end, or until nobody looks; the state file says how it ended."""
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for target, handle in ((0, null), (1, log), (2, log)):
        os.dup2(handle, target)
    for handle in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if handle > 2 and handle != told:  # of whoever started us: it must not wait for our end
            with contextlib.suppress(OSError):
                os.close(handle)
    own = {"pid": os.getpid(), "started": birth(os.getpid())}
    keep(folder, own | {"code": None})
    os.close(told)
    try:
        tool = subprocess.Popen(command, env=dict(env), cwd=folder)
    except OSError as problem:
        os.write(1, f"{command[0]}: {problem.strerror}\n".encode())
        keep(folder, own | {"code": 127})
        return
    signal.signal(signal.SIGTERM, lambda *_: tool.terminate())
    while tool.poll() is None:
        if not (folder / BEAT).exists() or time.time() - (folder / BEAT).stat().st_mtime > lease:
            tool.terminate()
            try:
                tool.wait(END)
            except subprocess.TimeoutExpired:
                tool.kill()
        time.sleep(TICK)
    if folder.is_dir():
        keep(folder, own | {"code": tool.returncode})


def keep(folder: Path, state: Mapping[str, Any]) -> None:
    """The state file."""
    whole.write(folder / STATE, json.dumps(state).encode(), 0o600)


def beat(folder: Path) -> None:
    """Somebody looks. Raises Problem."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / BEAT).touch()
        os.utime(folder / BEAT)
    except OSError as problem:
        raise Problem("weights-unwritable", f"{folder}: {problem.strerror}. Make it writable, and run again.") from None


def status(folder: Path, paths: Sequence[str] = ()) -> dict[str, Any]:
    """``running``, the tool's exit ``code`` (None while it runs, -1 when it ended without a word), ``have`` bytes on
    disk, and what it ``said``.

    The tool ends well when it may not read the repository but its folder exists: a file of ``paths`` that is not there
    is a failure too.
    """
    try:
        state = json.loads((folder / STATE).read_text())
        alive = bool(birth(int(state["pid"])) == state["started"] != -1)
        if not alive and state["code"] is None:  # it ended since
            state = json.loads((folder / STATE).read_text())
        running = alive and state["code"] is None
    except (OSError, ValueError, KeyError, TypeError):
        return {"running": False, "code": -1, "have": size(folder), "said": ""}
    code = None if running else -1 if state["code"] is None else state["code"]
    said = last_line(folder / LOG)
    if code == 0 and (absent := [path for path in paths if not (folder / path).is_file()]):
        code, said = -1, f"{absent[0]} did not come: {said}"
    return {"running": running, "code": code, "have": size(folder), "said": said}


def size(folder: Path) -> int:
    """Bytes on disk of what was downloaded."""
    held = 0
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != HOME]
        for name in names:
            if not name.startswith(".gb10-hf"):
                with contextlib.suppress(FileNotFoundError):
                    stat = (Path(base) / name).stat()
                    held += min(stat.st_size, stat.st_blocks * 512)
    return held


def last_line(path: Path) -> str:
    """The last error a program said, else its last line."""
    try:
        text = path.read_bytes()[-4000:].decode(errors="replace")
    except OSError:
        return ""
    lines = ["".join(c for c in line if c.isprintable()).strip() for line in text.splitlines()]
    told = [line for line in lines if "rror" in line] or [line for line in lines if line]
    return re.sub(r"\[\d+m", "", told[-1])[:300] if told else ""


def stop(folder: Path) -> None:
    """Ends the tool within END seconds and a little; what it brought stays."""
    (folder / BEAT).unlink(missing_ok=True)
    end = time.monotonic() + END + 2
    while status(folder)["running"] and time.monotonic() < end:
        time.sleep(TICK)
