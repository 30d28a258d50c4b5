"""Says which group_vars file a profile is, or refuses it with the list of profiles. Contacts no node."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

from gb10 import checkout
from gb10.findings import line
from gb10.names import group_of, profile_findings

ROOT = Path(__file__).resolve().parents[1]


class ActionModule(ActionBase):
    """Returns ``group``. The profiles are the files ``group_vars/profile_*.yml`` beside playbooks and inventory."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        profile = str(task_vars.get("profile") or "")
        folders = [ROOT, Path(str(task_vars.get("inventory_dir") or "."))]
        findings = profile_findings(profile, checkout.profiles(folders))
        if findings:
            return result | {"failed": True, "msg": "\n".join(map(line, findings))}
        return result | {"changed": False, "group": group_of(profile)}
