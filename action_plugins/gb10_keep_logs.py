"""Keeps what all ranks said on the controller, before their containers are removed."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Arguments ``folder`` (of the cluster's history) and ``logs``, the variable under which every node registered
    ``gb10_rank`` with ``keep_lines``. Returns ``kept``: one gzip file a rank, in ``logs/<run>`` of the folder.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("folder", "logs"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        folder = Path(str(self._task.args["folder"])) / "logs" / str(task_vars["gb10_run"])
        kept = []
        try:
            for name in task_vars["groups"]["gb10"]:
                text = (task_vars["hostvars"][name].get(self._task.args["logs"]) or {}).get("log_gz")
                if text and not self._task.check_mode:
                    folder.mkdir(parents=True, exist_ok=True)
                    path = folder / f"{name}.log.gz"
                    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                    with os.fdopen(descriptor, "wb") as stream:
                        stream.write(base64.b64decode(text))
                    kept.append(str(path))
        except OSError as problem:
            message = (
                f"error [logs-unkept] {problem.filename}: {problem.strerror}. The ranks have stopped; no container was "
                "removed. Make room there, or give another serve_kept_dir, and run again."
            )
            return result | {"failed": True, "msg": message}
        return result | {"changed": False, "kept": kept}
