"""The Docker engine that holds the nodes: the machine's own where one answers, else one the lab starts."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

from lab.cache import cache_dir
from lab.run import LabError, run, say

SOCKET = "unix:///var/run/docker.sock"
RUN_DIR = Path("/run/gb10-lab")
_PIDFILE = RUN_DIR / "dockerd.pid"
_LOG = RUN_DIR / "dockerd.log"
_CONFIG = RUN_DIR / "daemon.json"
_EXEC_ROOT = RUN_DIR / "exec"
_CONTAINERD_PIDFILE = _EXEC_ROOT / "containerd" / "containerd.pid"
START_SECONDS = 60
STOP_SECONDS = 60


def docker(*arguments: str, timeout: float = 60, check: bool = True, stdin: bytes | None = None) -> str:
    """Run the docker client against the lab's engine and return what it printed, stripped."""
    argv = ["docker", "--host", SOCKET, *arguments]
    return run(argv, timeout=timeout, check=check, stdin=stdin).stdout.strip()


def answers() -> bool:
    """Return whether a Docker engine answers on the default socket."""
    if not Path(SOCKET.removeprefix("unix://")).exists() or shutil.which("docker") is None:
        return False
    try:
        result = run(["docker", "--host", SOCKET, "info", "--format", "{{.ServerVersion}}"], timeout=20, check=False)
    except LabError:
        return False
    return result.returncode == 0 and bool(result.stdout.strip())


def data_root() -> Path:
    """Return where our own engine keeps images, containers and volumes."""
    return cache_dir() / "docker"


def own_pid() -> int | None:
    """Return the process id of the engine the lab started, or None when it does not run."""
    try:
        pid = int(_PIDFILE.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return pid if str(_CONFIG).encode() in command else None


def holds_nodes() -> bool:
    """Return whether our own engine's disk holds containers or volumes, as after a crash or a reboot."""
    root = data_root()
    return any((root / "containers").glob("*")) or any((root / "volumes").glob("gb10-lab-*"))


def ensure() -> bool:
    """Make a Docker engine answer; return whether one had to be started.

    Raises:
        LabError: it did not come up in time; with the end of its log.
    """
    if answers():
        return False
    pid = own_pid()
    if pid is not None:  # alive but deaf
        say(f"the lab's Docker engine (process {pid}) does not answer: starting it anew")
        end(pid)
    _PIDFILE.unlink(missing_ok=True)
    # dockerd waits in vain for a containerd that died with its predecessor but was not reaped yet.
    if _CONTAINERD_PIDFILE.exists() and gone(int(_CONTAINERD_PIDFILE.read_text())):
        _CONTAINERD_PIDFILE.unlink()
    _start()
    return True


def _start() -> None:
    RUN_DIR.mkdir(parents=True, exist_ok=True)
    data_root().mkdir(parents=True, exist_ok=True)
    _CONFIG.write_text(
        json.dumps(
            {
                "data-root": str(data_root()),
                "exec-root": str(_EXEC_ROOT),
                "pidfile": str(_PIDFILE),
                "hosts": [SOCKET],
                "bridge": "none",
                "userland-proxy": False,
                "log-level": "warn",
            }
        )
    )
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with _LOG.open("ab") as log:
        argv = ["dockerd", "--config-file", str(_CONFIG)]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise LabError(f"dockerd ended with exit code {process.returncode}:\n{_log_tail()}")
            if answers():
                return
            time.sleep(0.3)
        raise LabError(f"dockerd did not answer within {START_SECONDS} s:\n{_log_tail()}")
    except BaseException:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        raise


def _log_tail(lines: int = 15) -> str:
    return "\n".join("  " + line for line in _LOG.read_text(errors="replace").splitlines()[-lines:])


def stop() -> bool:
    """Stop the engine the lab started, and nothing else; return whether there was one."""
    pid = own_pid()
    if pid is not None:
        end(pid)
    _end_leftovers()
    _unmount_leftovers()
    shutil.rmtree(RUN_DIR, ignore_errors=True)
    return pid is not None


def end(pid: int) -> None:
    """End process ``pid``: politely, after STOP_SECONDS for good."""
    for number, patience in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 5)):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if gone(pid):
                return
            time.sleep(0.1)
    raise LabError(f"process {pid} does not end; see `ps {pid}`")


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def _end_leftovers() -> None:
    """End the containerd and shims of an engine that was killed: those whose command names our directory."""
    mark = str(_EXEC_ROOT).encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            program, *arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"containerd" in program and any(mark in argument for argument in arguments):
            end(int(entry.name))


def _unmount_leftovers() -> None:
    """Unmount what a killed engine left mounted under our directories, the innermost first."""
    for target in mounts_under((RUN_DIR, data_root()), Path("/proc/self/mounts").read_text()):
        run(["umount", "--lazy", target], timeout=30, check=False)


def mounts_under(roots: tuple[Path, ...], mounts: str) -> list[str]:
    """Return the mount points at or below ``roots`` in a /proc/mounts text, the last mounted first."""
    targets = [line.split()[1].encode().decode("unicode_escape") for line in mounts.splitlines() if line]
    return [target for target in reversed(targets) if any(Path(target).is_relative_to(root) for root in roots)]
