"""Drives the relay on every node: what may be refused first, then start, watch with a line of progress, stop.

Nodes tell each other how far they are through marker files in this run's own temporary directory on the controller; the
secret they share lies there too, and is nowhere else.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path

from ansible import constants, context
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import spread
from gb10.fanout import progress_line
from gb10.findings import errors, line
from gb10.nodes import address_of
from gb10.settings import plain

SETTINGS = (
    "spread_source", "spread_from", "spread_to", "spread_state", "spread_files", "spread_wants", "spread_verify_all",
    "spread_port", "spread_processes", "spread_timeout", "spread_stall", "spread_lease", "spread_progress",
    "fabric_test_file",
)  # fmt: skip
RESTARTS = 2  # of a relay that died, before its node is given up
AWAY = 90.0  # s a node may be out of reach before it is given up; the relay goes on meanwhile
CHECK, START, FETCH, STOP = "checking", "starting the relay", "fetching", "stopping the relay"


class ActionModule(ActionBase):
    """Argument ``step``: plan (once), check, start, watch, stop; all else are the role's variables (``SETTINGS``).

    ``plan`` returns ``runs``, ``nodes`` and ``need``; ``check`` is given that. The others are given one of the ``runs``
    as ``run`` and return ``trouble``, one line, empty for none; ``stop`` all that is known of the node as ``state``. No
    step fails but ``plan`` and ``check``.
    """

    _supports_check_mode = True
    _VALID_ARGS = frozenset(("step", "need", "run", "digest", "trouble"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self.vars, self.node = task_vars, str(task_vars["inventory_hostname"])
        given = {name: self._templar.template(task_vars.get(name)) for name in SETTINGS}
        self.args = {name.removeprefix("spread_"): plain(value) for name, value in given.items()}
        self.args |= plain(self._task.args)
        step = {"plan": self._plan, "check": self._check, "start": self._start, "watch": self._watch}
        return result | {"changed": False} | step.get(self.args["step"], self._stop)()

    # --- before ---

    def _plan(self):
        hostvars = self.vars["hostvars"]
        names = [name for name in self.vars["ansible_play_hosts"] if name in self.vars["groups"]["gb10"]]
        names.sort(key=lambda name: int(hostvars[name].get("node_rank") or 0))
        addresses = {name: address_of(name, hostvars[name]) for name in names}
        run, speeds = secrets.token_hex(4), {}
        if self.args["fabric_test_file"]:
            try:
                matrix = Path(str(self.args["fabric_test_file"])).expanduser()
                speeds = spread.speeds_of(json.loads(matrix.read_text()))
            except (OSError, ValueError):
                speeds = {}  # the test was not made yet
        wants, files = self.args["wants"], self.args["files"]
        runs, findings = spread.runs(run, self.args["source"], files, wants, addresses, speeds)
        if errors(findings):
            return {"failed": True, "msg": "\n".join(map(line, findings))}
        for one in runs:
            self._write(one["id"], "secret", secrets.token_hex(16))
        taking = sorted({node for one in runs for node in one["line"]})
        need = spread.needed(files, {n: p for n, p in wants.items() if n != self.args["source"]})
        return {"runs": runs, "nodes": taking, "need": need}

    def _check(self):
        size = int(self.args["need"].get(self.node, 0))
        where = {"path": self.args["to"] if size else self.args["from"], "size": size}
        address = address_of(self.node, self.vars["hostvars"][self.node])
        answer = self._relay(
            "check", address=address, port=self.args["port"], processes=self.args["processes"], **where
        )
        trouble = spread.trouble(self.node, CHECK, answer)
        return {"failed": True, "msg": trouble} if trouble else {}

    # --- start ---

    def _start(self):
        run, digest = self.args["run"], self.args.get("digest")
        source = self.node == run["source"]
        if not digest and not source:
            return self._over(spread.said(self.node, START, "fanout-source", f"{run['source']} serves nothing."))
        common = {"processes": self.args["processes"], "verify_all": self.args["verify_all"]}
        if source:
            state = self.args["state"] or self.args["from"]
            common |= {"path": self.args["from"], "state": state}
            made = self._relay("index", files=run["files"], **common)
            if trouble := spread.trouble(self.node, "proving the source", made):
                return self._over(trouble)
            digest = made["digest"]
        else:
            common |= {"path": self.args["to"]}
        given = {key: self.args[key] for key in ("port", "stall")} | {
            "run_dir": spread.run_dir(run["id"], self.node),
            "address": run["addresses"][run["line"].index(self.node)],
            "line": run["addresses"],
            "digest": digest,
            "secret": self._read(run["id"], "secret"),
            "lease": self.args["lease"] if self._together() else 0,
            "limit": self.args["timeout"],
        }
        trouble = spread.trouble(self.node, START, self._relay("start", **given, **common))
        return self._over(trouble) if trouble else {"digest": digest, "trouble": ""}

    def _together(self):
        """Whether all nodes of the line are watched at once, so that each can hold its lease until the last is done."""
        return int(context.CLIARGS.get("forks") or constants.DEFAULT_FORKS) >= len(self.args["run"]["line"])

    # --- watch ---

    def _watch(self):
        run, lease = self.args["run"], float(self.args["lease"])
        began, self.told = time.monotonic(), -1e9
        others = set(run["line"]) & set(self.vars["ansible_play_hosts"]) if self._together() else set()
        restarts, done = 0, self.node == run["source"]
        if done:
            self._mark("over", "")
        while True:
            waited = time.monotonic() - began
            status = self._status(0 if done else min(float(self.args["progress"]), lease / 3))
            trouble = spread.trouble(self.node, FETCH, status) or self._ended(status.get("relay") or {})
            if trouble and (status.get("relay") or {}).get("phase") == "lost" and restarts < RESTARTS:
                restarts += 1
                Display().display(f"{self.node}: the relay died and is started again", color="bright blue")
                self._relay("stop", run_dir=spread.run_dir(run["id"], self.node))
                trouble = self._start()["trouble"]
            elif not trouble and waited > float(self.args["timeout"]) + lease:
                trouble = spread.said(self.node, FETCH, "fanout-limit", f"not done after {waited:.0f} s.")
            if trouble:
                return self._over(trouble)
            if not done and (status.get("relay") or {}).get("phase") == "done":
                done = True
                self._mark("over", "")
            if done and self._all_over(others, lease / 3):
                return {"trouble": ""}

    def _status(self, wait):
        """The relay's status, and a line of it once in a while; a node out of reach is asked again for AWAY seconds."""
        since = time.monotonic()
        while True:
            answer = self._relay("status", run_dir=spread.run_dir(self.args["run"]["id"], self.node), wait=int(wait))
            if not answer.get("unreachable") or time.monotonic() - since > AWAY:
                break
            time.sleep(5)
        status = answer.get("relay") or {}
        moved = status.get("phase") != "done" and time.monotonic() - self.told >= float(self.args["progress"]) - 0.5
        if status and self.node != self.args["run"]["source"] and (moved or not self._is("over")):
            self.told = time.monotonic()
            Display().display(progress_line(self.node, status), color="bright blue")
        return answer

    def _ended(self, status):
        """Why a relay ended that should not have; empty while it is well."""
        if status.get("phase") not in ("failed", "stopped", "lost"):
            return ""
        code, text = status.get("code") or "fanout-lost", status.get("error") or "it was stopped by somebody else."
        return spread.said(self.node, FETCH, code, text)

    def _all_over(self, others, seconds):
        """Waits for the others, ``seconds`` at most: then the status must be looked at again."""
        end = time.monotonic() + seconds
        while not (over := all(self._is("over", node) for node in others)) and time.monotonic() < end:
            time.sleep(0.1)
        return over

    # --- stop ---

    def _stop(self):
        run, before = self.args["run"], self.vars["gb10_spread"]
        answer = self._relay("stop", run_dir=spread.run_dir(run["id"], self.node))
        status = answer.get("relay") or {}
        counts = {key: before[key] + sum((status.get(key) or {}).values()) for key in ("taken", "sent")}
        if self.node == run["source"] and status.get("sent"):
            Display().display(spread.summary(run, sum(status["sent"].values())), color="bright blue")
        trouble = self.args.get("trouble") or spread.trouble(self.node, STOP, answer)
        state = counts | {"trouble": before["trouble"] or trouble}
        return {"state": state, "changed": counts["taken"] > before["taken"]}

    # --- what all need ---

    def _relay(self, action, **given):
        try:
            return self._execute_module("gb10_relay", module_args={"action": action, **given}, task_vars=self.vars)
        except AnsibleConnectionFailure as problem:
            return {"unreachable": True, "msg": f"the node cannot be reached ({problem})"}

    def _over(self, trouble):
        """This node is no longer waited for."""
        self._mark("over", trouble)
        Display().display(trouble, color="red")
        return {"trouble": trouble}

    def _file(self, run, what):
        return Path(constants.DEFAULT_LOCAL_TMP) / f"gb10-spread-{run}.{what}"

    def _mark(self, what, text):
        self._write(self.args["run"]["id"], f"{self.node}.{what}", text)

    def _is(self, what, node=None):
        return self._file(self.args["run"]["id"], f"{node or self.node}.{what}").exists()

    def _write(self, run, what, text):
        handle = os.open(self._file(run, what), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as stream:
            stream.write(text)

    def _read(self, run, what):
        return self._file(run, what).read_text()
