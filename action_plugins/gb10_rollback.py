"""Finds the deployment to go back to: the last good one of the ledger whose plan is not what should run now."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import anchors, checkout, deployments
from gb10.findings import error, line
from gb10.ledger import Ledger, LedgerError
from gb10.runs import runs


class ActionModule(ActionBase):
    """Arguments ``folder`` (of the ledger; empty: history/<cluster_name>) and ``readings``, the variable under which
    nodes registered ``gb10_rank``.

    Returns ``deployment`` and ``group``, the group of its profile's variables.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("folder", "readings"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars) | {"changed": False}
        hosts, names = task_vars["hostvars"], task_vars["groups"]["gb10"]
        kept = {name: (hosts[name].get(self._task.args["readings"]) or {}).get("record") for name in names}
        wanted = deployments.newest(kept)
        now = ((wanted or {}).get("deployment") or {}).get("plan_hash", "")
        given, cluster = str(self._task.args["folder"] or ""), str(task_vars.get("cluster_name", ""))
        ledger = Ledger(anchors.folder(checkout.root(), given, cluster))
        try:
            chain = ledger.read()
            if chain.faults:
                raise LedgerError(f"it does not verify: {chain.faults[0]}")
            run = deployments.previous(runs(one.entry for one in chain.lines), now)
            found = {} if run is None else ledger.plan(run.text("plan"))
        except (LedgerError, ValueError) as problem:
            said = error("rollback-nothing", f"{ledger.folder}: {problem}.", "Deploy by profile meanwhile.")
            return result | {"failed": True, "msg": line(said)}
        if run is None:
            message = f"The ledger in {ledger.folder} has no good deployment with another plan than what should run."
            said = error("rollback-nothing", message, "Deploy what you want: site.yml -e profile=P.")
            return result | {"failed": True, "msg": line(said)}
        deployment = {key: found[key] for key in ("profile", "head", "plan_hash", "ranks", "launcher") if key in found}
        if not deployments.is_whole(deployment):
            message = f"What run {run.id} deployed ({run.text('profile')}) is not wholly on record: it held a secret."
            said = error("rollback-partial", message, "Deploy it by its profile: site.yml -e profile=P.")
            return result | {"failed": True, "msg": line(said)}
        strange = sorted({rank["node"] for rank in deployment["ranks"]} - set(names))
        if strange:
            message = f"Run {run.id} had ranks on {', '.join(strange)}, which the inventory does not have."
            return result | {"failed": True, "msg": line(error("record-strange", message, "Deploy by profile."))}
        since = f"run {run.id} of {run.text('time')} by {run.text('operator')}"
        Display().display(f"Back to {deployment['profile']}, plan {deployment['plan_hash'][:12]}: {since}.")
        return result | {"deployment": deployment, "group": checkout.known_group(deployment["profile"])}
