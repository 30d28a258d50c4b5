"""Says which group_vars file a profile is, or refuses it with the list of profiles. Contacts no node."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

from gb10.findings import line
from gb10.names import group_of, profile_findings


class ActionModule(ActionBase):
    """Returns ``group``. The profiles are the files ``group_vars/profile_*.yml`` beside playbooks and inventory."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        profile = str(task_vars.get("profile") or "")
        folders = [Path(__file__).resolve().parents[1], Path(str(task_vars.get("inventory_dir") or "."))]
        files = {p.stem for folder in folders for p in folder.glob("group_vars/profile_*.yml")}
        profiles = [name.removeprefix("profile_").replace("_", "-") for name in sorted(files)]
        findings = profile_findings(profile, profiles)
        if findings:
            return result | {"failed": True, "msg": "\n".join(map(line, findings))}
        return result | {"changed": False, "group": group_of(profile)}
