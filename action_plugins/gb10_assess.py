"""Judges every node's facts against the plan, on the controller, and says what each node lacks."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import (
    anchors,
    assess,
    checkout,
    deploy,
    fabric_todo,
    files,
    images,
    kept_key,
    prepared,
    rank_container,
    rank_env,
    todo,
)
from gb10.findings import error, errors, line
from gb10.layout import read_layout
from gb10.ledger import Ledger, LedgerError, new_run_id
from gb10.nodes import address_of
from gb10.settings import flag, plain, shown
from gb10.sources import SourceError, engram_shards, manifest


class ActionModule(ActionBase):
    """Argument ``facts``: the variable under which every node registered ``gb10_facts``.

    Returns ``deploy`` (what is to run), ``images`` (per node what to bring of its image), ``removable`` (per node tags
    no profile names), ``todo`` (per node and role), ``run`` (an id), ``key_act`` (what becomes of the API key nodes
    keep). Fails with one line per error.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("facts",))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        hostvars, names = task_vars["hostvars"], task_vars["groups"]["gb10"]
        plan = plain(task_vars["gb10_plan"])
        facts = files.registered(hostvars, names, self._task.args["facts"])
        try:
            if task_vars.get("facts_file"):
                files.write_facts(self._templar.template(task_vars["facts_file"]), facts)
        except SourceError as problem:
            return result | {"failed": True, "msg": line(problem.finding)}
        findings = [
            error("node-missing", "It was not asked.", "Run without --limit: the ranks are one program.", name)
            for name in names
            if name not in facts
        ]
        planned = {rank["node"]: rank for rank in plan["ranks"]}
        try:
            bundle = read_layout(self._source(task_vars, "images_source"))
            shards = manifest(self._source(task_vars, "weights_source"))
        except SourceError as problem:
            return result | {"failed": True, "msg": line(problem.finding)}
        own = {name: checkout.node_variables(hostvars[name], fabric_todo.VARIABLES) for name in facts}
        fabrics = fabric_todo.todos(facts, own, {name: address_of(name, hostvars[name]) for name in names})
        removable = {}
        if flag(self._templar.template(task_vars.get("images_prune", False))):
            folders = [checkout.root(), Path(str(task_vars.get("inventory_dir") or "."))]
            try:
                named = {rank["image"] for rank in plan["ranks"]} | checkout.profile_images(folders)
            except SourceError as problem:
                return result | {"failed": True, "msg": line(problem.finding)}
            removable = {name: images.to_remove(document, named) for name, document in facts.items()}
        coming = images.to_bring(plan["ranks"], facts, bundle)
        if not findings:
            settings = {key: plain(self._templar.template(task_vars.get(key))) for key in assess.SETTINGS}
            settings["weights_manifest"] = shards
            settings["engram_shards"] = engram_shards(self._source(task_vars, "weights_source"))
            settings["fabric_pending"] = [n for n, f in fabrics.items() if f["netplan"] and f["netplan"]["apply"]]
            settings["images"], settings["image_space"] = bundle, {n: i["space"] for n, i in coming.items()}
            findings = assess.assess(plan, {n: f for n, f in facts.items() if n in planned}, settings)
            Display().display(assess.facts_table(facts))
        findings += self._anchored(task_vars, facts)
        todos = {}
        for name in facts:
            wanted, bad = prepared.read_prepared(checkout.node_variables(hostvars[name], prepared.NAMES), name)
            findings += bad
            if wanted:
                todos[name] = todo.node_todo(facts[name], wanted) | {"fabric": fabrics[name]}
            if wanted and flag(self._templar.template(task_vars["preflight_prepares"])):
                findings += todo.node_findings(name, facts[name], wanted)
                findings += fabric_todo.fabric_findings(name, facts[name], own[name])
        given, remove, serves = (
            self._templar.template(task_vars.get(name))
            for name in ("serve_api_key", "serve_api_key_remove", "preflight_serves")
        )
        kept = [name for name, document in facts.items() if document.get("api_key")]
        key_act, bad = kept_key.decided(bool(given), flag(remove or False), kept, flag(serves))
        findings += bad
        launcher = str(checkout.node_variables(hostvars[names[0]], ["serve_launcher"])["serve_launcher"])
        if launcher not in (rank_container.DOCKER, rank_container.SPARKRUN):
            message = f"serve_launcher is {shown(launcher)}, which starts no ranks."
            findings.append(error("setting-invalid", message, "Set it to docker or sparkrun."))
        for finding in findings:
            if finding.level == "warning":
                Display().display(line(finding))
        if errors(findings):
            return result | {"failed": True, "msg": "\n".join(map(line, errors(findings)))}
        detected = deploy.detected(plan["ranks"], facts, hostvars)
        resolved = deploy.resolve(plan, detected, images.ids_on(plan["ranks"], facts, bundle))
        resolved["launcher"] = launcher
        ranks = {rank["node"]: rank for rank in resolved["ranks"]}
        for name in todos:
            env_file = checkout.node_variables(hostvars[name], ["nccl_env_file"])["nccl_env_file"]
            todos[name]["nccl"] = rank_env.nccl_todo(facts[name], ranks.get(name), str(env_file))
        return result | {
            "changed": False,
            "deploy": resolved,
            "images": coming,
            "removable": removable,
            "todo": todos,
            "key_act": key_act,
            "run": new_run_id(),
        }

    def _anchored(self, task_vars, facts):
        """What the nodes' anchors say of the ledger here. Its own faults are said when it is opened."""
        given = self._source(task_vars, "change_history_dir")
        try:
            chain = Ledger(anchors.folder(checkout.root(), given, self._source(task_vars, "cluster_name"))).read()
        except LedgerError:
            return []
        kept = {name: document.get("anchor") or {} for name, document in facts.items()}
        return [] if chain.faults else anchors.anchor_findings(kept, chain)

    def _source(self, task_vars, name):
        return str(self._templar.template(task_vars.get(name, "")) or "")
