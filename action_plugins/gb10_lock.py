"""Takes or frees the lock on the head: one run at a time acts on the ranks."""

from __future__ import annotations

import getpass
import os
import socket
import time
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import lock
from gb10.findings import line, warning
from gb10.ledger import new_run_id


class ActionModule(ActionBase):
    """Arguments ``state`` (taken, free or read), ``broken`` (run whose lock may be taken over), ``required``.

    Runs on the head (``delegate_to``). Returns ``run``, this run's id, and its ``claim``. Not ``required``: a head that
    cannot be reached keeps nobody from stopping the other ranks.
    """

    _supports_check_mode = True
    _VALID_ARGS = frozenset(("state", "broken", "required"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        args = self._task.args
        run = str(task_vars.get("gb10_run") or new_run_id())
        mine = claim(run, str(task_vars.get("ansible_play_name", "")).lower())
        result |= {"changed": False, "run": run, "claim": mine}
        if args["state"] == "read":
            return result | self._execute_module("gb10_lock", module_args={"state": "read"}, task_vars=task_vars)
        if self._task.check_mode:
            return result | {"msg": "check mode takes no lock"}
        head = task_vars["inventory_hostname"]
        try:
            if args["state"] == "free":
                self._execute_module("gb10_lock", module_args={"state": "free", "run": run}, task_vars=task_vars)
                return result
            return result | self._take(mine, args, head, task_vars)
        except AnsibleConnectionFailure as problem:
            if args["state"] == "taken" and args.get("required", True):
                raise
            said = warning("lock-unreached", f"The lock was not {args['state']}: {problem}", "See the head.", head)
            Display().display(line(said))
            return result

    def _take(self, mine, args, head, task_vars):
        asked = {"state": "taken", "claim": mine, "replace": str(args.get("broken") or "")}
        for _attempt in range(2):
            found = self._execute_module("gb10_lock", module_args=asked, task_vars=task_vars)
            if found.get("taken"):
                if asked["replace"]:
                    Display().display(f"{head}: the lock of run {asked['replace']} was taken over", color="bright blue")
                return {}
            if "held" not in found:
                return found | {"failed": True}
            held = found["held"]
            if not lock.is_dead(held, mine, started(held.get("pid"))):
                return {"failed": True, "msg": line(lock.refusal(held, found["age"], head))}
            Display().display(f"{head}: {lock.told(held, found['age'])}, has ended without freeing the lock")
            asked["replace"] = held["run"]
        return {"failed": True, "msg": line(lock.refusal(held, found["age"], head))}


def claim(run, verb):
    """This run's own claim."""
    pid = os.getppid()  # of the run: this is one of its workers
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return lock.claim(run, verb, getpass.getuser(), socket.gethostname(), boot, pid, started(pid), now)


def started(pid):
    """When a process of this machine started, in clock ticks since its boot; empty where there is none."""
    try:
        words = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()
        return "" if words[0] == "Z" else words[19]
    except (OSError, ValueError, TypeError, IndexError):
        return ""
