"""sparkrun on the controller: its Python found, its environment and files made, its launch run. Never judges a rank."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from gb10 import sparkrun, whole
from gb10.findings import error, errors, line
from gb10.settings import plain

# What sparkrun may see of the operator's environment: no secret meant for others.
PASSED = ("PATH", "LANG", "LC_ALL", "SSH_AUTH_SOCK", "TMPDIR")
PROBE = "import sys, venv, ensurepip; print(sys.version_info[:2] >= (3, 12))"


class Failed(Exception):
    """What went wrong, as a finding's line."""


class ActionModule(ActionBase):
    """Arguments: ``state``, ``python``, ``folder``, ``requirements``, ``timeout`` (s), ``deploy``, ``cluster``,
    ``run``.

    ``found``: a Python for it exists. ``ready``: environment, recipe, cluster and default made, the recipe validated
    and its launch rehearsed. ``started``: the launch run; what became of it is for the nodes' Docker to say.
    Returns ``said``, the last lines, and ``code``.
    """

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("state", "python", "folder", "requirements", "timeout", "deploy", "cluster", "run"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self.given = plain(self._task.args)
        self.folder = Path(self.given["folder"]).expanduser()
        self.changed = False
        try:
            more = getattr(self, "_" + self.given["state"])(task_vars)
        except Failed as problem:
            return result | {"failed": True, "msg": str(problem)}
        except OSError as problem:
            raise AnsibleActionFail(f"sparkrun_dir: {problem}") from None
        return result | {"changed": self.changed} | more

    def _found(self, _task_vars):
        return {"python": python(self.given.get("python") or "")}

    def _ready(self, task_vars):
        deploy = self.given["deploy"]
        refused = errors(sparkrun.refusals(deploy))
        if refused:
            raise Failed("\n".join(map(line, refused)))
        base = python(self.given.get("python") or "")
        self._write("registries.yaml", "registries: []\n", ".config/sparkrun")
        reach = {rank["node"]: reached(task_vars["hostvars"][rank["node"]]) for rank in deploy["ranks"]}
        self._write("ssh_config", sparkrun.ssh_config(deploy, reach))
        head = reach[deploy["head"]]
        options = ["-F", str(self.home / "ssh_config"), *head["options"]]
        settings = {"ssh": {"options": options}, "telemetry": {"enabled": False}}
        self._write("config.yaml", sparkrun.text(settings), ".config/sparkrun")
        self._write(self.recipe.name, sparkrun.text(sparkrun.recipe(deploy, self.given["run"])), "recipes")
        if self._task.check_mode:
            return {}
        self._environment(base)
        self._cluster(deploy, head["user"])
        self._must(["recipe", "validate", str(self.recipe)])
        said = self._must([*self._launch(), "--dry-run"])
        shown = sparkrun.command_shown(said)
        if shown != sparkrun.command(deploy):
            finding = error(
                "sparkrun-differs",
                f"Its dry run would start {shlex.join(shown)[:300] or 'nothing'}, not the plan's command.",
                "No rank was touched. Take serve_launcher: docker.",
            )
            raise Failed(line(finding))
        return {"said": said.splitlines()[-20:]}

    def _started(self, _task_vars):
        self.changed = True
        done = self._sparkrun(self._launch())
        return {"code": done.returncode, "said": (done.stdout + done.stderr).splitlines()[-30:]}

    @property
    def home(self):
        """sparkrun's home: one a cluster, so that settings and default cluster of several never mix."""
        return self.folder / self.given["cluster"]

    @property
    def recipe(self):
        """The recipe's file."""
        return self.home / "recipes" / f"{sparkrun.recipe_name(self.given['deploy']['profile'])}.yaml"

    @property
    def program(self):
        """The installed program."""
        return self.folder / "venv/bin/sparkrun"

    def _launch(self):
        return sparkrun.run_command(self.given["cluster"], str(self.recipe), self.given["deploy"])

    def _write(self, name, text, below=""):
        path = self.home / below / name
        if path.is_file() and path.read_text() == text:
            return
        self.changed = True
        if not self._task.check_mode:
            path.parent.mkdir(parents=True, exist_ok=True)
            whole.write(path, text.encode(), 0o600)

    def _environment(self, base):
        """The environment, made anew where its requirements or its Python are others."""
        wanted = Path(self.given["requirements"]).read_text() + f"# {base}\n"
        mark = self.folder / "venv/requirements.made"
        if not (mark.is_file() and mark.read_text() == wanted and self.program.is_file()):
            self.changed = True
            venv = self.folder / "venv"
            self._call([base, "-m", "venv", "--clear", str(venv)])
            install = [str(venv / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
            self._call([*install, "--requirement", self.given["requirements"]])
            whole.write(mark, wanted.encode(), 0o600)
        environment = " ".join(f"{key}={shlex.quote(value)}" for key, value in self._own().items())
        self._write("sparkrun", f'#!/bin/sh\nexec env {environment} {shlex.quote(str(self.program))} "$@"\n')
        (self.home / "sparkrun").chmod(0o755)

    def _cluster(self, deploy, user):
        """The cluster by its own commands, and the default one."""
        name, clusters = self.given["cluster"], self.home / ".config/sparkrun/clusters"
        before = held(clusters, name)
        verb = "update" if (clusters / f"{name}.yaml").is_file() else "create"
        command = sparkrun.cluster_command(name, deploy, user, sparkrun.cache_folder(deploy), verb)
        self._must(command)
        self._must(["cluster", "set-default", name])
        self.changed = self.changed or held(clusters, name) != before

    def _own(self):
        """What sparkrun is told by its environment: its home, and to send no telemetry."""
        return {"HOME": str(self.home), "SPARKRUN_NO_TELEMETRY": "1", "SPARKRUN_NO_EXTERNAL_PLUGINS": "1"}

    def _sparkrun(self, words):
        inherited = {name: os.environ[name] for name in PASSED if name in os.environ}
        command = [str(self.program), *words]
        seconds = float(self.given["timeout"])
        try:
            return subprocess.run(
                command,
                env=inherited | self._own(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"It did not end within {seconds:.0f} s.")

    def _must(self, words):
        done = self._sparkrun(words)
        if done.returncode:
            said = " | ".join((done.stdout + done.stderr).split("\n")[-12:]).strip()
            finding = error(
                "sparkrun-failed",
                f"sparkrun {' '.join(words[:2])} ended with {done.returncode}: {said[-600:]}",
                "No rank was touched. Read docs/sparkrun.md, or take serve_launcher: docker.",
            )
            raise Failed(line(finding))
        return done.stdout

    def _call(self, command):
        seconds = float(self.given["timeout"])
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
            said, failed = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired:
            said, failed = f"It did not end within {seconds:.0f} s.", 124
        if failed:
            last = (said.strip().splitlines() or ["it said nothing"])[-1][:300]
            finding = error(
                "sparkrun-install",
                f"{' '.join(map(str, command[:4]))} failed: {last}",
                "Give pip a way to PyPI or a mirror (PIP_INDEX_URL), or take serve_launcher: docker.",
            )
            raise Failed(line(finding))


def held(clusters, name):
    """The cluster's definition and the default one as they are kept."""
    return [(path.read_text() if path.is_file() else "") for path in (clusters / f"{name}.yaml", clusters / ".default")]


def reached(host):
    """How Ansible reaches a node, in OpenSSH's terms."""
    options = shlex.split(" ".join(str(host.get(f"ansible_ssh_{kind}_args") or "") for kind in ("common", "extra")))
    key = host.get("ansible_ssh_private_key_file") or host.get("ansible_private_key_file")
    return {
        "host": str(host.get("ansible_host") or host.get("inventory_hostname")),
        "port": host.get("ansible_port"),
        "key": str(Path(key).expanduser().resolve()) if key else "",
        "user": str(host.get("ansible_user") or ""),
        "options": options,
    }


def python(given):
    """A Python new enough for sparkrun: ``given``, else one on the PATH, else one of pyenv's. Raises Failed."""
    names = [given] if given else [f"python3.{minor}" for minor in range(12, 20)] + ["python3"]
    found = [shutil.which(str(Path(name).expanduser())) for name in names]
    if not given:
        versions = Path("~/.pyenv/versions").expanduser()
        found += [str(path) for path in sorted(versions.glob("3.1[2-9]*/bin/python3"))]
    for candidate in filter(None, found):
        try:
            told = subprocess.run([candidate, "-c", PROBE], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.SubprocessError):
            continue
        if told.stdout.strip() == "True":
            return candidate
    what = f"sparkrun_python {given} is" if given else "The controller has"
    finding = error(
        "sparkrun-python",
        f"{what} no Python 3.12 or later with venv, which sparkrun {sparkrun.known()['version']} needs.",
        "Install one (apt-get install python3.12-venv) and name it in sparkrun_python, or take serve_launcher: docker.",
    )
    raise Failed(line(finding))
