"""Closes the run's entry in the change history: what changed, failed or could not be reached, on which node."""

from __future__ import annotations

import time
from pathlib import Path

from ansible.plugins.callback import CallbackBase

from gb10.ledger import append

DOCUMENTATION = """
name: gb10_history
type: aggregate
short_description: Records what a run changed
description: Writes the end entry of a run that gb10_history opened. Runs that opened none are not recorded.
"""


class CallbackModule(CallbackBase):
    """One entry per run, with the names of changed tasks by node."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gb10_history"

    def __init__(self):
        super().__init__()
        self.opened = None
        self.events = {"changed": [], "failed": [], "unreachable": []}

    def _note(self, kind, result):
        self.events[kind].append({"node": result._host.get_name(), "task": result._task.get_name().strip()})

    def v2_runner_on_ok(self, result):
        if result._task.action == "gb10_history" and result._result.get("ledger"):
            self.opened = {key: str(result._result[key]) for key in ("ledger", "run")}
        if result._result.get("changed"):
            self._note("changed", result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if not ignore_errors:
            self._note("failed", result)

    def v2_runner_on_unreachable(self, result):
        self._note("unreachable", result)

    def v2_playbook_on_stats(self, stats):
        if not self.opened:
            return
        failed = self.events["failed"] or self.events["unreachable"]
        body = {
            "kind": "end",
            "run": self.opened["run"],
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "outcome": "failed" if failed else "changed" if self.events["changed"] else "unchanged",
            **self.events,
        }
        append(Path(self.opened["ledger"]), body)
