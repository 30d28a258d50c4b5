"""What every node said of its rank, against what should run: the table, and what is to be brought back."""

from __future__ import annotations

from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import checkout, deployments, files, recovery, status
from gb10.findings import line
from gb10.settings import plain


class ActionModule(ActionBase):
    """Argument ``act``: ``find`` the record of what should run, ``say`` the table, or ``recover``: what is to be done.

    ``readings``, ``asked``, ``lock``: variables under which nodes registered ``gb10_rank``, ``gb10_endpoint`` and
    ``gb10_lock``; ``path``: a file for the document; ``longest``: seconds a boot takes at most.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("act", "readings", "asked", "lock", "path", "longest"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars) | {"changed": False}
        hosts, names = task_vars["hostvars"], task_vars["groups"]["gb10"]
        readings = {name: reading(hosts[name].get(self._task.args["readings"])) for name in names}
        wanted = deployments.newest({name: (one or {}).get("record") for name, one in readings.items()})
        if self._task.args["act"] == "find":
            return result | find(wanted, hosts)
        fault = self._fault(hosts, wanted)
        if self._task.args["act"] == "recover":
            longest = float(self._task.args["longest"])
            return result | recover(wanted, readings, fault, longest)
        held = [hosts[name].get(self._task.args["lock"]) for name in names]
        lock = next((plain(one) for one in held if one and "held" in one), None)
        document = status.status(readings, wanted, lock, fault)
        if self._task.args.get("path"):
            try:
                Path(str(self._task.args["path"])).write_text(files.text(document))
            except OSError as problem:
                raise AnsibleActionFail(f"status_file {problem.filename}: {problem.strerror}.") from None
        Display().display(status.text(document))
        return result | {"status": document}

    def _fault(self, hosts, wanted):
        """Why the endpoint does not answer right; None where it need not."""
        if wanted is None or wanted["want"] != deployments.SERVING:
            return None
        head = wanted["deployment"]["head"]
        asked = hosts[head].get(self._task.args["asked"]) if head in hosts else None
        return deployments.fault(wanted["deployment"], plain(asked or {}))


def reading(registered):
    """What a node said of its rank; None where it could not be asked."""
    if not registered or registered.get("unreachable") or "rank" not in registered:
        return None
    return plain({key: registered[key] for key in ("rank", "record", "node") if key in registered})


def find(wanted, hosts):
    """Where the endpoint is (``head`` empty: nowhere), and the group of the profile's variables."""
    if wanted is None or wanted["want"] != deployments.SERVING:
        return {"head": "", "group": "", "deployment": None, "want": wanted and wanted["want"]}
    deployment = wanted["deployment"]
    return {
        "head": deployment["head"] if deployment["head"] in hosts else "",
        **deployments.endpoint(deployment),
        "group": checkout.known_group(deployment["profile"]),
        "deployment": deployment,
        "want": wanted["want"],
    }


def recover(wanted, readings, fault, longest):
    """What recovery.py decides, for the tasks."""
    found = recovery.recovery(wanted, readings, fault, longest)
    if found.fault:
        return {"failed": True, "msg": line(found.fault)}
    if found.said:
        Display().display(found.said)
    return {"why": list(found.why), "booting": found.booting, "nothing": bool(found.said)}
