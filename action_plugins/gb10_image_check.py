"""Proves an image archive on the controller before it goes anywhere: content, entrypoint, patch files."""

from __future__ import annotations

import tarfile
from pathlib import Path

from ansible.plugins.action import ActionBase

from gb10.archive import read_archive
from gb10.findings import error, errors, line
from gb10.images import judge
from gb10.settings import plain
from gb10.sources import SourceError, image_index


class ActionModule(ActionBase):
    """Arguments ``source`` (directory with images.json) and ``image`` (tag). Fails with one line per fault."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("source", "image"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        source, image = Path(self._task.args["source"]), str(self._task.args["image"])
        root = str(task_vars["images_site_packages"])
        paths = {name: f"{root}/{path}" for name, path in plain(task_vars["images_patch_files"]).items()}
        try:
            entry = image_index(str(source))[image]
            held = read_archive(source / entry["archive"], paths.values())
        except SourceError as problem:
            return result | {"failed": True, "msg": line(problem.finding)}
        except (OSError, EOFError, tarfile.TarError, KeyError, ValueError) as problem:
            found = error("archive-unreadable", f"{image} in {source}: {problem}.", "Save and copy the image again.")
            return result | {"failed": True, "msg": line(found)}
        stock = plain(task_vars["images_stock_files"]).get(image, [])
        findings = judge(image, entry, held, paths, stock, plain(task_vars["images_patch_sha256"]))
        if errors(findings):
            return result | {"failed": True, "msg": "\n".join(map(line, errors(findings)))}
        return result | {"changed": False, "warnings": [line(f) for f in findings]}
