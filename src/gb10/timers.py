"""systemd units for the controller: recover and drift from time to time. See docs/serving.md."""

from __future__ import annotations

from dataclasses import dataclass

# A boot takes up to 25 minutes, and nodes may have to boot first; the run's own limits end it before this does.
RECOVER_LIMIT = "2h"
DRIFT_LIMIT = "15min"


@dataclass(frozen=True)
class Units:
    """What the units need to know. Paths are absolute; ``every``: as systemd writes a time span (``5min``)."""

    checkout: str
    inventory: str
    user: str
    python_bin: str
    recover_every: str
    drift_every: str

    def files(self) -> dict[str, str]:
        """Text by file name."""
        playbook = [
            f"{self.python_bin}/ansible-playbook",
            "-i",
            self.inventory,
            f"{self.checkout}/playbooks/recover.yml",
        ]
        look = [f"{self.python_bin}/gb10", "drift", "-i", self.inventory]
        return {
            "gb10-recover.service": self._service("What should run is brought back", playbook, RECOVER_LIMIT),
            "gb10-recover.timer": _timer("recover", self.recover_every),
            "gb10-drift.service": self._service("What runs against what should", look, DRIFT_LIMIT),
            "gb10-drift.timer": _timer("drift", self.drift_every),
        }

    def _service(self, about: str, argv: list[str], limit: str) -> str:
        return f"""\
[Unit]
Description=gb10: {about}
After=network-online.target
Wants=network-online.target

[Service]
Type=oneshot
User={self.user}
WorkingDirectory={self.checkout.replace("%", "%%")}
Environment=ANSIBLE_CONFIG={quoted(self.checkout + "/ansible.cfg")}
ExecStart={" ".join(map(quoted, argv))}
TimeoutStartSec={limit}
"""


def _timer(name: str, every: str) -> str:
    """A timer whose next turn comes ``every`` after the end of the last one: two never meet."""
    return f"""\
[Unit]
Description=gb10: {name} from time to time

[Timer]
OnBootSec=2min
OnUnitInactiveSec={every}

[Install]
WantedBy=timers.target
"""


def quoted(word: str) -> str:
    """One word of a command line in systemd's quoting; ``%`` and ``$`` mean something to it."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if any(c in word for c in " \t\"'\\;") else text
