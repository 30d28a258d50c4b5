"""Plans an all-reduce over all ranks, and judges what its containers printed. Contacts no node."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10 import all_reduce, files
from gb10.findings import errors, line
from gb10.settings import plain


class ActionModule(ActionBase):
    """With ``facts`` (the variable of ``gb10_facts``), ``backend``, ``python``, ``limit``: returns ``containers``.

    With ``results`` instead, the variable under which every node registered its container: prints the bandwidth. Fails
    with one line per error.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("facts", "backend", "python", "limit", "results"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        hostvars, deployed = task_vars["hostvars"], plain(task_vars["gb10_deploy"])
        names, given = [rank["node"] for rank in deployed["ranks"]], self._task.args
        answer = {"changed": False}
        if "facts" in given:
            facts = files.registered(hostvars, names, given["facts"])
            findings = all_reduce.refusals(deployed, facts, given["backend"])
            without = [str(task_vars.get(name)) for name in ("weights_path", "storage_cache_path")]
            run_id, python, limit = str(task_vars["gb10_run"]), plain(given["python"]), int(given["limit"])
            answer["containers"] = all_reduce.containers(deployed, run_id, given["backend"], python, limit, without)
        else:
            said = {name: hostvars[name].get(given["results"]) or {} for name in names}
            outputs = {
                name: str((r.get("container") or {}).get("Output") or r.get("msg") or "") for name, r in said.items()
            }
            transport = str(task_vars["nccl_transport"]) if given["backend"] == "nccl" else ""
            text, findings = all_reduce.judge(deployed, outputs, transport)
            Display().display(text)
        if errors(findings):
            return result | {"failed": True, "msg": "\n".join(map(line, errors(findings)))}
        return result | answer
