"""Real runs of ansible-playbook on this machine: what is on record of them, however they end, and what never is."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from gb10 import runs
from gb10.ledger import Ledger

BIN = Path(sys.executable).parent
SECONDS = 240

# What must appear nowhere, and how it comes in.
PLANTED = {
    "api key by its looks": "sk-planted4f6a8b0c2d4e6f81",
    "variable with a telling name": "planted-token-value-71",
    "password in a URL": "plantedpassword5512",
    "key=value": "plantedkeyvalue9034",
    "in a registered diff": "planteddiffsecret3381",
    "in a failing task's message": "plantedfailure77120",
    "no_log": "plantedunlogged40417",
    "environment": "plantedenvironment6618",
    "nested variable": "plantednested229954",
    "under another name": "plantedaliased880123",
    "out of a vault": "plantedvaulted660917",
}
SITE = {
    "site_token": PLANTED["variable with a telling name"],
    "site": {"login": {"password": PLANTED["nested variable"], "user": "visible-user"}},
    "registry": f"https://robot:{PLANTED['password in a URL']}@registry.example/v2",
    "diffed_secret": PLANTED["in a registered diff"],
    "failing_secret": PLANTED["in a failing task's message"],
    "hidden_secret": PLANTED["no_log"],
    "aliased": "{{ aliased_secret }}",
    "aliased_secret": PLANTED["under another name"],
    "max_num_seqs": 4,
}
INVENTORY = """\
gb10:
  hosts:
    n1: {ansible_connection: local, ansible_python_interpreter: "{{ ansible_playbook_python }}"}
    n2: {ansible_connection: local, ansible_python_interpreter: "{{ ansible_playbook_python }}"}
"""
PLAYBOOK = """\
- name: Before
  hosts: gb10
  gather_facts: false
  tasks:
    - name: Something is looked at
      ansible.builtin.stat: {path: /}
- name: Run
  hosts: gb10
  gather_facts: false
  any_errors_fatal: true
  tasks:
    - name: The run is on record
      gb10_history: {folder: "{{ folder }}/ledger", signing_key: "{{ key | default('') }}"}
      run_once: true
      register: change_history__opened
    - name: The node knows
      gb10_anchor:
        anchor: "{{ change_history__opened.anchor | default({}) }}"
        path: "{{ folder }}/{{ inventory_hostname }}.fact"
    - name: A file is there
      ansible.builtin.copy:
        content: "{{ site | default({}) | to_nice_yaml }}\\n{{ more }}\\nport: 1\\n"
        dest: "{{ folder }}/{{ inventory_hostname }}-file"
        mode: "0600"
      vars: {more: "{{ diffed_secret | default('') }} {{ vaulted | default('') }}"}
      register: copied
    - name: Every item is there
      ansible.builtin.copy:
        content: "{{ item }}\\n"
        dest: "{{ folder }}/{{ inventory_hostname }}-{{ item | hash('md5') }}"
        mode: "0600"
      loop: ["{{ registry | default('a') }}", "{{ aliased | default('b') }}"]
    - name: A command ran
      ansible.builtin.command:
        argv: [sh, -c, "echo 'token={{ key_value | default('c') }}' $SOME_TOKEN; {{ wait }}"]
      vars:
        turn: "[ ! -e {{ folder }}/go ] && sleep 0.2"
        count: "touch {{ folder }}/begun{{ mark | default(0) }}; n={{ turns | default(0) }}"
        wait: "{{ count }}; while [ $n -gt 0 ] && {{ turn }}; do n=$((n-1)); done"
      when: act | default(false) | bool
      changed_when: true
    - name: What must not be shown
      ansible.builtin.copy:
        content: "{{ hidden_secret | default('d') }}"
        dest: "{{ folder }}/{{ inventory_hostname }}-hidden"
        mode: "0600"
      no_log: true
    - name: It is shown what was copied
      ansible.builtin.debug: {var: copied}
      when: fails | default(false) | bool
    - name: It fails
      ansible.builtin.fail:
        msg: "cannot reach {{ registry }}: {{ failing_secret }} --api-key {{ looks }} api_key={{ key_value }}"
      when: fails | default(false) | bool
"""


@dataclass
class Place:
    """A directory with an inventory, a playbook and, once it ran, a ledger."""

    folder: Path

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "ledger")

    def command(self, *more: str) -> list[str]:
        playbook = [str(self.folder / "play.yml"), "-i", str(self.folder / "hosts.yml")]
        return [str(BIN / "ansible-playbook"), *playbook, "-e", f"folder={self.folder}", *more]

    def start(self, *more: str, command: list[str] | None = None, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command or self.command(*more),
            cwd=self.folder,
            env=os.environ
            | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PATH": f"{BIN}:{os.environ['PATH']}"}
            | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *more: str, **environment: str) -> tuple[int, str]:
        process = self.start(*more, **environment)
        said = process.communicate(timeout=SECONDS)[0]
        return process.returncode, said

    def begun(self, process: subprocess.Popen[str], mark: int = 0) -> None:
        """Once its command is at work; the screen shows a task with its first result only."""
        while process.poll() is None and not (self.folder / f"begun{mark}").exists():
            time.sleep(0.1)

    def let_go(self, ends: int) -> None:
        """What commands wait for: once so many runs are closed, or had ten seconds to hear of their signal."""
        for _turn in range(100):
            if sum(run.end is not None for run in self.story()) >= ends:
                break
            time.sleep(0.1)
        (self.folder / "go").touch()

    def story(self) -> list[runs.Run]:
        chain = self.ledger.read(deep=True)
        assert chain.faults == ()
        return runs.runs(chain.entries)


def place(folder: Path) -> Place:
    folder.mkdir(exist_ok=True)
    (folder / "hosts.yml").write_text(INVENTORY)
    (folder / "play.yml").write_text(PLAYBOOK)
    (folder / "site.json").write_text(json.dumps(SITE))
    return Place(folder)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, int, str]:
    """A run full of secrets that fails in its last task, as loud as can be."""
    here = place(tmp_path_factory.mktemp("told"))
    (here.folder / "password").write_text("of the vault")
    lock = [BIN / "ansible-vault", "encrypt_string", "--vault-password-file", here.folder / "password"]
    locked = subprocess.run(
        [*lock, "--name", "vaulted", PLANTED["out of a vault"]], capture_output=True, timeout=60, check=True
    )
    (here.folder / "vault.yml").write_bytes(locked.stdout)
    code, said = here.run(
        *(
            "-vv",
            "--vault-password-file",
            "password",
            "-e",
            "@vault.yml",
            "-e",
            "@site.json",
            "-e",
            "fails=true act=true",
            "-e",
            f"looks={PLANTED['api key by its looks']}",
        ),
        *("-e", json.dumps({"key_value": PLANTED["key=value"]})),
        SOME_TOKEN=PLANTED["environment"],
        ANSIBLE_LOG_PATH=str(here.folder / "ansible.log"),
    )
    return here, code, said


def test_the_entry_is_complete(told: tuple[Place, int, str]) -> None:
    here, code, said = told
    assert code == 2, said[-2000:]
    (run,) = here.story()
    begin, end = run.begin, run.end
    assert end
    head = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=30, check=True
    )
    assert begin["commit"] == head.stdout.strip()
    assert begin["dirty"] == bool(begin["diff_hash"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", begin["time"])
    assert begin["operator"]
    assert begin["controller"]
    assert begin["nodes"] == ["n1", "n2"]
    assert begin["playbook"] == "play.yml"
    assert begin["command"][:2] == ["ansible-playbook", str(here.folder / "play.yml")]
    assert begin["overrides"]["max_num_seqs"] == 4
    assert set(begin["overrides"]) == {*SITE, "vaulted", "folder", "fails", "act", "looks", "key_value"}
    assert "site_token" in begin["hidden"]
    assert "max_num_seqs" not in begin["hidden"]
    assert set(begin["collections"]) >= {"ansible.posix", "community.docker"}
    for key in ("inventory_hash", "group_vars_hash"):
        assert re.fullmatch("[0-9a-f]{64}", begin[key])
    changed = {change["task"]: change["items"] for change in run.changes}
    assert list(changed) == ["A file is there", "Every item is there", "A command ran", "What must not be shown"]
    assert {item["node"] for item in changed["A file is there"]} == {"n1", "n2"}
    assert all("+port: 1" in item["diff"] and item["seconds"] > 0 for item in changed["A file is there"])
    assert "visible-user" in changed["A file is there"][0]["diff"]
    assert len(changed["Every item is there"]) == 4
    assert [item["note"] for item in changed["What must not be shown"]] == ["no_log", "no_log"]
    assert end["outcome"] == "failed"
    assert {bad["task"] for bad in end["failed"]} == {"It fails"}
    assert "cannot reach" in end["failed"][0]["message"]
    assert end["stats"]["n1"]["failed"] == 1
    assert end["stats"]["n1"]["changed"] == 4
    assert 0 < end["recording"] < end["seconds"]


def test_planted_secrets_appear_nowhere(told: tuple[Place, int, str]) -> None:
    """Ledger, node files, log and screen; the files the run itself wrote hold them, or nothing was planted."""
    here, _code, said = told
    assert "visible-user" in said
    kept = {str(path): path.read_text() for path in (here.folder / "ledger").rglob("*") if path.is_file()}
    kept |= {str(path): path.read_text() for path in here.folder.glob("*.fact")}
    kept |= {"log": (here.folder / "ansible.log").read_text(), "screen": said}
    assert len(kept) >= 6
    found = [(what, name) for what, secret in PLANTED.items() for name, text in kept.items() if secret in text]
    assert found == []
    written = "".join(path.read_text() for path in here.folder.glob("n?-*"))
    for what in (
        "nested variable",
        "in a registered diff",
        "password in a URL",
        "under another name",
        "out of a vault",
    ):
        assert PLANTED[what] in written


def test_a_second_run_changes_nothing_and_is_on_record(tmp_path: Path) -> None:
    """The anchor follows every run without counting as a change; check mode leaves neither."""
    here = place(tmp_path / "idle")
    assert here.run("--limit", "n1")[0] == 0
    first = json.loads((here.folder / "n1.fact").read_text())
    code, said = here.run("--limit", "n1")
    assert code == 0
    assert re.findall(r"changed=(\d+)", said) == ["0"]
    assert [run.outcome for run in here.story()] == ["changed", "unchanged"]
    second = json.loads((here.folder / "n1.fact").read_text())
    held = {line.sequence: line for line in here.ledger.read().lines}
    assert second["sequence"] > first["sequence"]
    for kept in (first, second):
        assert held[kept["sequence"]].hash == kept["hash"]
    before = {path: path.read_bytes() for path in here.folder.rglob("*") if path.is_file()}
    assert here.run("--limit", "n1", "--check")[0] == 0
    assert {path: path.read_bytes() for path in here.folder.rglob("*") if path.is_file()} == before


def until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return
    raise AssertionError(said[-3000:])


def test_interrupted_runs_are_closed_and_killed_ones_stay_open(tmp_path: Path) -> None:
    """Five runs on one ledger at once: Ctrl-C, terminated, and kill -9 at three tasks."""
    here = place(tmp_path / "ended")
    ends = [
        (signal.SIGINT, "A command ran"),
        (signal.SIGTERM, "A command ran"),
        (signal.SIGKILL, "The node knows"),
        (signal.SIGKILL, "Every item is there"),
        (signal.SIGKILL, "A command ran"),
    ]
    processes = [here.start("--limit", "n1", "-e", f"turns=1500 act=true mark={n}") for n in range(len(ends))]
    for mark, (process, (number, task)) in enumerate(zip(processes, ends, strict=True)):
        if task == "A command ran":
            here.begun(process, mark)
        else:
            until(process, f"TASK [{task}")
        if number == signal.SIGKILL:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    here.let_go(2)
    for process in processes:
        process.communicate(timeout=SECONDS)
        assert process.returncode != 0
    story = here.story()
    assert sorted(run.end["signal"] if run.end else "" for run in story) == ["", "", "", "SIGINT", "SIGTERM"]
    closed = [run for run in story if run.end]
    assert {run.outcome for run in closed} == {"interrupted"}
    assert all(run.end["stats"]["n1"]["ok"] >= 3 for run in closed if run.end)
    assert "A file is there" in {change["task"] for run in story for change in run.changes}
    here.ledger.begin({"kind": "begin", "run": "next", "time": "t"})
    assert here.story()[-1].id == "next"


def test_what_cannot_be_recorded_does_not_run(tmp_path: Path) -> None:
    """A ledger that does not verify, a read-only one, a full disk, no callback: one line, and no change."""
    places = {name: place(tmp_path / name) for name in ("damaged", "readonly", "full", "deaf")}
    for name in ("damaged", "readonly", "full"):
        ledger = places[name].ledger
        if name == "full":
            ledger.folder.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", ledger.folder], check=True, timeout=30)
        else:
            ledger.begin({"kind": "begin", "run": "r0", "time": "t"})
    path = places["damaged"].ledger.runs / "r0.jsonl"
    path.write_text(path.read_text().replace('"time":"t"', '"time":"u"'))
    frozen = str(places["readonly"].ledger.folder)
    subprocess.run(["mount", "--bind", "-o", "ro", frozen, frozen], check=True, timeout=30)
    try:
        deaf = {"ANSIBLE_CALLBACK_PLUGINS": str(tmp_path)}
        started = {name: one.start(**(deaf if name == "deaf" else {})) for name, one in places.items()}
        said = {name: process.communicate(timeout=SECONDS)[0] for name, process in started.items()}
    finally:
        for name in ("readonly", "full"):
            subprocess.run(["umount", places[name].ledger.folder], check=True, timeout=30)
    wanted = {
        "damaged": "does not verify: entry 0 (run r0) was changed",
        "readonly": "Read-only file system",
        "full": "less than 4 MiB are free",
        "deaf": "The callback gb10_history is not loaded",
    }
    for name, process in started.items():
        assert process.returncode == 2, (name, said[name])
        assert f"error [history-unwritable] {'' if name == 'deaf' else places[name].ledger.folder}" in said[name]
        assert wanted[name] in said[name]
        assert "Traceback" not in said[name]
        assert not list(places[name].folder.glob("n?-*")), name
    assert path.read_text().count('"time":"u"') == 1


# --- through ansible-runner ------------------------------------------------------------------------------------------

ASK = """\
- name: Ask
  hosts: n1
  gather_facts: false
  tasks:
    - name: What is configured
      ansible.builtin.debug:
        msg: "host keys {{ lookup('ansible.builtin.config', 'HOST_KEY_CHECKING') }}"
"""


def command_lines() -> str:
    texts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


def contents(folder: Path) -> str:
    """Of regular files; what goes away meanwhile is left out."""
    texts = []
    for where, _folders, names in os.walk(folder):
        for path in (Path(where) / name for name in names):
            with contextlib.suppress(OSError):
                texts.append(path.read_bytes().decode(errors="replace") if path.is_file() else "")
    return "\n".join(texts)


def test_a_run_through_the_runner_is_recorded_and_leaves_nothing_else(tmp_path: Path) -> None:
    here = place(tmp_path / "runner")
    (here.folder / "play.yml").write_text(PLAYBOOK + ASK)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    secrets = here.folder / "secrets.json"
    secrets.write_text(json.dumps({"site_token": PLANTED["variable with a telling name"]}))
    command = [str(BIN / "gb10"), "run", "play.yml", "-i", "hosts.yml", "-e", f"folder={here.folder} max_num_seqs=4"]
    command += [
        "-e",
        "@secrets.json",
        "-e",
        '{"note": "kept off the list"}',
        "-e",
        "act=true turns=10",
        "--limit",
        "n1",
    ]
    more = {"TMPDIR": str(scratch), "SOME_TOKEN": PLANTED["environment"], "PATH": os.defpath}  # ansible is not on it
    process = here.start(command=command, **more)
    listed = ""
    while process.poll() is None:
        lines = command_lines().split("\n")
        listed += "\n".join(line for line in lines if "ansible" in line and "gb10\0run" not in line)
        assert PLANTED["environment"] not in contents(scratch)
        time.sleep(0.3)
    said = process.communicate(timeout=30)[0]
    assert process.returncode == 0, said
    assert "host keys True" in said
    assert list(scratch.iterdir()) == []
    assert "play.yml" in listed
    assert "kept off the list" not in listed
    for what, secret in PLANTED.items():
        assert secret not in said + listed, what
    (run,) = here.story()
    assert run.outcome == "changed"
    assert run.begin["overrides"]["max_num_seqs"] == "4"
    assert run.begin["overrides"]["note"] == "(not recorded)"
    kept = "".join(path.read_text() for path in here.ledger.folder.rglob("*") if path.is_file())
    assert PLANTED["environment"] not in kept


def test_a_runner_that_is_interrupted_passes_it_on(tmp_path: Path) -> None:
    here = place(tmp_path / "runner")
    command = [
        str(BIN / "gb10"),
        "run",
        "play.yml",
        "-i",
        "hosts.yml",
        "-e",
        f"folder={here.folder} act=true turns=1500",
    ]
    process = here.start(command=[*command, "--limit", "n1"])
    here.begun(process)
    process.send_signal(signal.SIGINT)
    here.let_go(1)
    process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    (run,) = here.story()
    assert run.end
    assert (run.end["outcome"], run.end["signal"]) == ("interrupted", "SIGINT")


HOLDS = """\
import time
from pathlib import Path
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        Display()._final_q._wlock.acquire()  # where a worker is while it hands over a result
        Path(task_vars["folder"], "begun0").touch()
        time.sleep(600)
"""
QUEUE = """\
    - name: A worker is killed in the middle of handing over
      holds:
      run_once: true
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_whose_worker_died_with_the_queue_ends_and_is_closed(tmp_path: Path, number: signal.Signals) -> None:
    here = place(tmp_path / "queue")
    (here.folder / "action_plugins").mkdir()
    (here.folder / "action_plugins/holds.py").write_text(HOLDS)
    (here.folder / "play.yml").write_text(PLAYBOOK + QUEUE)
    process = here.start()
    here.begun(process)
    process.send_signal(number)
    try:
        said = process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode != 0, said
    (run,) = here.story()
    assert run.end
    assert (run.end["outcome"], run.end["signal"]) == ("interrupted", number.name)


@pytest.mark.parametrize("wrong", ["missing.yml", ""])
def test_no_such_playbook(wrong: str, tmp_path: Path) -> None:
    done: Any = subprocess.run(
        [BIN / "gb10", "run", wrong], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"gb10: {wrong}: no such playbook.\n"


@pytest.mark.parametrize(
    "words", [["-e", "serve_api_key=abcdefgh12345678"], ['--extra-vars={"serve_api_key": "abcdefgh1"}']]
)
def test_a_key_on_the_command_line_is_refused_before_anything_runs(words: list[str]) -> None:
    done: Any = subprocess.run(
        [BIN / "gb10", "run", "playbooks/stop.yml", "-i", "none", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gb10: error [api-key-on-command-line] ")
    assert "abcdefgh1" not in done.stderr
