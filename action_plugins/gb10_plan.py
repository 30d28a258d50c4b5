"""Makes the plan from inventory and group_vars, on the controller. Contacts no node."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import plan, report
from gb10.findings import Finding, error, errors, line
from gb10.names import unknown_variables
from gb10.settings import NAMES, BadValue, maybe_text, plain
from gb10.sources import SourceError, image_index, manifest

ROOT = Path(__file__).resolve().parents[1]
# Names beside the settings and the roles' own variables that are ours: a slip near one of them is refused.
EXTRA = (*plan.PER_NODE, "profile", "plan_file", "cluster_name", "images_source", "weights_source")


def role_variables():
    """Every variable a role declares, and the prefixes that are reserved for roles."""
    names = []
    for spec in sorted(ROOT.glob("roles/*/meta/argument_specs.yml")):
        names += yaml.safe_load(spec.read_text())["argument_specs"]["main"].get("options", {})
    prefixes = [f"{p.name}_" for p in sorted(ROOT.glob("roles/*")) if p.is_dir()]
    return names, prefixes


def builtin(name, value):
    """The value of one variable as built-in types; a date that YAML made of a word is none."""
    try:
        return plain(value)
    except BadValue as bad:
        raise BadValue(f"{name} must be {bad}") from None


class ActionModule(ActionBase):
    """Returns ``plan`` (the document). Fails with one line per finding when one of them is an error."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        hostvars = task_vars["hostvars"]
        hosts = {name: plan.per_node(hostvars[name]) for name in task_vars["groups"].get("gb10", [])}
        try:
            source = self._source(task_vars, "images_source")
            image_ids = {tag: image["image_id"] for tag, image in image_index(source).items()} if source else None
            manifest(self._source(task_vars, "weights_source"))
        except SourceError as problem:
            return result | {"failed": True, "msg": line(problem.finding)}
        try:
            hosts = {host: {name: builtin(name, value) for name, value in own.items()} for host, own in hosts.items()}
        except BadValue as bad:
            return result | {"failed": True, "msg": line(error("setting-invalid", f"{bad}.", "Quote it."))}
        document = plan.build(str(task_vars["profile"]), hosts, image_ids)
        names, prefixes = role_variables()
        known = [*NAMES, *EXTRA, *names]
        given = {name for host in hosts for name in hostvars[host] if not name.startswith(("ansible_", "gb10"))}
        slips = [f.as_dict() for f in unknown_variables(given, known, [*prefixes, "container_"])]
        document["findings"] = slips + document["findings"]
        target = task_vars.get("plan_file")
        try:
            if target:
                text = json.dumps(document, indent=2, sort_keys=True) + "\n"
                Path(maybe_text(target)).expanduser().write_text(text)
        except (OSError, RuntimeError, BadValue) as problem:
            bad = error(
                "plan-file-unwritable", f"plan_file {target}: {problem}.", "Give a file in a directory that exists."
            )
            return result | {"failed": True, "msg": line(bad)}
        findings = [Finding(**f) for f in document["findings"]]
        Display().display(report.plan_text(document))
        if errors(findings):
            return result | {"failed": True, "msg": "\n".join(map(line, errors(findings)))}
        return result | {"changed": False, "plan": document}

    def _source(self, task_vars, name):
        return str(self._templar.template(task_vars.get(name, "")) or "")
