"""What the entries of a ledger tell: runs, deployments, what runs now, what changed where, who set what. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

Entry = Mapping[str, Any]
Plan = Mapping[str, Any]

WELL = ("changed", "unchanged")
# The playbook that takes the ranks away, and tasks that touch them.
STOPS = "stop.yml"
TOUCHES = "roles/serve/"


@dataclass(frozen=True)
class Run:
    """The entries of one run, in their order. ``deployed`` and ``end`` are ``None`` where it did not get that far."""

    begin: Entry
    changes: tuple[Entry, ...] = ()
    deployed: Entry | None = None
    end: Entry | None = None

    @property
    def id(self) -> str:
        """The run's id."""
        return str(self.begin["run"])

    @property
    def outcome(self) -> str:
        """``changed``, ``unchanged``, ``failed``, ``interrupted``, or ``open``: killed, or still at work."""
        return str(self.end["outcome"]) if self.end else "open"

    @property
    def well(self) -> bool:
        """It reached its end without a failure."""
        return self.outcome in WELL

    @property
    def deployment(self) -> bool:
        """It brought its plan to the nodes, the endpoint answered right, and it ended well."""
        return self.deployed is not None and self.well

    @property
    def touched(self) -> list[str]:
        """Nodes on which something changed."""
        return sorted({str(item["node"]) for change in self.changes for item in change["items"]})

    def text(self, key: str) -> str:
        """A value of the begin entry as text."""
        return str(self.begin.get(key) or "")


def runs(entries: Iterable[Entry]) -> list[Run]:
    """Runs in the order they began in. ``entries`` in the order of the chain."""
    held: dict[str, list[Entry]] = {}
    for entry in entries:
        held.setdefault(str(entry.get("run")), []).append(entry)
    found = []
    for own in held.values():
        of: dict[str, list[Entry]] = {}
        for entry in own:
            of.setdefault(str(entry.get("kind")), []).append(entry)
        if "begin" in of:
            last = {kind: items[-1] for kind, items in of.items()}
            found.append(Run(of["begin"][0], tuple(of.get("change", ())), last.get("deployed"), last.get("end")))
    return found


def deployments(held: Iterable[Run]) -> list[Run]:
    """Deployments that ended well, the oldest first."""
    return [run for run in held if run.deployment]


def last_deployment(held: Iterable[Run]) -> Run | None:
    """The newest deployment that ended well."""
    return next(iter(reversed(deployments(held))), None)


def deployment_before(held: Sequence[Run]) -> Run | None:
    """The newest deployment that ended well with another plan than the last one: what to go back to."""
    newest = last_deployment(held)
    if newest is None:
        return None
    earlier = (run for run in reversed(deployments(held)) if run.text("plan_hash") != newest.text("plan_hash"))
    return next(earlier, None)


@dataclass(frozen=True)
class Now:
    """What runs: ``deployment`` since ``since`` (the first run in a row that had its plan).

    ``unsure``: later runs that touched ranks, or may have, and did not end well.
    """

    state: Literal["nothing", "stopped", "serving", "unsure"]
    deployment: Run | None
    since: Run | None
    unsure: tuple[Run, ...] = ()


def now(held: Sequence[Run]) -> Now:
    """What runs now as far as the ledger knows, and since when."""
    newest = last_deployment(held)
    if newest is None:
        return Now("nothing", None, None)
    after = list(held)[list(held).index(newest) + 1 :]
    stop = next((run for run in reversed(after) if stops(run) and run.well), None)
    if stop is not None:
        return Now("stopped", newest, stop, tuple(unsettled(after[after.index(stop) + 1 :])))
    since = newest
    for run in reversed(list(held)[: list(held).index(newest)]):
        if stops(run) or (run.deployment and run.text("plan_hash") != newest.text("plan_hash")):
            break
        if run.deployment:
            since = run
    unsure = tuple(unsettled(after))
    return Now("unsure" if unsure else "serving", newest, since, unsure)


def stops(run: Run) -> bool:
    """It took the ranks away."""
    return run.text("playbook").rsplit("/", 1)[-1] == STOPS


def unsettled(held: Iterable[Run]) -> list[Run]:
    """Runs that did not end well and changed something about ranks, or are not known not to have."""
    return [run for run in held if not run.well and (stops(run) or any(touches(change) for change in run.changes))]


def touches(change: Entry) -> bool:
    """The task is one of those that stop and start ranks."""
    return str(change.get("path", "")).startswith(TOUCHES)


@dataclass(frozen=True)
class NodeChange:
    """One change of one node."""

    run: Run
    task: str
    item: Entry


def changes_of(held: Iterable[Run], node: str, since: str = "") -> list[NodeChange]:
    """What changed on a node since a time (as in the entries; empty: ever), in order."""
    return [
        NodeChange(run, str(change["task"]), item)
        for run in held
        for change in run.changes
        if str(change["time"]) >= since
        for item in change["items"]
        if item["node"] == node or node in str(item.get("item", "")).split()  # done for it from another node
    ]


@dataclass(frozen=True)
class Setting:
    """A value some runs had, from the first of them."""

    run: Run
    value: Any
    override: bool


def setting(plan: Plan, name: str) -> Any:
    """A setting, an option of the engine (``--max-num-seqs``) or an environment variable of the head; else None."""
    if name in (plan.get("settings") or {}):
        return plan["settings"][name]
    rank: Mapping[str, Any] = next(iter(plan.get("ranks") or []), {})
    argv = list(rank.get("argv") or [])
    if name in argv:
        after = argv[argv.index(name) + 1 :]
        return after[0] if after and not after[0].startswith("-") else True
    return (rank.get("env") or {}).get(name)


def blame(held: Iterable[Run], name: str, plan_of: Callable[[str], Plan]) -> list[Setting]:
    """Every change of a setting, oldest first. ``plan_of``: the kept plan of that name."""
    found: list[Setting] = []
    seen: dict[str, Any] = {}
    for run in held:
        overrides = run.begin.get("overrides") or {}
        stored = run.text("plan")
        if stored:
            if stored not in seen:
                seen[stored] = setting(plan_of(stored), name)
            value = seen[stored]
        elif name in overrides:
            value = overrides[name]
        else:
            continue
        if (found and found[-1].value != value) or (not found and (value is not None or name in overrides)):
            found.append(Setting(run, value, name in overrides))
    return found


# What runs are compared by, beside their plans.
COMPARED = (
    *("operator", "controller", "playbook", "profile", "commit", "dirty", "diff_hash", "overrides"),
    *("inventory_hash", "group_vars_hash", "plan_hash", "images", "collections", "ansible"),
)


def difference(old: Run, new: Run, old_plan: Plan, new_plan: Plan) -> list[tuple[str, Any, Any]]:
    """What two runs differ in: name, value of the old, value of the new one; None where there is none."""
    sides = []
    for run, plan in ((old, old_plan), (new, new_plan)):
        flat = flatten({key: run.begin.get(key) for key in COMPARED})
        flat |= flatten({"settings": plan.get("settings") or {}})
        for rank in plan.get("ranks") or []:
            values = {key: value for key, value in rank.items() if key not in ("node", "argv")}
            values["argv"] = options(rank.get("argv") or [])
            flat |= flatten({str(rank["node"]): values})
        sides.append(flat)
    both = ((name, sides[0].get(name), sides[1].get(name)) for name in dict.fromkeys([*sides[0], *sides[1]]))
    return [(name, before, after) for name, before, after in both if before != after]


def options(argv: Sequence[str]) -> dict[str, str]:
    """A command line by option; what stands without one is numbered."""
    found: dict[str, str] = {}
    last = ""
    for word in argv:
        if word.startswith("--"):
            last, _equals, value = word.partition("=")
            found[last] = value
        elif last and not found[last]:
            found[last] = word
        else:
            found[f"word {len(found)}"] = word
    return found


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, names joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{path}.")
        elif value not in (None, "", {}, []):
            flat[path] = value
    return flat


def backwards(held: Sequence[Entry]) -> list[str]:
    """Where the clock went back between entries that follow each other: no damage, but times cannot order these."""
    return [
        f"the clock went back from {old['time']} (run {old['run']}) to {new['time']} (run {new['run']})"
        for old, new in pairwise(held)
        if str(new.get("time")) < str(old.get("time"))
    ]
