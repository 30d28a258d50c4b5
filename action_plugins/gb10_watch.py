"""Watches this node's rank from its start until the endpoint answers right, or says why it never will.

Runs on every node at once. A rank that dies ends the watch of all within one look (``slice`` seconds): they tell each
other through a marker file in this run's own temporary directory on the controller.
"""

from __future__ import annotations

import time
from pathlib import Path

from ansible import constants
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import answer
from gb10.data import load

# As many wrong answers in a row are no accident: the question is asked at temperature 0.
WRONG = 3


class ActionModule(ActionBase):
    """Arguments: ``url``, ``model``, ``head``, ``booting``, ``run``; ``timeout``, ``slice``, ``answer_timeout`` (s).

    Returns ``phase``, ``seconds``, ``rank`` (its last reading, with the engine's figures), on the head ``answer`` and
    ``asked``, all that it was answered.
    """

    _supports_check_mode = True
    _VALID_ARGS = frozenset(("url", "model", "head", "run", "timeout", "slice", "answer_timeout", "booting"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars) | {"changed": False}
        args = self._task.args
        node = task_vars["inventory_hostname"]
        marks = Path(constants.DEFAULT_LOCAL_TMP) / f"gb10-watch-{args['run']}"
        done, failed = marks.with_suffix(".ready"), marks.with_suffix(".failed")
        began, phase, fault, wrong = time.monotonic(), "", "it was not asked yet", 0
        # A rank that serves may have logged and survived a fault; only a boot is judged by its log.
        signs = load("engine_log") | ({} if args["booting"] else {"faults": []})
        while time.monotonic() - began < float(args["timeout"]):
            if failed.exists():
                return result | {"given_up": True, "msg": "Another rank failed: " + failed.read_text()}
            look = {"wait": 0 if done.exists() else float(args["slice"]), "phase": phase, "signs": signs}
            try:
                reading = self._execute_module("gb10_rank", module_args=look, task_vars=task_vars)
            except AnsibleConnectionFailure:  # the others must not wait for a node that is gone
                failed.write_text(f"{node} cannot be reached")
                raise
            rank = reading.get("rank")
            if rank is None:
                failed.write_text(f"{node} cannot be read")
                return result | reading | {"failed": True}
            why = death(rank)
            if why:
                failed.write_text(f"{node}: {why}")
                return result | {"failed": True, "msg": f"{node}: {why}", "log": rank.get("log", [])}
            if rank["phase"] != phase:
                phase = rank["phase"]
                Display().display(f"{node}: {phase} after {time.monotonic() - began:.0f} s", color="bright blue")
            ready = {"phase": "ready", "seconds": round(time.monotonic() - began), "rank": rank}
            if done.exists():
                return result | ready
            # A rank that has served for long no longer has its start in the part of its log that is read.
            if args["head"] and (phase == "ready" or not args["booting"]):
                fault, asked, answered = self._ask(args, task_vars)
                if not fault:
                    done.touch()
                    return result | ready | {"answer": answer.text_of(asked), "asked": asked}
                wrong = wrong + 1 if answered else 0
                if wrong == WRONG:
                    message = f"{node}: {wrong} answers in a row were wrong: {fault}"
                    failed.write_text(message)
                    return result | {"failed": True, "msg": message, "log": rank.get("log", [])}
                time.sleep(1)
        message = f"{node}: not ready after {args['timeout']} s (phase {phase or 'starting'})"
        if args["head"]:
            message += f": {fault}"
            message += "" if args["booting"] else ". Bring the ranks back with playbooks/recover.yml"
            failed.write_text(message)
        return result | {"failed": True, "msg": message, "log": rank.get("log", [])}

    def _ask(self, args, task_vars):
        question = {"url": args["url"], "model": args["model"], "question": answer.QUESTION}
        question |= {"max_tokens": answer.MAX_TOKENS, "timeout": float(args["answer_timeout"])}
        asked = self._execute_module("gb10_endpoint", module_args=question, task_vars=task_vars)
        status = {part: (asked.get(part) or {}).get("status") for part in ("models", "completion")}
        answered = status["completion"] == 200 or status["models"] == 401  # another key will not come by itself
        return answer.endpoint_fault(asked, args["model"]), {part: asked.get(part) for part in status}, answered


def death(rank):
    """Why this rank will never serve; empty while it may."""
    if rank.get("fault"):
        fault = rank["fault"]
        return f"[{fault['code']}] {fault['message']} {fault['remedy']} Its log says: {fault['line']}"
    if not rank["exists"]:
        return f"the rank container is gone{': ' + rank['problem'] if rank.get('problem') else ''}"
    if not rank["running"]:
        why = rank.get("cause") or rank.get("error") or (rank.get("log") or ["it left no log"])[-1]
        return f"the rank exited with code {rank['exit_code']}: {why}"
    return ""
