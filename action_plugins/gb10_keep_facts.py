"""Keeps what all nodes said in a file of facts, on the controller."""

from __future__ import annotations

from ansible.plugins.action import ActionBase

from gb10 import files
from gb10.findings import line
from gb10.sources import SourceError


class ActionModule(ActionBase):
    """Arguments ``facts`` (the variable under which every node registered ``gb10_facts``) and ``path``."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("facts", "path"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        facts = files.registered(task_vars["hostvars"], task_vars["groups"]["gb10"], self._task.args["facts"])
        try:
            files.write_facts(self._task.args["path"], facts)
        except SourceError as problem:
            return result | {"failed": True, "msg": line(problem.finding)}
        return result | {"changed": False}
