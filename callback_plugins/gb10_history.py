"""Records what a run changes in the change history, task by task, and closes the run's entry however it ends."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import time
from pathlib import Path

from ansible.plugins.callback import CallbackBase

from gb10 import changes, known, signature
from gb10.ledger import Ledger, LedgerError, now

DOCUMENTATION = """
name: gb10_history
type: aggregate
short_description: Records what a run changed
description:
  - Writes what tasks changed, and the end entry, of a run that gb10_history opened. Other runs leave no entry.
"""
ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 15.0  # s an interrupted run has to end by itself
KINDS = ("ok", "changed", "failed", "unreachable", "skipped")


def timed(method):
    """Counts what recording costs."""

    @functools.wraps(method)
    def wrapper(self, *args, **kwargs):
        begun = time.perf_counter()
        try:
            return method(self, *args, **kwargs)
        finally:
            self.cost += time.perf_counter() - begun

    return wrapper


class CallbackModule(CallbackBase):
    """Changes are kept until the next task starts, then written as one entry a task."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gb10_history"

    def __init__(self):
        super().__init__()
        self.begun = time.monotonic()
        self.cost = 0.0
        self.pid = os.getpid()
        self.ledger = None
        self.run = self.signing_key = self.signal = ""
        self.secrets = None
        self.play = None
        self.closed = False
        self.started = {}
        self.waiting = {}  # task uuid -> change entry still to be written
        self.room = changes.MOST_RUN
        self.stats = {}
        self.bad = {"failed": [], "unreachable": []}

    # --- the run opens, ends, is ended ---------------------------------------------------------------------------

    def v2_playbook_on_play_start(self, play):
        self.play = play
        if not self.closed and self.ledger is None and os.getpid() == self.pid:
            self._listen()

    def _listen(self):
        """An interrupted run is closed too: SIGINT unwinds by itself, the others are made to."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.getsignal(number)
            if before is signal.SIG_IGN or getattr(before, "gb10", False):
                continue

            def handler(received, frame, before=before):
                if os.getpid() != self.pid:
                    signal.signal(received, signal.SIG_DFL)
                    os.kill(os.getpid(), received)
                    return
                self.signal = signal.Signals(received).name
                self._insist(received)
                if received == signal.SIGINT and callable(before):
                    before(received, frame)
                raise SystemExit(128 + received)

            handler.gb10 = True
            signal.signal(number, handler)

    def _insist(self, received):
        """A worker that was killed while it handed over a result leaves Ansible's queue locked: it would wait on."""

        def end(*_):
            raise SystemExit(128 + received)

        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE, PATIENCE)

    def _open(self, result):
        self.ledger = Ledger(Path(result["ledger"]))
        self.run, self.signing_key = str(result["run"]), str(result.get("signing_key") or "")
        self.cost += float(result.get("seconds") or 0)
        self.secrets = known.of_play(self.play)
        atexit.register(self._at_exit)

    def _at_exit(self):
        signal.setitimer(signal.ITIMER_REAL, 0)
        if os.getpid() == self.pid and not self.closed:
            self._close("interrupted" if self.signal else "failed")

    @timed
    def v2_playbook_on_stats(self, stats):
        if self.ledger is None or self.closed:
            return
        totals = [stats.summarize(host) for host in stats.processed]
        bad = any(host["failures"] or host["unreachable"] for host in totals)
        changed = any(host["changed"] for host in totals)
        self._close("failed" if bad else "changed" if changed else "unchanged")

    def _close(self, outcome):
        self._flush()
        body = {
            "kind": "end",
            "run": self.run,
            "time": now(),
            "outcome": outcome,
            "signal": self.signal,
            "seconds": round(time.monotonic() - self.begun, 3),
            "recording": round(self.cost, 3),
            "stats": self.stats,
            **self.bad,
        }
        self.closed = True
        try:
            line = self.ledger.append(body)
            if self.signing_key:
                signature.sign(self.ledger, line, self.signing_key)
        except LedgerError as problem:
            self._say(f"error [history-unwritable] {problem}. The end of this run is not on record.")

    # --- what it does --------------------------------------------------------------------------------------------

    def v2_runner_on_start(self, host, task):
        self.started[host.get_name(), task._uuid] = time.monotonic()

    @timed
    def v2_playbook_on_task_start(self, task, is_conditional):
        self._flush()

    @timed
    def v2_playbook_on_handler_task_start(self, task):
        self._flush()

    @timed
    def v2_runner_on_ok(self, result):
        if result.task.action == "gb10_history" and result.result.get("ledger") and self.ledger is None:
            self._open(result.result)
        self._count(result, "ok")
        if result.is_changed():
            self._count(result, "changed")
            self._note(result)

    @timed
    def v2_runner_on_failed(self, result, ignore_errors=False):
        if ignore_errors:
            self._count(result, "ok")
        else:
            self._count(result, "failed")
            self._bad("failed", result)
        if result.is_changed():
            self._note(result)

    @timed
    def v2_runner_on_unreachable(self, result):
        self._count(result, "unreachable")
        self._bad("unreachable", result)

    @timed
    def v2_runner_on_skipped(self, result):
        self._count(result, "skipped")

    def _count(self, result, kind):
        self.stats.setdefault(result.host.get_name(), dict.fromkeys(KINDS, 0))[kind] += 1

    def _bad(self, kind, result):
        said = "" if self.ledger is None else changes.message(result.result, self.secrets)
        self.bad[kind].append({"node": result.host.get_name(), "task": self._task(result)["task"], "message": said})

    def _note(self, result):
        """Keeps what changed until the task is over. What comes before the run was opened waits for that."""
        if self.secrets is None:
            self.secrets = known.of_play(self.play)
        begun = self.started.pop((result.host.get_name(), result.task._uuid), None)
        seconds = round(time.monotonic() - begun, 3) if begun else None
        entry = self.waiting.setdefault(result.task._uuid, self._task(result) | {"time": now(), "items": []})
        for item in changes.changed_items(result.result, self.secrets):
            size = len(item.get("diff", ""))
            if size > self.room:
                item["diff"] = f"{size} characters, not kept: the run has more than {changes.MOST_RUN} of them\n"
                size = 0
            self.room -= size
            entry["items"].append({"node": result.host.get_name(), "seconds": seconds, **item})

    def _task(self, result):
        place = str(result.task.get_path() or "")
        path = Path(place.rpartition(":")[0])
        shown = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
        name = changes.shown(str(result.task.get_name()).strip(), tuple(self.secrets or ()))
        return {"task": name, "action": str(result.task.action), "path": f"{shown}:{place.rpartition(':')[2]}"}

    def _flush(self):
        """Writes what tasks changed. What cannot be written is kept for the next time."""
        if self.ledger is None or os.getpid() != self.pid:
            return
        for task in list(self.waiting):
            try:
                self.ledger.append({"kind": "change", "run": self.run, **self.waiting[task]})
            except LedgerError as problem:
                self._say(f"error [history-unwritable] {problem}. What this run changes is not on record yet.")
                return
            del self.waiting[task]

    def _say(self, text):
        self._display.error(text, wrap_text=False)
