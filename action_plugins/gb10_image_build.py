"""Builds the rank images on the controller, into images_source. No node is contacted and no engine is needed."""

from __future__ import annotations

from dataclasses import fields

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from gb10.findings import error, line
from gb10.image_build import Recipe, build
from gb10.patches import Refused
from gb10.settings import plain
from gb10.sources import SourceError


class ActionModule(ActionBase):
    """Arguments: those of ``Recipe``. Returns ``images``: name to manifest and configuration digest. Fails with a line
    per fault."""

    _requires_connection = False
    _supports_check_mode = False
    _VALID_ARGS = frozenset(item.name for item in fields(Recipe))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        try:
            images, changed = build(Recipe(**plain(self._task.args)))
        except Refused as problem:
            return result | {"failed": True, "msg": "\n".join(map(line, problem.findings))}
        except SourceError as problem:
            return result | {"failed": True, "msg": line(problem.finding)}
        except OSError as problem:
            found = error("build-failed", f"{problem}.", "Look at the disk of images_source, and run again.")
            return result | {"failed": True, "msg": line(found)}
        digests = {i.name: {"manifest": i.manifest.digest, "config": i.config.digest} for i in images}
        for name, digest in digests.items():
            Display().display(f"{name}: manifest {digest['manifest']}, configuration {digest['config']}")
        return result | {"changed": changed, "images": digests}
