"""Makes the plan from inventory and group_vars, on the controller. Contacts no node."""

from __future__ import annotations

from pathlib import Path

from ansible import context
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import api_key, checkout, files, inventory, planning, report
from gb10.findings import Finding, errors, line
from gb10.sources import SourceError

ROOT = Path(__file__).resolve().parents[1]


class ActionModule(ActionBase):
    """Returns ``plan`` (the document). Fails with one line per finding when one of them is an error.

    The API key is judged here too, and is in nothing this returns.
    """

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        try:
            names = task_vars["groups"].get(inventory.GROUP, [])
            given = inventory.inputs(str(task_vars["profile"]), task_vars["hostvars"], names)
            document = planning.document(given, *checkout.role_variables(ROOT))
            if task_vars.get("plan_file"):
                files.write_plan(self._templar.template(task_vars["plan_file"]), document)
        except SourceError as problem:
            return result | {"failed": True, "msg": line(problem.finding)}
        Display().display(report.plan_text(document))
        findings = errors(Finding(**f) for f in document["findings"])
        key, launcher = (self._templar.template(task_vars.get(name)) for name in ("serve_api_key", "serve_launcher"))
        findings += api_key.refusals(key, map(str, context.CLIARGS.get("extra_vars") or []), str(launcher))
        if findings:
            return result | {"failed": True, "msg": "\n".join(map(line, findings))}
        return result | {"changed": False, "plan": document}
