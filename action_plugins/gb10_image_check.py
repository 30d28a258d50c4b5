"""Proves an image on the controller before it goes anywhere: every layer's bytes, entrypoint, patch files."""

from __future__ import annotations

from ansible.plugins.action import ActionBase

from gb10.findings import error, errors, line
from gb10.image_files import LayerWrong, image_files
from gb10.images import judge
from gb10.layout import read_layout
from gb10.settings import plain
from gb10.sources import SourceError


class ActionModule(ActionBase):
    """Arguments ``source`` (an OCI image layout) and ``image`` (its name). Fails with one line per fault."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("source", "image"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        source, name = str(self._task.args["source"]), str(self._task.args["image"])
        root = str(task_vars["images_site_packages"])
        paths = {file: f"{root}/{path}" for file, path in plain(task_vars["images_patch_files"]).items()}
        try:
            image = read_layout(source)[name]
            files = image_files(source, image, paths.values())
        except SourceError as problem:
            return result | {"failed": True, "msg": line(problem.finding)}
        except (LayerWrong, OSError) as problem:
            found = error("image-layer-wrong", f"{name} in {source}: {problem}.", "Save or build the image again.")
            return result | {"failed": True, "msg": line(found)}
        stock = plain(task_vars["images_stock_files"]).get(name, [])
        findings = judge(image, files, paths, stock, plain(task_vars["images_patch_sha256"]))
        if errors(findings):
            return result | {"failed": True, "msg": "\n".join(map(line, errors(findings)))}
        return result | {"changed": False, "warnings": [line(f) for f in findings]}
