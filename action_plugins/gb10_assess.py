"""Judges every node's facts against the plan, on the controller, and says what each node lacks."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import assess, deploy, fabric, todo
from gb10.findings import error, errors, line
from gb10.settings import flag, plain


class ActionModule(ActionBase):
    """Argument ``facts``: the variable under which every node registered ``gb10_facts``.

    Returns ``deploy`` (what is to run), ``todo`` (per node), ``images_missing`` (nodes), ``run`` (an id). Fails with one
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
        if not findings:
            settings = {key: plain(hostvars[names[0]].get(key)) for key in assess.SETTINGS}
            settings["weights_manifest"] = self._manifest(task_vars)
            findings = assess.assess(plan, {n: f for n, f in facts.items() if n in planned}, settings)
            Display().display(assess.facts_table(facts))
        for finding in findings:
            Display().display(line(finding))
        if errors(findings):
            return result | {"failed": True, "msg": "\n".join(map(line, errors(findings)))}
        archives = self._archives(task_vars)
        per_node = {}
        for name in names:
            rank = planned.get(name)
            image = (rank["image"], rank["image_digest"], archives.get(rank["image"], "")) if rank else None
            host = hostvars[name]
            per_node[name] = todo.node_todo(
                facts[name],
                image,
                plain(host.get("docker_packages", [])),
                plain(host.get("docker_daemon", {})),
                flag(host.get("docker_restart_under_rank", False)),
            )
        detected = {
            name: fabric.detect(facts[name], rank["address"], pins(hostvars[name])).environment(
                str(hostvars[name].get("nccl_transport"))
            )
            for name, rank in planned.items()
        }
        return result | {
            "changed": False,
            "deploy": deploy.resolve(plan, detected),
            "todo": per_node,
            "images_missing": [name for name in names if per_node[name]["image_archive"]],
            "run": time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()) + uuid.uuid4().hex[:8],
        }

    def _manifest(self, task_vars):
        source = str(self._templar.template(task_vars.get("weights_source", "")) or "")
        if not source:
            return None
        files = json.loads((Path(source) / "manifest.json").read_text())["files"]
        return {entry["path"]: entry["size"] for entry in files}

    def _archives(self, task_vars):
        source = str(self._templar.template(task_vars.get("images_source", "")) or "")
        if not source:
            return {}
        images = json.loads((Path(source) / "images.json").read_text())["images"]
        return {tag: image["archive"] for tag, image in images.items()}


def pins(host):
    """What one host pins."""
    return {key: host.get(key) for key in ("nccl_ib_hca", "nccl_socket_ifname", "nccl_ib_gid_index") if host.get(key)}
