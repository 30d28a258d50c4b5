"""Brings files from the controller to one node, a piece at a time over its connection, with a line of progress.

Nothing is kept elsewhere on the way, neither here nor there; what a killed run brought is gone on from.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path, PurePosixPath

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import spread
from gb10.fanout import Pace, progress_line
from gb10.settings import plain

PIECE = 64 << 20  # bytes; each costs a call over the connection
STEP = "bringing files from the controller"


class ActionModule(ActionBase):
    """Arguments ``source`` (a directory here), ``target`` (one there), ``files``; ``timeout``, ``progress`` (s).

    ``files`` are {path, size}; whoever uses them proves them. Returns ``trouble``: one line, empty for none.
    """

    _supports_check_mode = True
    _VALID_ARGS = frozenset(("source", "target", "files", "timeout", "progress"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self.args, self.node = plain(self._task.args), str(task_vars["inventory_hostname"])
        files = self.args["files"]
        result |= {"changed": bool(files), "trouble": ""}
        if self._task.check_mode:
            return result
        self.total, self.done, self.pace = sum(int(entry["size"]) for entry in files), 0, Pace()
        self.began = self.told = time.monotonic()
        try:
            for entry in files:
                self._bring(entry["path"], int(entry["size"]))
        except Trouble as trouble:
            Display().display(str(trouble), color="red")
            return result | {"trouble": str(trouble)}
        except AnsibleConnectionFailure as problem:
            return result | {"trouble": self._said("fanout-lost", f"the node cannot be reached ({problem})")}
        return result

    def _bring(self, path, size):
        source, target = Path(str(self.args["source"])).expanduser() / path, PurePosixPath(self.args["target"]) / path
        self._order(["mkdir", "-p", "-m", "0700", str(target.parent)])
        found = self._order(["stat", "-c", "%s", str(target)], may_fail=True)
        offset = min(int(found["stdout"]), size) if found["rc"] == 0 else 0
        self.done += offset
        self.pace.add(time.monotonic(), self.done)
        try:
            with source.open("rb") as stream:
                stream.seek(offset)
                while data := stream.read(PIECE):
                    put = [f"of={target}", f"seek={offset}", "oflag=seek_bytes", "bs=1M", "iflag=fullblock"]
                    self._order(["dd", *put, "conv=notrunc", "status=none"], data=data)
                    offset += len(data)
                    self._tell(len(data))
        except OSError as problem:
            raise Trouble(self._said("fanout-source", f"{source}: {problem.strerror}.")) from None

    def _tell(self, count):
        """A line of progress once in a while; the end of the time there is."""
        now, self.done = time.monotonic(), self.done + count
        self.pace.add(now, self.done)
        status = {"have": self.done, "total": self.total, "rate": self.pace.rate, "upstream": "the controller"}
        status |= {"phase": "fetching", "eta": self.pace.left(self.total - self.done)}
        if self.done >= self.total or now - self.told >= float(self.args["progress"]):
            self.told = now
            Display().display(progress_line(self.node, status), color="bright blue")
        if now - self.began > float(self.args["timeout"]) and self.done < self.total:
            said = f"{self.done} of {self.total} bytes after {now - self.began:.0f} s."
            raise Trouble(self._said("fanout-limit", said))

    def _order(self, argv, data=None, may_fail=False):
        """A command on the node, by the user the task becomes."""
        told = self._low_level_execute_command(shlex.join(argv), in_data=data, sudoable=True)
        if told["rc"] and not may_fail:
            said = (str(told["stderr"] or told["stdout"]).strip().splitlines() or ["it failed without a word"])[-1]
            raise Trouble(self._said(spread.code_of(said), f"{said}. Look there, and run again."))
        return told

    def _said(self, code, text):
        return spread.said(self.node, STEP, code, text)


class Trouble(Exception):
    """What went wrong, as one line."""
