"""Plans the benchmark's container on the head; judges, draws and keeps what it measured. Contacts no node."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import (
    benchmark_client,
    benchmark_compare,
    benchmark_container,
    benchmark_kept,
    benchmark_run,
    benchmark_settings,
    benchmark_text,
    deployments,
    inventory,
    record,
    slo,
)
from gb10.benchmark_client import Unmeasured
from gb10.findings import error, errors, line
from gb10.ledger import new_run_id, now
from gb10.plan import planned_memory
from gb10.settings import plain
from gb10.sources import SourceError

ROOT = Path(__file__).resolve().parents[1]


class ActionModule(ActionBase):
    """``act: plan`` returns ``run`` and ``container``; ``act: judge`` writes the run's directory and returns ``page``.

    Both take ``deploy`` and ``rank`` (as gb10_rank reads it). Fails with one line per error.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("act", "deploy", "rank", "run", "measured", "folder", "previous"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        names = (*benchmark_settings.PARSERS, *slo.PARSERS)
        given = {name: plain(self._templar.template(task_vars.get(name))) for name in names}
        settings, wrong = benchmark_settings.read(given)
        targets, bad = slo.read(given)
        deploy, rank = plain(self._task.args["deploy"]), plain(self._task.args["rank"])
        if wrong or bad:
            return result | self._failed([*wrong, *bad])
        if self._task.args["act"] == "plan":
            return result | self._plan(deploy, rank, settings, task_vars)
        return result | self._judge(deploy, rank, settings, targets, task_vars)

    def _failed(self, findings):
        return {"failed": True, "msg": "\n".join(map(line, findings))}

    def _plan(self, deploy, rank, settings, task_vars):
        findings = benchmark_container.refusals(deploy, rank)
        if findings:
            return self._failed(findings)
        run = str((task_vars.get("change_history__opened") or {}).get("run") or new_run_id())
        at = deployments.endpoint(deploy)
        made = benchmark_container.container(deploy, rank, settings, at["url"], at["model"], run)
        Display().display(benchmark_text.outset(settings, str(deploy["head"])))
        return {"changed": False, "run": run, "container": made}

    def _judge(self, deploy, rank, settings, targets, task_vars):
        at, head = deployments.endpoint(deploy), str(deploy["head"])
        measured = plain(self._task.args["measured"])
        output = str((measured.get("container") or {}).get("Output") or measured.get("msg") or "")
        cluster = str(task_vars.get("cluster_name", ""))
        folder = benchmark_kept.folder(ROOT, str(self._task.args.get("folder") or ""), cluster)
        try:
            found = benchmark_client.result_of(output)
            fault = benchmark_client.fault(found, at["model"], at["url"])
            if fault:
                raise Unmeasured(fault)
            levels = benchmark_run.levels(found, settings.output_tokens)
        except Unmeasured as problem:
            remedy = "See playbooks/status.yml; docs/benchmark.md has what the client needs."
            return self._failed([error("benchmark-unmeasured", f"{problem}.", remedy, head)])
        about = {
            "run": str(self._task.args["run"]),
            "time": now(),
            "cluster": cluster,
            "profile": str(deploy["profile"]),
        }
        about |= {"head": head, "model": at["model"], "url": at["url"]} | record.commit(ROOT) | record.controller()
        made = benchmark_run.document(levels, settings, targets, benchmark_run.deployment(deploy, rank, found), about)
        findings = benchmark_run.findings(made, settings)
        try:
            before = benchmark_kept.previous(folder, made, str(self._task.args.get("previous") or ""))
            if before:
                findings += benchmark_compare.findings(before, made, settings.worse, gate=settings.gate)
            made["findings"] = [finding.as_dict() for finding in findings]
            place, digest = benchmark_kept.keep(folder, made, found, before, self._memory(deploy, task_vars))
        except benchmark_kept.NotKept as problem:
            return self._failed([error("benchmark-unwritable", f"{problem}.", "Give benchmark_dir a directory.", "")])
        Display().display(benchmark_text.text(made, before))
        Display().display(f"Report: {place / benchmark_kept.PAGE}")
        answer = {"changed": True, "page": str(place / benchmark_kept.PAGE), "sha256": digest}
        if errors(findings):
            return answer | self._failed(errors(findings))
        return answer | {"msg": f"benchmark {made['run']}: {benchmark_kept.RUN} sha256 {digest}"}

    def _memory(self, deploy, task_vars):
        """The memory model's input, for its picture; None where there is none."""
        hostvars, names = task_vars["hostvars"], task_vars["groups"].get(inventory.GROUP, [])
        try:
            inputs = inventory.inputs(str(deploy["profile"]), hostvars, names)
        except SourceError:  # the plan said so
            return None
        planned = planned_memory(inputs.hosts, None, inputs.checkpoint, inputs.calibrated)
        return planned[0] if planned else None
