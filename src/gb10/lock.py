"""One operator at a time: who holds the ranks, and whether that run is still alive.

The lock is a small file on the head, gone with a reboot of it. A claim is ``{run, operator, controller, boot, pid,
started, verb, time}``: ``boot`` is the boot id of the controller, ``started`` the start of the process in clock ticks
since then, so that a process id taken anew is not mistaken for the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gb10.findings import Finding, error

Claim = Mapping[str, Any]

# What a claim of another version, or a file broken by hand, is shown as.
UNKNOWN = "unknown"


def node(hosts: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> str:
    """The node that holds the lock: that of rank 0 of all nodes, whatever the profile; else the first."""
    held = list(names)
    return next((name for name in held if str(hosts[name].get("node_rank")) == "0"), held[0])


def claim(run: str, verb: str, operator: str, controller: str, boot: str, pid: int, started: str, time: str) -> Claim:
    """What a run writes into the lock."""
    who = {"operator": operator, "controller": controller, "boot": boot, "pid": pid, "started": started}
    return {"run": run, "verb": verb, "time": time, **who}


def is_dead(held: Claim, here: Claim, started: str) -> bool:
    """Whether the holder's run has ended without freeing the lock, as far as this controller can tell.

    ``here``: this run's own claim; ``started``: of the process that has the holder's pid on this controller now, empty
    where there is none. Of another controller's run nothing can be told.
    """
    if not held.get("controller") or held.get("controller") != here["controller"]:
        return False
    return held.get("boot") != here["boot"] or held.get("started") != started


def told(held: Claim, age: float) -> str:
    """Who holds it, since when."""
    who = f"{held.get('operator') or UNKNOWN} on {held.get('controller') or UNKNOWN} (pid {held.get('pid', UNKNOWN)})"
    return f"{held.get('verb') or UNKNOWN}, run {held.get('run') or UNKNOWN}, by {who}, for {duration(age)}"


def duration(seconds: float) -> str:
    """A length of time as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def refusal(held: Claim, age: float, head: str) -> Finding:
    """Why this run must not go on."""
    run = held.get("run") or UNKNOWN
    return error(
        "cluster-locked",
        f"Another run holds the cluster: {told(held, age)}.",
        f"Wait for it. If it is gone for good (its controller is dead): -e serve_break_lock={run}.",
        head,
    )
