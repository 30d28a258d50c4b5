"""Hugging Face's own tool against a stand-in of the hub on loopback (hub.py): resumed, proved, ended."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkpoints import manifest, tree
from hub import COMMIT, Hub
from modules import run_module
from support import ROOT

from gb10 import weights_hub, weights_manifest
from gb10.relay.problem import Problem
from gb10.weights_files import bring, checked

BIN = Path(sys.executable).parent
SHARD = "model-00001-of-00002.safetensors"
FILES = {
    SHARD: random.Random(1).randbytes(24_000_000),  # the tool writes every 10 MB
    "model-00002-of-00002.safetensors": random.Random(2).randbytes(100_000),
    "config.json": b"{}",
    ".gitattributes": b"x",
}
WANTED = {name: data for name, data in FILES.items() if not name.startswith(".")}
WAIT = 60.0  # s; bounds what would hang, decides nothing


def begin(hub: Hub, folder: Path, token: str = "", lease: float = 60) -> None:
    command = weights_hub.argv(str(BIN / "hf"), "lab/model", COMMIT, folder, sorted(WANTED))
    weights_hub.start(folder, command, weights_hub.environment(folder, hub.endpoint, token), lease)


def ended(folder: Path) -> dict[str, Any]:
    end = time.monotonic() + WAIT
    while (state := weights_hub.status(folder, sorted(WANTED)))["running"]:
        assert time.monotonic() < end, state
        time.sleep(0.1)
    return state


def tool_of(folder: Path) -> int:
    """The process id of the hf tool under the supervisor."""
    state = json.loads((folder / weights_hub.STATE).read_text())
    children = Path(f"/proc/{state['pid']}/task/{state['pid']}/children").read_text().split()
    return int(children[0])


def killed_half_way(hub: Hub, folder: Path) -> int:
    """The tool is killed with 10 MB of the shard on disk; bytes the hub had sent."""
    hub.slow = 0.01
    begin(hub, folder)
    end = time.monotonic() + WAIT
    while weights_hub.status(folder)["have"] < 10_000_000:
        assert time.monotonic() < end, weights_hub.status(folder)
        time.sleep(0.05)
    os.kill(tool_of(folder), signal.SIGKILL)
    assert ended(folder)["code"] == -signal.SIGKILL
    hub.slow = 0
    return hub.sent


def test_a_download_that_was_killed_goes_on_where_it_stood(tmp_path: Path) -> None:
    folder = tmp_path / ".gb10-download"
    with Hub(FILES) as hub:
        before = killed_half_way(hub, folder)
        begin(hub, folder)
        assert ended(folder)["code"] == 0
        assert hub.sent - before < len(FILES[SHARD]) - 9_000_000
        assert [ask for ask in hub.asked if SHARD in ask[1] and ask[2].startswith("bytes=1")]
    bring(folder, tmp_path, checked(manifest(WANTED)), move=True)
    assert {name: data for name, data in tree(tmp_path).items() if not name.startswith(".gb10")} == WANTED


def test_a_shard_of_the_right_size_with_other_bytes_gets_no_name(tmp_path: Path) -> None:
    folder = tmp_path / ".gb10-download"
    bad = bytearray(FILES[SHARD])
    bad[500] ^= 1
    with Hub(FILES, served={SHARD: bytes(bad)}) as hub:
        begin(hub, folder)
        assert ended(folder)["code"] == 0, "the tool looks at the size only"
        with pytest.raises(Problem, match=f"{SHARD} has sha256") as caught:
            bring(folder, tmp_path, checked(manifest(WANTED)), move=True)
        assert caught.value.code == "weights-source-wrong"
        assert not (tmp_path / SHARD).exists()
        hub.served.clear()
        begin(hub, folder)
        assert ended(folder)["code"] == 0
    missing = [entry for entry in checked(manifest(WANTED)) if not (tmp_path / entry[0]).exists()]
    bring(folder, tmp_path, missing, move=True)
    assert (tmp_path / SHARD).read_bytes() == FILES[SHARD]


def test_the_token_is_on_no_command_line_and_its_lack_is_said(tmp_path: Path) -> None:
    with Hub(FILES, token="hf_secret", slow=0.01) as hub:
        begin(hub, tmp_path / "a")
        state = ended(tmp_path / "a")
        assert state["code"] not in (0, None), "although the tool itself believes that all is well"
        assert "config.json did not come: " in state["said"]
        begin(hub, tmp_path / "b", token="hf_secret")
        end = time.monotonic() + WAIT
        while not hub.sent:
            assert time.monotonic() < end, weights_hub.status(tmp_path / "b")
            time.sleep(0.05)
        line = Path(f"/proc/{tool_of(tmp_path / 'b')}/cmdline").read_bytes()
        assert b"download" in line
        assert b"hf_secret" not in line
        assert b"hf_secret" not in (tmp_path / "b" / weights_hub.LOG).read_bytes()
        weights_hub.stop(tmp_path / "b")
        assert not weights_hub.status(tmp_path / "b")["running"]


def test_nobody_looking_ends_it(tmp_path: Path) -> None:
    with Hub(FILES, slow=0.05) as hub:
        begin(hub, tmp_path, lease=1)
        assert ended(tmp_path)["code"] != 0


def test_a_tool_that_is_not_there_is_said(tmp_path: Path) -> None:
    weights_hub.start(tmp_path, ["/nowhere/hf"], {}, 10)
    state = ended(tmp_path)
    assert (state["code"], state["said"]) == (127, "/nowhere/hf: No such file or directory")


# --- the manifest by the hub's metadata -------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """``gb10 weights manifest`` in a process of its own, with a hub of ours and a cache of its own."""

    def run(endpoint: str, *args: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_ETAG_TIMEOUT": "2"}
        return subprocess.run(
            [BIN / "gb10", "weights", "manifest", *args, "-o", tmp_path / "m.json"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_a_manifest_by_metadata_is_that_of_the_files_and_fetches_no_shard(asked: Any, tmp_path: Path) -> None:
    with Hub(FILES) as hub:
        done = asked(hub.endpoint, "lab/model")
    assert done.returncode == 0, done.stderr
    assert COMMIT in done.stdout
    assert json.loads((tmp_path / "m.json").read_text()) == {"schema": 1, "files": manifest(WANTED)}
    assert hub.sent < 10_000


def test_without_the_hub_its_cache_answers_and_else_it_is_said(asked: Any, tmp_path: Path) -> None:
    with Hub(FILES) as hub:
        env = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        subprocess.run([BIN / "hf", "download", "lab/model"], env=env, check=True, capture_output=True, timeout=120)
    done = asked("http://127.0.0.1:9", "lab/model")
    assert done.returncode == 0, done.stderr
    assert "weights-hub-silent" in done.stderr
    assert json.loads((tmp_path / "m.json").read_text())["files"] == manifest(WANTED)
    done = asked("http://127.0.0.1:9", "lab/other")
    assert (done.returncode, done.stderr.count("\n")) == (1, 2)
    assert "error [weights-manifest] lab/other: the hub cannot be reached, and its cache" in done.stderr


def test_a_repository_that_is_not_there_is_no_silent_hub(asked: Any) -> None:
    with Hub(FILES, token="x") as hub:
        done = asked(hub.endpoint, "lab/model")
    assert done.returncode == 1
    assert done.stderr.startswith("error [weights-manifest] lab/model: ")
    assert done.stderr.count("\n") == 1


def test_a_small_file_that_came_otherwise_is_refused(asked: Any) -> None:
    with Hub(FILES, served={"config.json": b"[]"}) as hub:
        done = asked(hub.endpoint, "lab/model")
    assert done.returncode == 1
    assert "config.json did not come as the hub has it" in done.stderr


def test_the_sums_a_download_left_are_believed_only_when_asked(tmp_path: Path) -> None:
    with Hub(FILES) as hub:
        begin(hub, tmp_path)
        assert ended(tmp_path)["code"] == 0
    entries = checked(manifest(WANTED))
    assert weights_manifest.of_directory(tmp_path) == entries
    bad = bytearray(FILES[SHARD])
    bad[500] ^= 1
    (tmp_path / SHARD).write_bytes(bad)
    with pytest.raises(Problem, match=f"{SHARD} has sha256 .* its repository says"):
        weights_manifest.of_directory(tmp_path)
    assert weights_manifest.of_directory(tmp_path, hashing=False) == entries
    (tmp_path / "config.json").write_bytes(b"[]")
    with pytest.raises(Problem, match=r"config\.json is not the file its repository has"):
        weights_manifest.of_directory(tmp_path, hashing=False)


# --- the role's own steps --------------------------------------------------------------------------------------------


def test_the_pin_is_one(tmp_path: Path) -> None:
    """What is proved here is what nodes get."""
    defaults = yaml.safe_load((ROOT / "roles/weights/defaults/main.yml").read_text())
    assert f"huggingface_hub=={defaults['weights_hub_version']}" in (ROOT / "requirements.txt").read_text()
    done = subprocess.run([BIN / "hf", "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == defaults["weights_hub_version"]


def play(tmp_path: Path, hub: Hub, **variables: Any) -> subprocess.CompletedProcess[str]:
    """from_repository.yml on this machine, as the role includes it on the source."""
    given = {
        "weights_path": str(tmp_path / "x"),
        "weights__plan": {"files": manifest(WANTED), "reserve": 0},
        "weights__after": {"route": {"obtain": sorted(WANTED)}},
        "weights_repository": "lab/model",
        "weights_hub_endpoint": hub.endpoint,
        "weights_hub_venv": sys.prefix,
        "ansible_python_interpreter": sys.executable,
    }
    book = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "tasks": [{"ansible.builtin.import_role": {"name": "weights", "tasks_from": "from_repository"}}],
        }
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(book))
    (tmp_path / "vars.json").write_text(json.dumps(given | variables))
    command = [
        BIN / "ansible-playbook",
        "-i",
        "localhost,",
        "-c",
        "local",
        tmp_path / "play.yml",
        "-e",
        f"@{tmp_path}/vars.json",
    ]
    env = os.environ | {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_BECOME_EXE": "",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_the_role_downloads_with_progress_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    with Hub(FILES, token="hf_secret") as hub:
        done = play(tmp_path, hub, weights_hub_token="hf_secret")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert tree(tmp_path / "x") == WANTED
    assert "hf_secret" not in done.stdout + done.stderr


def test_a_download_that_cannot_be_is_said_in_one_line(tmp_path: Path) -> None:
    with Hub(FILES, token="hf_secret") as hub:
        done = play(tmp_path, hub, weights_hub_token="hf_wrong")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "error [weights-download] localhost: the hf tool ended with -1: config.json did not come" in said
    assert "hf_wrong" not in said
    assert tree(tmp_path / "x").keys() <= {n for n in tree(tmp_path / "x") if n.startswith(".gb10-download/")}


def test_a_hub_that_stands_still_ends_the_run_in_time(tmp_path: Path) -> None:
    with Hub(FILES, slow=1000) as hub:
        done = play(tmp_path, hub, weights_hub_stall=5)
    assert done.returncode != 0
    assert "error [weights-download] localhost: nothing came for 5 s at " in done.stderr, done.stdout[-2000:]
    assert not weights_hub.status(tmp_path / "x/.gb10-download")["running"]


def test_the_module_in_check_mode_begins_nothing(tmp_path: Path) -> None:
    run_module("gb10_hub", check=True, folder=str(tmp_path / "x"), program="/nowhere/hf", repository="a/b")
    assert not (tmp_path / "x").exists()
