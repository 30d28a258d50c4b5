"""Says what the engine reports after a boot beside the plan's figures, and keeps both."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import calibration, engine_report, report
from gb10.findings import line, warning
from gb10.settings import plain


class ActionModule(ActionBase):
    """Arguments ``folder`` (of the cluster's history), ``apart`` (percent) and ``ready``, the variable under which
    every node registered ``gb10_watch``. Returns ``lines`` and ``findings``.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("folder", "apart", "ready"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars) | {"changed": False}
        deployment, run = task_vars["gb10_deploy"], str(task_vars["gb10_run"])
        memory = plain((task_vars.get("gb10_plan") or {}).get("memory") or {})
        ranks, findings, answer = {}, [], ""
        for rank in deployment["ranks"]:
            ready = task_vars["hostvars"][rank["node"]].get(self._task.args["ready"]) or {}
            ranks[rank["node"]] = plain((ready.get("rank") or {}).get("figures") or {})
            answer = answer or str(ready.get("answer") or "")
            for note in (ready.get("rank") or {}).get("notes") or []:
                if note["what"] in rank["env"]:  # what others set on the node is not ours to judge
                    remedy = "Remove it, unless another image of yours knows it."
                    findings.append(warning("engine-note", f"{note['what']}: {note['message']}", remedy, rank["node"]))
        lines = engine_report.compare(memory, ranks)
        findings += engine_report.findings(lines, float(self._task.args["apart"]))
        document = {"schema": 1, "run": run, "plan_hash": str(deployment["plan_hash"]), "ranks": ranks}
        document["lines"] = [one.as_dict() for one in lines]
        self._say(task_vars, deployment, answer, lines, findings)
        try:
            if any(ranks.values()):
                folder = Path(str(self._task.args["folder"])) / "logs" / run
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "engine.json").write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
            self._learn(task_vars, memory, ranks, run)
        except (OSError, calibration.Unreadable) as problem:
            said = warning("report-unkept", f"What the engine reported is not kept: {problem}.", "The ranks serve.")
            findings.append(said)
            Display().display(line(said))
        return result | {"lines": document["lines"], "findings": [f.as_dict() for f in findings]}

    def _say(self, task_vars, deployment, answer, lines, findings):
        rows = [(one.what, *map(engine_report.number, (one.planned, one.measured)), one.node) for one in lines]
        if rows:
            Display().display(report.table(("of a rank", "planned", "engine", "node"), rows))
        seen = set()
        for finding in findings:
            if (finding.code, finding.message) not in seen:  # eight ranks say the same
                seen.add((finding.code, finding.message))
                Display().display(line(finding))
        if answer:
            Display().display(f"The endpoint answers: {answer}")

    def _learn(self, task_vars, memory, ranks, run):
        path = str(self._templar.template(task_vars.get("calibration_file") or ""))
        found = engine_report.learn(memory, ranks, run) if path and memory else None
        if found:
            calibration.keep(path, engine_report.key(memory), found)
            Display().display(f"{path}: learnt of {engine_report.key(memory)}")
