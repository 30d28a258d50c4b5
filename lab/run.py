"""Running commands for the lab: argv lists, bounded, nothing left behind when interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_BEGAN = time.monotonic()
_live: set[subprocess.Popen[bytes]] = set()
_live_lock = threading.Lock()
_stopping = threading.Event()


class LabError(Exception):
    """What went wrong and what to do about it, in a line or a few."""


def say(text: str) -> None:
    """Print one progress line with the seconds since the command began."""
    print(f"[{time.monotonic() - _BEGAN:6.1f} s] {text}", flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Print how long the enclosed step took, in seconds, when it ends well."""
    began = time.monotonic()
    yield
    say(f"{text} ({time.monotonic() - began:.1f} s)")


def run(
    argv: list[str],
    *,
    timeout: float,
    check: bool = True,
    stdin: bytes | None = None,
    env: dict[str, str] | None = None,
    log: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``argv`` for at most ``timeout`` seconds and return its exit code and text.

    The command gets a process group of its own, which is ended when the time is up or on an interrupt.
    ``env`` is added to the environment. With ``log`` its output goes to that file instead.

    Raises:
        LabError: the command is missing, took too long or (with ``check``) failed; with its last lines.
    """
    if _stopping.is_set():
        raise KeyboardInterrupt  # the main thread was interrupted: no loop of another thread goes on
    target = log.open("w", encoding="utf-8") if log else None
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=target or subprocess.PIPE,
            stderr=subprocess.STDOUT if target else subprocess.PIPE,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    except FileNotFoundError:
        raise LabError(f"{argv[0]} is not installed; run `python -m lab check`") from None
    finally:
        if target:
            target.close()
    with _live_lock:
        _live.add(process)
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(argv[:4])} ...` did not end within {timeout:.0f} s") from None
    finally:
        if process.poll() is None:
            end_group(process.pid)
            process.wait()
        with _live_lock:
            _live.discard(process)
    stdout = (out or b"").decode(errors="replace")
    stderr = log.read_text(errors="replace") if log else (err or b"").decode(errors="replace")
    if check and process.returncode != 0:
        tail = "\n  ".join((stderr or stdout).strip().splitlines()[-8:])
        raise LabError(f"`{' '.join(argv[:4])} ...` failed with exit code {process.returncode}:\n  {tail}")
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)


def end_group(pid: int, patience: float = 5.0) -> None:
    """End the process group led by our child ``pid``: politely first, after ``patience`` seconds for good."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    break
            except ChildProcessError:
                break
            time.sleep(0.05)


def interrupt() -> None:
    """End every command that other threads still run, and let no new one begin."""
    _stopping.set()
    with _live_lock:
        live = list(_live)
    for process in live:
        end_group(process.pid, patience=2.0)


def each(function: Callable[[Item], Result], items: Iterable[Item], workers: int = 8) -> list[Result]:
    """Call ``function`` for every item in parallel threads; return the results in order, or raise the first error."""
    with ThreadPoolExecutor(max_workers=workers) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException as error:
            for future in futures:
                future.cancel()
            if not isinstance(error, Exception):
                interrupt()
            raise
