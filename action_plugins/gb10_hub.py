"""Downloads on the node until it ended, with a line of progress; what the module of the same name does is one look."""

from __future__ import annotations

import time

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10.fanout import Pace, amount
from gb10.findings import error, line


class ActionModule(ActionBase):
    """The module's arguments, and ``total`` (bytes), ``stall`` and ``limit`` (seconds). Fails with one line.

    A tool that failed is begun again as long as each time brings something.
    """

    _supports_check_mode = True
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        given = dict(self._task.args)
        total, stall, limit = (int(given.pop(name)) for name in ("total", "stall", "limit"))
        node = task_vars["inventory_hostname"]
        began = moved = time.monotonic()
        pace, most, at_start = Pace(), -1, -1
        while True:
            said = self._execute_module("gb10_hub", given, task_vars=task_vars)
            if said.get("unreachable"):
                return result | said
            if said.get("failed"):
                return self._say(result, str(said.get("msg") or "the module failed"))
            hub, now = said["hub"], time.monotonic()
            if hub["have"] > most:
                most, moved = hub["have"], now
            pace.add(now, most)
            if not hub["running"]:
                if hub["code"] == 0:
                    return result | {"changed": True, "have": hub["have"]}
                if most <= at_start:
                    return self._fail(result, node, f"the hf tool ended with {hub['code']}: {hub['said']}.")
                at_start = most
                continue
            left = pace.left(max(0, total - most))
            rest = "no end in sight" if left is None else f"{left:.0f} s left"
            Display().display(f"{node}: downloaded {amount(most)} of {amount(total)}, {amount(pace.rate)}/s, {rest}")
            if now - moved > stall or now - began > limit:
                self._execute_module("gb10_hub", given | {"action": "stop"}, task_vars=task_vars)
                why = f"nothing came for {stall} s" if now - moved > stall else f"not ended after {limit} s"
                return self._fail(result, node, f"{why} at {amount(most)} of {amount(total)} ({hub['said']}).")

    def _fail(self, result, node, message):
        found = error("weights-download", message, "What came is kept: run again, and it goes on from there.", node)
        return self._say(result, line(found))

    def _say(self, result, text):
        """Shown by itself too: no_log hides the result of the task, which never holds the token."""
        Display().error(text, wrap_text=False)
        return result | {"failed": True, "msg": text}
