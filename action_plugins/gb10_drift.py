"""Compares what runs, and how nodes are prepared, with what should be; fails (exit code 2) where something differs."""

from __future__ import annotations

from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from gb10 import checkout, deploy, deployments, drift, fabric_todo, files, images, prepared, todo
from gb10.findings import error, line
from gb10.layout import read_layout
from gb10.nodes import address_of
from gb10.settings import plain


class ActionModule(ActionBase):
    """Arguments ``readings``, ``facts``, ``asked``: variables under which nodes registered ``gb10_rank``,
    ``gb10_facts`` and ``gb10_endpoint``; ``path``: a file for the document.

    With a plan (``gb10_plan``) that is what should run, else what the nodes have on record.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("readings", "facts", "asked", "path"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars) | {"changed": False}
        hosts, names = task_vars["hostvars"], list(task_vars["groups"]["gb10"])
        facts = files.registered(hosts, names, self._task.args["facts"])
        missing = [name for name in names if name not in facts]
        record = deployments.newest(
            {name: (hosts[name].get(self._task.args["readings"]) or {}).get("record") for name in names}
        )
        wanted = record["deployment"] if record and record["want"] == deployments.SERVING else None
        if task_vars.get("gb10_plan"):
            wanted = self._planned(plain(task_vars["gb10_plan"]), facts, hosts, task_vars)
        fault = None
        if wanted is not None:
            asked = hosts[wanted["head"]].get(self._task.args["asked"]) if wanted["head"] in hosts else None
            fault = deployments.fault(wanted, plain(asked or {}))
        if record is None and not task_vars.get("gb10_plan"):
            found = error("record-missing", "No node has on record what should run.", "Give -e profile=P.")
            raise AnsibleActionFail(line(found))
        document = drift.drift(wanted, facts, self._todos(hosts, facts, names), missing, fault)
        if self._task.args.get("path"):
            try:
                Path(str(self._task.args["path"])).write_text(files.text(document))
            except OSError as problem:
                raise AnsibleActionFail(f"drift_file {problem.filename}: {problem.strerror}.") from None
        said = drift.text(document)
        if document["drift"]:
            return result | {"failed": True, "msg": said, "drift": document}
        return result | {"msg": said, "drift": document}

    def _planned(self, plan, facts, hosts, task_vars):
        """What the plan would run on these nodes now."""
        source = str(self._templar.template(task_vars.get("images_source", "")) or "")
        known = images.ids_on(plan["ranks"], facts, read_layout(source))
        return deploy.resolve(plan, deploy.detected(plan["ranks"], facts, hosts), known)

    def _todos(self, hosts, facts, names):
        """What preparation still has to do, by node and role."""
        own = {name: checkout.node_variables(hosts[name], fabric_todo.VARIABLES) for name in facts}
        fabrics = fabric_todo.todos(facts, own, {name: address_of(name, hosts[name]) for name in names})
        found = {}
        for name in facts:
            wanted, _bad = prepared.read_prepared(checkout.node_variables(hosts[name], prepared.NAMES))
            found[name] = (todo.node_todo(facts[name], wanted) if wanted else {}) | {"fabric": fabrics[name]}
        return found
