"""Opens this run's entry in the change history; fails the run when the ledger cannot be written or does not verify.

The callback of the same name closes the entry. An entry without an end is a run that was killed.
"""

from __future__ import annotations

import getpass
import socket
import subprocess
import time
from pathlib import Path

from ansible import context
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

from gb10.ledger import append, new_run_id
from gb10.settings import SINGLE

ROOT = Path(__file__).resolve().parents[1]


class ActionModule(ActionBase):
    """Argument ``folder``: where the ledger is kept. Returns ``ledger`` (path) and ``run``. No entry in check mode."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("folder",))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        ledger = Path(str(self._task.args["folder"])) / "ledger.jsonl"
        run = str(task_vars.get("gb10_run") or new_run_id())
        if self._task.check_mode:
            return result | {"changed": False, "skipped": True, "msg": "check mode leaves no record"}
        deployment = task_vars.get("gb10_deploy") or {}
        body = {
            "kind": "begin",
            "run": run,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "operator": getpass.getuser(),
            "controller": socket.gethostname(),
            "commit": commit(),
            "cluster": str(task_vars.get("cluster_name", "")),
            "profile": str(deployment.get("profile", "")),
            "plan_hash": str(deployment.get("plan_hash", "")),
            "overrides": overrides(self._loader),
        }
        try:
            append(ledger, body)
        except (OSError, ValueError) as problem:
            message = (
                f"error [history-unwritable] {ledger}: {problem}. Nothing was changed. Keep the file as it is, "
                "look into it, and move it away or give another change_history_dir to go on."
            )
            return result | {"failed": True, "msg": message}
        return result | {"changed": False, "ledger": str(ledger), "run": run}


def commit():
    """Commit of this checkout, with ``+`` when it has changes; empty where there is no git."""
    try:
        words = [
            subprocess.run(["git", "-C", str(ROOT), *a], capture_output=True, text=True, timeout=10, check=True).stdout
            for a in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        ]
    except (OSError, subprocess.SubprocessError):
        return ""
    return words[0].strip() + ("+" if words[1].strip() else "")


def overrides(loader):
    """Extra variables by name. Only settings of one value show it: anything else may hold a secret."""
    given = load_extra_vars(loader) if context.CLIARGS.get("extra_vars") else {}
    shown = {}
    for name in sorted(given):
        plain = name in (*SINGLE, "profile") and isinstance(given[name], str | int | float | bool)
        shown[name] = str(given[name]) if plain else "(set)"
    return shown
