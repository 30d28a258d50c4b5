"""Proves an image archive on the controller before it goes anywhere: content, entrypoint, patch files."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.plugins.action import ActionBase

from gb10.archive import read_archive
from gb10.findings import errors, line
from gb10.images import judge
from gb10.settings import plain


class ActionModule(ActionBase):
    """Arguments ``source`` (directory with images.json) and ``image`` (tag). Fails with one line per fault."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("source", "image"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        source, image = Path(self._task.args["source"]), str(self._task.args["image"])
        entry = json.loads((source / "images.json").read_text())["images"][image]
        root = str(task_vars["images_site_packages"])
        paths = {name: f"{root}/{path}" for name, path in plain(task_vars["images_patch_files"]).items()}
        held = read_archive(source / entry["archive"], paths.values())
        stock = plain(task_vars["images_stock_files"]).get(image, [])
        findings = judge(image, entry, held, paths, stock, plain(task_vars["images_patch_sha256"]))
        if errors(findings):
            return result | {"failed": True, "msg": "\n".join(map(line, errors(findings)))}
        return result | {"changed": False, "warnings": [line(f) for f in findings]}
