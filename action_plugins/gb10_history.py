"""Opens this run's entry in the change history; fails the run when the ledger cannot be written or does not verify.

The callback of the same name records what changes, and closes the entry. An entry without an end is a run that was
killed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ansible import context
from ansible.plugins.action import ActionBase
from ansible.release import __version__ as ansible_version
from ansible.utils.collection_loader import AnsibleCollectionConfig
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars

from gb10 import anchors, checkout, inventory, known, planning, record, runs, signature, stories, timeline
from gb10.history import SCHEMA
from gb10.ledger import Ledger, LedgerError, new_run_id, now
from gb10.redact import scrub
from gb10.settings import NAMES, plain

# The callback as a module of the process this one was forked from.
CALLBACK = "ansible.plugins.callback.gb10_history"
ROOT = Path(__file__).resolve().parents[1]


class ActionModule(ActionBase):
    """Arguments: ``folder``, where the ledger is kept (empty: history/<cluster_name>); ``act``: ``begin``, or
    ``deployed`` once the plan is on the nodes and the endpoint answers, or ``tell``; ``signing_key``: an ssh key;
    ``page``: where ``tell`` writes the history as HTML.

    Returns ``ledger`` (path), ``run``, ``anchor`` (what the nodes are to keep). No entry in check mode.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("folder", "act", "signing_key", "page"))

    def run(self, tmp=None, task_vars=None):
        begun = time.perf_counter()
        result = super().run(tmp, task_vars)
        given = {name: str(self._task.args.get(name) or "") for name in self._VALID_ARGS}
        ledger = Ledger(anchors.folder(ROOT, given["folder"], str(task_vars.get("cluster_name", ""))))
        if given["act"] == "tell":
            return result | self._tell(ledger, given["page"])
        if self._task.check_mode:
            return result | {"changed": False, "skipped": True, "msg": "check mode leaves no record"}
        if CALLBACK not in sys.modules:
            message = (
                "error [history-unwritable] The callback gb10_history is not loaded: no change would be on record."
            )
            return result | {"failed": True, "msg": f"{message} Run from the checkout, with its ansible.cfg."}
        try:
            if given["act"] == "deployed":
                run = str(task_vars["change_history__opened"]["run"])
                deployment = task_vars["gb10_deploy"]
                body = {key: str(deployment[key]) for key in ("profile", "plan_hash")} | record.controller()
                line = ledger.append({"kind": "deployed", "run": run, "time": now(), **body})
                anchor = anchors.anchor(line, str(task_vars["change_history__opened"]["anchor"]["ledger"]))
            else:
                run = str(task_vars.get("gb10_run") or new_run_id())
                body, plan = self._begin(task_vars, bool(given["signing_key"]))
                line = ledger.begin({"kind": "begin", "run": run, "time": now(), **body}, plan)
                if given["signing_key"]:
                    signature.sign(ledger, line, given["signing_key"])
                anchor = anchors.anchor(line)
        except LedgerError as problem:
            message = (
                f"error [history-unwritable] {problem}. Nothing was changed by this task. Keep the files as they are, "
                "look into them, and move them away or give another change_history_dir to go on."
            )
            return result | {"failed": True, "msg": message}
        opened = {"ledger": str(ledger.folder), "run": run, "anchor": anchor, "signing_key": given["signing_key"]}
        return result | {"changed": False, **opened, "seconds": time.perf_counter() - begun}

    def _tell(self, ledger, page):
        """Runs and what runs now on the screen; fails where the ledger does not verify."""
        try:
            chain = ledger.read(deep=True)
            story = runs.runs(chain.entries)
            Display().display(f"{stories.runs_table(story)}\n\n{stories.now_text(runs.now(story))}")
            faults = [*chain.faults, *ledger.plan_faults(chain)]
            if page:
                made = timeline.page(ledger.folder.name, story, runs.now(story), faults, stories.ending(chain.last))
                Path(page).expanduser().write_text(made)
        except (LedgerError, OSError) as problem:
            faults = [str(problem)]
        if faults:
            return {"failed": True, "msg": "\n".join(stories.damaged(ledger.folder, fault) for fault in faults)}
        return {"changed": False}

    def _begin(self, task_vars, signed):
        """The entry, and what this run is to deploy, if it is to."""
        hostvars = task_vars["hostvars"]
        nodes = [str(name) for name in task_vars["groups"].get(inventory.GROUP, [])]
        commit = ThreadPoolExecutor(1).submit(record.commit, ROOT)  # git works meanwhile
        raw = {name: hostvars.raw_get(name) for name in nodes}
        secrets = known.secrets(raw.values(), self._templar)
        deployment = plain(task_vars.get("gb10_deploy") or {})
        extra = known.shown(load_extra_vars(self._loader)) if context.CLIARGS.get("extra_vars") else {}
        ours = (
            set(planning.OURS)
            if extra.keys() <= set(planning.OURS)
            else {*planning.OURS, *checkout.role_variables(ROOT)[0]}
        )
        overrides, hidden = record.overrides(extra, ours, secrets)
        sources = [str(source) for source in context.CLIARGS.get("inventory") or []]
        body = {
            "schema": SCHEMA,
            **record.controller(),
            "pid": os.getppid(),
            "cluster": str(task_vars.get("cluster_name", "")),
            "playbook": playbook(context.CLIARGS.get("args") or []),
            "command": record.command_line(sys.argv, secrets),
            "profile": str(deployment.get("profile", "")),
            "overrides": overrides,
            "hidden": hidden,
            "inventory_hash": record.files_hash(record.inventory_paths(sources)),
            "group_vars_hash": record.files_hash(record.variable_paths(ROOT, sources)),
            "plan_hash": str(deployment.get("plan_hash", "")),
            "images": record.images(deployment.get("ranks", [])),
            "collections": record.collections(ROOT, AnsibleCollectionConfig.collection_paths),
            "ansible": ansible_version,
            # As they were registered: templating results that are no templates would take a second.
            "facts": record.digests({n: own["gb10_node"]["gb10"] for n, own in raw.items() if read(own)}),
            "nodes": nodes,
            "signed": signed,
            **commit.result(),
        }
        if not deployment:
            return body, None
        host = str(deployment["head"])
        own, values = raw[host], hostvars[host]
        settings = {n: plain(own[n]) for n in NAMES if n in own and inventory.literal(own[n])}
        settings |= {n: inventory.value(host, values, n) for n in NAMES if n in own and n not in settings}
        kept = {"schema": SCHEMA, **deployment, "settings": settings}
        return body, scrub(kept, secrets)


def read(host):
    """Whether a host has told what it is in this run."""
    return isinstance(host.get("gb10_node"), Mapping) and "gb10" in host["gb10_node"]


def playbook(args):
    """The playbook as a path in the checkout."""
    path = Path(str(args[0])).resolve() if args else Path()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
