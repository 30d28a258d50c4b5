"""Plans the fabric test from all nodes' facts, and makes the matrix of what they measured. Contacts no node."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import checkout, fabric_matrix, fabric_test, fabric_todo, files, heatmap
from gb10.findings import error, errors, line
from gb10.nodes import address_of
from gb10.settings import plain


class ActionModule(ActionBase):
    """Argument ``facts``: the variable under which every node registered ``gb10_facts``; returns ``test``.

    With ``test`` instead, and ``results`` (the variable that holds each node's), ``matrix_file`` and ``picture``
    (empty: none): returns ``matrix``. Fails with one line per error.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("facts", "test", "results", "matrix_file", "picture"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        hostvars, names = task_vars["hostvars"], task_vars["groups"]["gb10"]
        if "facts" in self._task.args:
            test, findings = self._plan(hostvars, names, task_vars)
            answer = {"test": test}
        else:
            matrix, findings = self._judge(hostvars)
            answer = {"matrix": matrix}
        if errors(findings):  # what was measured is printed, and in its file
            return result | {"failed": True, "msg": "\n".join(map(line, errors(findings)))}
        return result | answer | {"changed": False}

    def _plan(self, hostvars, names, task_vars):
        facts = files.registered(hostvars, names, self._task.args["facts"])
        given = fabric_test.Given(
            facts=facts,
            variables={name: checkout.node_variables(hostvars[name], fabric_todo.VARIABLES) for name in facts},
            addresses={name: address_of(name, hostvars[name]) for name in names},
        )
        return fabric_test.plan_test(
            given, {key: plain(self._templar.template(task_vars.get(key))) for key in fabric_test.VARIABLES}
        )

    def _judge(self, hostvars):
        test = plain(self._task.args["test"])
        sent = {name: plain(hostvars[name].get(self._task.args["results"]) or []) for name in test["nodes"]}
        matrix = fabric_matrix.build(test["nodes"], fabric_test.lost(test, sent), test["tool"], test["limits"])
        Display().display(fabric_matrix.text(matrix, test["label"]))
        findings = fabric_matrix.judge(matrix)
        try:
            if self._task.args.get("matrix_file"):
                target = Path(str(self._task.args["matrix_file"])).expanduser()
                target.write_text(json.dumps(matrix, indent=2, sort_keys=True) + "\n")
            if self._task.args.get("picture"):
                heatmap.write(matrix, test["label"], Path(str(self._task.args["picture"])).expanduser())
        except (OSError, ValueError) as problem:
            message = f"{problem}."
            findings.append(error("matrix-unwritable", message, "Give files in a directory that exists."))
        return matrix, findings
