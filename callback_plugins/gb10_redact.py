"""Takes secrets out of everything a run says: on the screen, in a log file, in what a runner keeps of it."""

from __future__ import annotations

from ansible.plugins.callback import CallbackBase
from ansible.utils.display import Display

from gb10 import known
from gb10.redact import scrub_text

DOCUMENTATION = """
name: gb10_redact
type: aggregate
short_description: Keeps secrets off the screen
description:
  - What a run displays passes through here. Values of variables with the name of a secret, of vaults and of the
    environment, and what looks like a secret, are hidden.
"""


class CallbackModule(CallbackBase):
    """Stands before the one Display of the process; results and warnings reach it as text."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gb10_redact"

    def __init__(self):
        super().__init__()
        self.secrets = frozenset()
        display = Display()
        shown = display.display

        def scrubbed(msg, *args, **kwargs):
            return shown(scrub_text(msg, self.secrets) if isinstance(msg, str) else msg, *args, **kwargs)

        display.display = scrubbed

    def v2_playbook_on_play_start(self, play):
        self.secrets = known.of_play(play)
