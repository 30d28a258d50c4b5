"""What a run has to do about weights, on the controller: before a look at the nodes, and after it."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import data, weights_todo
from gb10.findings import error, errors, line
from gb10.settings import flag, plain
from gb10.sources import SourceError, checkpoint, entries, holds_shards
from gb10.weights_files import gib
from gb10.weights_manifest import as_files

NO_MANIFEST = error(
    "weights-no-manifest",
    "weights_source is empty, so there is no manifest to verify with.",
    "Make one with gb10 weights manifest, and name its directory.",
)


class ActionModule(ActionBase):
    """Without ``looks``: ``files`` (the manifest), ``stage`` (by node), ``reserve`` (bytes); with ``verify`` the first
    alone, and only for a ``weights_source``.

    With ``looks`` (the variable under which every node registered ``gb10_weights``): what ``weights_todo.route`` says,
    ``prune`` (nodes), and ``act``: whether anything is to be done. With ``brought`` too: that all is right. Fails with
    one line per error.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("looks", "brought", "verify"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self._vars = task_vars
        source = str(self._value("weights_source") or "")
        try:
            held = entries(source)
            if flag(self._task.args.get("verify", False)):
                answer, findings = {"files": as_files(held)}, [] if held else [NO_MANIFEST]
            elif "looks" not in self._task.args:
                answer, findings = self._before(held, source)
            else:
                answer, findings = self._after(held, source)
        except SourceError as problem:
            return result | {"failed": True, "msg": line(problem.finding)}
        for finding in findings:
            if finding.level == "warning":
                Display().display(line(finding))
        if errors(findings):
            return result | {"failed": True, "msg": "\n".join(map(line, errors(findings)))}
        return result | {"changed": False} | answer

    def _value(self, name):
        return plain(self._templar.template(self._vars.get(name)))

    def _before(self, held, source):
        stage, findings = {}, []
        if flag(self._value("weights_engram_stage")):
            tables = weights_todo.tables_of(checkpoint(str(self._value("model_config") or ""), source))
            ranks, degree = plain(self._vars["gb10_plan"])["ranks"], int(self._value("tensor_parallel"))
            stage, findings = weights_todo.stages(ranks, degree, tables)
        reserve = int(data.load("nodes")["free_margin_bytes"])
        return {"files": as_files(held), "stage": stage, "reserve": reserve}, findings

    def _after(self, held, source):
        hostvars, names = self._vars["hostvars"], self._vars["groups"]["gb10"]
        order = sorted(names, key=lambda name: int(hostvars[name]["node_rank"]))
        looks = {name: plain(hostvars[name][self._task.args["looks"]]) for name in order}
        reasons = {name: look.get("reasons") or {} for name, look in looks.items()}
        if flag(self._task.args.get("brought", False)):
            return {}, weights_todo.still_wrong(reasons)
        route = weights_todo.route(
            reasons,
            order,
            as_files(held),
            {
                "node": self._value("weights_source_node"),
                "folder": source if holds_shards(source, held) else "",
                "directory": self._value("weights_import"),
                "repository": self._value("weights_repository"),
            },
        )
        for name in order:
            for path, why in sorted(reasons[name].items())[:5]:
                Display().display(f"{name}: {path} is {why}")
            if reasons[name]:
                missing = gib(looks[name]["missing"])
                Display().display(f"{name}: {len(reasons[name])} of {looks[name]['files']} files to come, {missing}")
        path = str(self._value("weights_path"))
        mounted = {name: weights_todo.mounting(plain(hostvars[name]["gb10_node"])["gb10"], path) for name in order}
        unnamed = {name: look.get("unnamed") or [] for name, look in looks.items()}
        prune, warnings = weights_todo.prune_findings(unnamed, {n: c for n, c in mounted.items() if c})
        for name in prune:
            Display().display(f"{name}: no manifest names {', '.join(unnamed[name])}")
        findings = route.pop("findings") + warnings
        staging = any(look.get("stage") for look in looks.values())
        return {
            "route": route,
            "prune": prune,
            "act": bool(route["source"] or prune or staging),
            "changed": bool(route["source"] and self._task.check_mode),
        }, findings
