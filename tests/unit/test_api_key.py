"""The endpoint's API key: refused before anything changes, kept for root alone, not dropped in silence, never said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from modules import run_module
from support import ROOT

from gb10 import api_key, kept_key, key_file

BIN = Path(sys.executable).parent
KEY = "sk-planted.4f6a8b0c2d4e6f81_~+/=="
PLAN = ("-i", "inventory/hosts.yml", "playbooks/plan.yml", "-e", "profile=tp8-300k")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (KEY, ""),
        ("a" * 16, ""),
        ("a" * 15, "has 15 characters, 16 are the least"),
        ("a" * 16 + "\n", "no bearer token may"),
        (" " + "a" * 16, "no bearer token may"),
        ("two words of sixteen", "no bearer token may"),
        ('"' + "a" * 16, "no bearer token may"),
        ("'" + "a" * 16 + "'", "no bearer token may"),
        ("schlüssel-sechzehn", "no bearer token may"),
        ("=" * 16, "no bearer token may"),
        (1234567890123456, "is no text"),
        ({"key": "a" * 16}, "is no text"),
    ],
)
def test_a_key_that_no_client_could_send_is_refused_without_saying_it(key: Any, words: str) -> None:
    found = api_key.refusals(key, (), "docker")
    assert [one.code for one in found] == (["api-key-invalid"] if words else [])
    for one in found:
        assert words in one.message
        assert str(key).strip() not in one.message


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (f"serve_api_key={KEY}", True),
        (f"profile=tp8-300k serve_api_key={KEY}", True),
        (json.dumps({"serve_api_key": KEY}), True),
        (f"{{serve_api_key: {KEY}}}", True),
        ("{'serve_api_key' : x}", True),
        ("@serve_api_key=vault.yml", False),
        ("serve_api_key_remove=true", False),
        ('{"serve_api_key_remove": true}', False),
        ("profile=tp8-300k", False),
    ],
)
def test_a_key_on_the_command_line_is_refused(given: str, refused: bool) -> None:
    for key in ("", KEY):
        codes = [one.code for one in api_key.refusals(key, ["profile=x", given], "docker")]
        assert codes == (["api-key-on-command-line"] if refused else [])


def test_sparkrun_gets_no_key() -> None:
    assert [one.code for one in api_key.refusals(KEY, (), "sparkrun")] == ["api-key-launcher"]
    assert api_key.refusals("", (), "sparkrun") == []


@pytest.mark.parametrize(
    ("given", "remove", "kept", "serves", "act", "code"),
    [
        (False, False, [], True, "leave", ""),
        (True, False, [], True, "keep", ""),
        (True, False, ["n1"], True, "keep", ""),
        (False, True, ["n1"], True, "remove", ""),
        (False, True, [], True, "remove", ""),
        (True, True, [], True, "leave", "api-key-contradiction"),
        (False, False, ["n1"], True, "leave", "api-key-missing"),
        (False, False, ["n1"], False, "leave", ""),
    ],
)
def test_a_kept_key_is_not_dropped_in_silence(
    given: bool, remove: bool, kept: list[str], serves: bool, act: str, code: str
) -> None:
    found, findings = kept_key.decided(given, remove, kept, serves)
    assert (found, [one.code for one in findings]) == (act, [code] if code else [])


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ([], ""),
        (["PATH=/bin", f"VLLM_API_KEY={KEY}"], KEY),
        (["VLLM_API_KEY="], ""),
        (["VLLM_API_KEY", "VLLM_API_KEY_2=x", "MY_VLLM_API_KEY=y"], ""),
        (["VLLM_API_KEY=first", "VLLM_API_KEY=last"], "last"),
    ],
)
def test_the_key_among_lines(lines: list[str], key: str) -> None:
    assert key_file.key_in(lines) == key


def test_the_file_is_written_whole_for_root_alone_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "api/key.env"

    def keep(**given: Any) -> tuple[bool, str]:
        done = run_module("gb10_api_key", key_file=str(path), **given)
        assert KEY not in json.dumps(done)
        return done["changed"], done["key_file"]

    assert keep() == (False, "")
    assert keep(check=True, key=KEY) == (True, "")
    assert keep(key=KEY) == (True, str(path))
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert key_file.read(str(path)) == KEY
    assert [one.name for one in path.parent.iterdir()] == ["key.env"]
    assert keep(key=KEY) == keep() == (False, str(path))
    path.chmod(0o644)
    assert keep(key=KEY) == (True, str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert keep(key="another-0123456789") == (True, str(path))
    assert key_file.read(str(path)) == "another-0123456789"
    assert keep(key="") == (True, "")
    assert not path.parent.exists()
    assert keep(key="") == (False, "")


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_module("gb10_api_key", key_file=str(tmp_path / "file/api/key.env"), key=KEY)
    assert done["msg"].startswith("The API key cannot be kept: ")
    assert KEY not in json.dumps(done)


def plan(*more: str, key: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "GB10_API_KEY": key}
    command = [str(BIN / "ansible-playbook"), *PLAN, *more]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_key_changes_no_plan_and_is_said_nowhere(tmp_path: Path) -> None:
    """From the environment, and from a file in its place; as loud as can be."""
    (tmp_path / "key.yml").write_text(f'serve_api_key: "{KEY}"\n')
    for more, key in ((("-vvv",), KEY), (("-vvv", "-e", f"@{tmp_path / 'key.yml'}"), "")):
        target = tmp_path / "plan.json"
        done = plan("-e", f"plan_file={target}", *more, key=key)
        assert done.returncode == 0, done.stdout[-3000:]
        assert KEY not in done.stdout + done.stderr
        assert target.read_bytes() == (ROOT / "tests/golden/tp8-300k.json").read_bytes()


@pytest.mark.parametrize(
    ("more", "key", "code"),
    [
        (("-e", f"serve_api_key={KEY}"), "", "api-key-on-command-line"),
        (("-e", "serve_launcher=sparkrun"), KEY, "api-key-launcher"),
        ((), "too-short-to-say", ""),
        ((), "too-short", "api-key-invalid"),
        (("-e", '{"container_env": {"VLLM_API_KEY": "0123456789abcdef"}}'), "", "env-refused"),
    ],
)
def test_the_playbook_refuses_with_its_plan(more: tuple[str, ...], key: str, code: str) -> None:
    done = plan(*more, key=key)
    said = done.stdout + done.stderr
    assert (done.returncode == 0) == (not code)
    assert f"error [{code}]" in said or not code
    assert KEY not in said
    assert not key or key not in said
