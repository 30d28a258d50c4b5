"""Judges every node's facts against the plan, on the controller, and says what each node lacks."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import assess, deploy, fabric, todo
from gb10.findings import error, errors, line
from gb10.ledger import new_run_id
from gb10.settings import plain
from gb10.sources import SourceError, image_index, manifest


class ActionModule(ActionBase):
    """Argument ``facts``: the variable under which every node registered ``gb10_facts``.

    Returns ``deploy`` (what is to run), ``images`` (node to the archive it needs), ``run`` (an id). Fails with one
    line per error.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("facts",))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        hostvars, names = task_vars["hostvars"], task_vars["groups"]["gb10"]
        plan = plain(task_vars["gb10_plan"])
        facts = {}
        for name in names:
            registered = hostvars[name].get(self._task.args["facts"])
            if registered and "gb10" in registered:
                facts[name] = plain(registered["gb10"])
        findings = [
            error("node-missing", "It was not asked.", "Run without --limit: the ranks are one program.", name)
            for name in names
            if name not in facts
        ]
        planned = {rank["node"]: rank for rank in plan["ranks"]}
        try:
            bundle = image_index(self._source(task_vars, "images_source"))
            files = manifest(self._source(task_vars, "weights_source"))
        except SourceError as problem:
            return result | {"failed": True, "msg": line(problem.finding)}
        if not findings:
            settings = {key: plain(self._templar.template(task_vars.get(key))) for key in assess.SETTINGS}
            settings["weights_manifest"] = files
            # Twice: the archive lies beside the image until it is loaded.
            settings["image_sizes"] = {tag: 2 * image.get("size", 0) for tag, image in bundle.items()}
            findings = assess.assess(plan, {n: f for n, f in facts.items() if n in planned}, settings)
            Display().display(assess.facts_table(facts))
        for finding in findings:
            if finding.level == "warning":
                Display().display(line(finding))
        if errors(findings):
            return result | {"failed": True, "msg": "\n".join(map(line, errors(findings)))}
        detected = {
            name: fabric.detect(facts[name], rank["address"], pins(hostvars[name])).environment(
                str(hostvars[name].get("nccl_transport"))
            )
            for name, rank in planned.items()
        }
        return result | {
            "changed": False,
            "deploy": deploy.resolve(plan, detected),
            "images": todo.images_to_bring(plan["ranks"], facts, {t: i["archive"] for t, i in bundle.items()}),
            "run": new_run_id(),
        }

    def _source(self, task_vars, name):
        return str(self._templar.template(task_vars.get(name, "")) or "")


def pins(host):
    """What one host pins."""
    return {key: host.get(key) for key in ("nccl_ib_hca", "nccl_socket_ifname", "nccl_ib_gid_index") if host.get(key)}
