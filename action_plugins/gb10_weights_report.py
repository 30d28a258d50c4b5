"""Prints and keeps what every node has of the checkpoint, and fails where something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import weights_report
from gb10.findings import line
from gb10.settings import plain


class ActionModule(ActionBase):
    """Arguments ``looks`` (the variable under which every node registered ``gb10_weights``) and ``path``."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("looks", "path"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        hostvars, names = task_vars["hostvars"], task_vars["groups"]["gb10"]
        order = sorted(names, key=lambda name: int(hostvars[name].get("node_rank", 0)))
        states = {name: state(plain(hostvars[name].get(self._task.args["looks"]) or {})) for name in order}
        if self._task.args["path"]:
            Path(str(self._task.args["path"])).write_text(json.dumps(states))
        Display().display(weights_report.text(states))
        found = weights_report.findings(states)
        if found:
            return result | {"failed": True, "msg": "\n".join(map(line, found))}
        return result | {"changed": False}


def state(registered):
    """What a node said; why not, where it said nothing."""
    if "reasons" in registered:
        return {key: registered[key] for key in ("reasons", "unread", "files", "hashed", "have", "total", "free")}
    return {"failed": " ".join(str(registered.get("msg") or "It was not asked.").split())}
