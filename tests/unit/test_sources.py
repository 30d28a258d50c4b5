"""What the controller holds must be readable and whole before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gb10.sources import SourceError, manifest

SUM = "a" * 64


def test_no_source_is_no_error() -> None:
    assert manifest("") is None


def test_whole_sources_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"abc")
    (tmp_path / "manifest.json").write_text(json.dumps({"files": [{"path": "a.tar", "size": 3, "sha256": SUM}]}))
    assert manifest(str(tmp_path)) == {"a.tar": 3}


def test_a_manifest_may_stand_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"files": [{"path": "b", "size": 3, "sha256": SUM}]}))
    assert manifest(str(tmp_path)) == {"b": 3}


@pytest.mark.parametrize(
    "content",
    [
        None,
        "x",
        "{}",
        '{"files": {}}x',
        {"files": [{"path": "a"}]},
        {"files": [{"path": "a", "size": 4, "sha256": SUM}]},
        "[]",
        {"files": []},
        {"files": "x"},
        {"files": [{"path": "a", "size": 3}]},
        '{"files": [{"path": "a", "size": 1e400}]}',
        {"files": [{"path": "../a", "size": 3, "sha256": SUM}]},
    ],
)
def test_a_broken_manifest_is_named(tmp_path: Path, content: Any) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    if content is not None:
        (tmp_path / "manifest.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(SourceError) as caught:
        manifest(str(tmp_path))
    assert caught.value.finding.code == "weights-source-unreadable"
