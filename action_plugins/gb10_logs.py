"""Shows what every rank wrote last."""

from __future__ import annotations

from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import files, nodes_cli
from gb10.settings import plain


class ActionModule(ActionBase):
    """Arguments ``readings``, the variable under which nodes registered ``gb10_rank``; ``path``, a file for it all."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("readings", "path"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars) | {"changed": False}
        nodes = {}
        for name in task_vars["ansible_play_hosts_all"]:
            read = task_vars["hostvars"][name].get(self._task.args["readings"]) or {}
            rank = read.get("rank")
            nodes[name] = None if rank is None else plain(rank.get("log") or ["(no rank container)"])
        document = {"schema": 1, "nodes": nodes}
        if self._task.args.get("path"):
            try:
                Path(str(self._task.args["path"])).write_text(files.text(document))
            except OSError as problem:
                raise AnsibleActionFail(f"logs_file {problem.filename}: {problem.strerror}.") from None
        Display().display(nodes_cli.said("logs", document))
        return result
