"""Files we write on nodes, and the items of a node's record of what was there before (library/gb10_original.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any

Document = Mapping[str, Any]
Item = dict[str, Any]

HEADER = "# Written by gb10-cluster; playbooks/unprepare.yml puts back what was here before.\n"

# Directories no node lacks.
EVERYWHERE = ("/", "/etc", "/etc/systemd", "/etc/systemd/system", "/var", "/var/lib", "/var/cache")


@dataclass(frozen=True)
class File:
    """A file of root's on a node, as it should be."""

    path: str
    content: str
    mode: str = "0644"

    @property
    def sum(self) -> str:
        """sha256 of the content, in hex."""
        return sha256(self.content.encode()).hexdigest()

    def there(self, facts: Document) -> bool:
        """Whether the node has it so, by ``facts.files``; a file nobody looked at is not."""
        held = (facts.get("files") or {}).get(self.path) or {}
        same = held.get("sha256") == self.sum and held.get("mode") == self.mode
        return same and held.get("owner") == held.get("group") == "root"

    def as_task(self) -> Item:
        """What the copy module takes."""
        return {"path": self.path, "content": self.content, "mode": self.mode}


def newer(path: str, unit: str, facts: Document) -> bool:
    """Whether a file was written after the service that reads it started: a run ended before it could restart it."""
    modified = ((facts.get("files") or {}).get(path) or {}).get("modified")
    service = (facts.get("units") or {}).get(unit) or {}
    since = service.get("since")
    return service.get("active") == "active" and bool(modified and since and modified > since)


def to_write(wanted: Iterable[File], facts: Document) -> list[File]:
    """Those the node does not have as they should be."""
    return [file for file in wanted if not file.there(facts)]


def directories(files: Iterable[File], facts: Document) -> list[str]:
    """Directories of these files that the node lacks, outermost first. Each was to be looked at (``with_parents``)."""
    held = facts.get("files") or {}
    wanted = dict.fromkeys(folder for file in files for folder in parents(file.path))
    return [folder for folder in sorted(wanted) if folder in held and not held[folder].get("exists")]


def parents(path: str) -> list[str]:
    """The directories a path lies in, outermost first, without ``/`` and the ones every system has."""
    folders = [str(folder) for folder in PurePosixPath(path).parents][::-1]
    return [folder for folder in folders if folder not in EVERYWHERE]


def with_parents(paths: Iterable[str]) -> list[str]:
    """The paths and the directories they lie in: what the facts are to look at."""
    return sorted({place for path in paths for place in (path, *parents(path))})


def keep_files(files: Iterable[File], folders: Iterable[str]) -> list[Item]:
    """Items of the record for files about to be written and directories about to be made."""
    items = [{"kind": "directory", "name": folder} for folder in folders]
    return items + [{"kind": "file", "name": file.path, "ours": file.sum} for file in files]


def idle(todo: Document) -> bool:
    """Whether a role's todo has nothing to do; ``reach`` is only looked at."""
    return not any(value for key, value in todo.items() if key != "reach")
