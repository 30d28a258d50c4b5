"""``gb10 run``: a playbook through ansible-runner, on record like any other run. See docs/history.md.

What the runner needs lives in a directory of its own for the time of the run, for the operator's eyes only; neither the
environment nor events nor output are kept. Overrides go through files there: a process list does not show them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from gb10 import api_key, checkout
from gb10.findings import line

USAGE = 2
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXTRA = ("-e", "--extra-vars")


def add(verbs: Any) -> None:
    """The verb on the command line of ``gb10``."""
    verb = verbs.add_parser(
        "run",
        help="a playbook through ansible-runner, on record",
        description="Runs PLAYBOOK through ansible-runner. Options after it are those of ansible-playbook.",
        epilog="example:  gb10 run site.yml -i inventory/hosts.yml -e profile=tp8-300k -e @site.yml",
        allow_abbrev=False,
    )
    verb.set_defaults(run=run_verb)
    verb.add_argument("playbook", metavar="PLAYBOOK")
    verb.add_argument("options", nargs=argparse.REMAINDER, metavar="OPTION ...", help="of ansible-playbook")


def run_verb(args: argparse.Namespace) -> int:
    """The exit status of ansible-playbook."""
    root = checkout.root()
    found = [path for path in (Path(args.playbook), root / args.playbook) if path.is_file()]
    if not found:
        print(f"gb10: {args.playbook}: no such playbook.", file=sys.stderr)
        return USAGE
    # The playbook would see a file: what stood on this command line is judged here.
    for finding in api_key.shown([given for option, given in split(args.options) if option in EXTRA]):
        print(f"gb10: {line(finding)}", file=sys.stderr)
        return USAGE
    try:
        import ansible_runner
    except ImportError:
        print("gb10: ansible-runner is not installed: pip install ansible-runner.", file=sys.stderr)
        return USAGE
    with tempfile.TemporaryDirectory(prefix="gb10-run-") as folder:  # mode 0700
        options = hidden(args.options, Path(folder))
        before = {number: signal.signal(number, pass_on) for number in SIGNALS}
        try:
            done = ansible_runner.run(
                private_data_dir=folder,
                project_dir=str(root),
                playbook=str(found[0].resolve()),
                cmdline=shlex.join(options),
                envvars={
                    "ANSIBLE_CONFIG": os.environ.get("ANSIBLE_CONFIG", str(root / "ansible.cfg")),
                    "ANSIBLE_CALLBACK_PLUGINS": str(root / "callback_plugins"),  # it puts its own in place of ours
                    "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
                    "ANSIBLE_HOST_KEY_CHECKING": "True",  # ansible-runner turns it off where nobody says
                },
                suppress_env_files=True,
                settings={"suppress_output_file": True},
                event_handler=forget,
                status_handler=swallow,
                cancel_callback=lambda: False,  # signals reach ansible-playbook itself, which then closes its record
            )
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return int(done.rc)


def forget(_event: Any) -> bool:
    """Tells the runner to keep no file of an event."""
    return False


def swallow(status: Any, runner_config: Any) -> None:
    """Before the runner writes command and environment to a file: makes that a pipe whose content goes nowhere."""
    if status["status"] == "starting":
        folder = Path(runner_config.artifact_dir)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.mkfifo(folder / "command", 0o600)
        threading.Thread(target=(folder / "command").read_bytes, daemon=True).start()


def hidden(options: Sequence[str], folder: Path) -> list[str]:
    """The options with every override in a file of its own; inventories and files by their whole path."""
    from ansible.parsing.splitter import parse_kv

    words: list[str] = []
    rest = list(split(options))
    for number, (option, given) in enumerate(rest):
        if option in EXTRA and not given.startswith("@"):
            path = folder / f"override{number}.yml"
            plain = given.lstrip().startswith(("{", "["))
            write(path, given if plain else as_json(parse_kv(given)))
            words += [option, f"@{path}"]
        elif option in EXTRA:
            words += [option, f"@{Path(given[1:]).expanduser().resolve()}"]
        elif option in ("-i", "--inventory") and "," not in given:
            words += [option, str(Path(given).resolve())]
        else:
            words += [word for word in (option, given) if word]
    return words


def split(options: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Pairs of option and value for those that are looked at, whichever way they are written; others as they are."""
    words = iter(options)
    for word in words:
        name, equals, value = word.partition("=")
        if word in (*EXTRA, "-i", "--inventory"):
            yield word, next(words, "")
        elif name in ("--extra-vars", "--inventory") and equals:
            yield name, value
        elif word[:2] in ("-e", "-i") and len(word) > 2:
            yield word[:2], word[2:]
        else:
            yield word, ""


def as_json(values: Any) -> str:
    """Overrides as a file of them."""
    return json.dumps({name: value for name, value in values.items() if name != "_raw_params"})


def write(path: Path, text: str) -> None:
    """For the operator's eyes only."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(text)


def pass_on(number: int, _frame: FrameType | None) -> None:
    """A signal to what was started: in a session of its own, where the terminal's Ctrl-C does not reach it."""
    for child in children(os.getpid()):
        os.kill(child, number)


def children(pid: int) -> list[int]:
    """Processes whose parent this is."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found
