"""The checkpoint's manifest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from lab import model


def test_the_manifest_lists_every_file_but_itself_sorted(tmp_path: Path):
    for name in ("model-00002-of-00002.safetensors", "config.json", "sub/a.txt", "manifest.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    model.write_manifest(tmp_path)
    document = json.loads((tmp_path / "manifest.json").read_text())
    assert document["schema"] == 1
    assert [entry["path"] for entry in document["files"]] == [
        "config.json",
        "model-00002-of-00002.safetensors",
        "sub/a.txt",
    ]
    for entry in document["files"]:
        assert entry["size"] == len(entry["path"])
        assert entry["sha256"] == hashlib.sha256(entry["path"].encode()).hexdigest()
