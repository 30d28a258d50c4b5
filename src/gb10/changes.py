"""What a task's result says it changed, as text that can be kept: without secrets, of bounded size. Pure."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from gb10.redact import HIDDEN, scrub, scrub_text

# Characters kept of one diff, of one message (a line for each of eight nodes), and bytes of diffs of a whole run.
MOST_DIFF = 4096
MOST_MESSAGE = 2000
MOST_RUN = 1 << 20
# Text looked at of each side: modules give at most 100 kB.
MOST_SIDE = 1 << 20


def changed_items(result: Mapping[str, Any], known: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Per change of a result (of each item of a loop) what is kept of it: ``item``, ``diff``, ``note``."""
    known = tuple(known)
    results = result.get("results")
    if isinstance(results, list) and any(isinstance(one, Mapping) and one.get("changed") for one in results):
        items = [one for one in results if isinstance(one, Mapping) and one.get("changed")]
    else:
        items = [result]
    return [_kept(one, known) for one in items]


def _kept(result: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    if result.get("censored") or result.get("_ansible_no_log"):
        return {"note": "no_log"}
    if result.get("_ansible_item_label", result.get("item")) is not None:
        label = result.get("_ansible_item_label", result.get("item"))
        kept["item"] = bounded(shown(label, known), MOST_MESSAGE)
    text = diff_text(result.get("diff"), known)
    if text:
        kept["diff"] = text
    else:
        note = result.get("cmd") or result.get("msg")
        if note:
            kept["note"] = bounded(shown(note, known), MOST_MESSAGE)
    return kept


def message(result: Mapping[str, Any], known: Iterable[str] = ()) -> str:
    """Why a task failed."""
    if result.get("censored"):
        return "no_log"
    failed = [one for one in result.get("results") or [] if isinstance(one, Mapping) and one.get("failed")]
    said = [str(one.get("msg") or "") for one in failed] or [str(result.get("msg") or "")]
    said += [str(result.get("stderr") or "")] if result.get("stderr") else []
    return bounded(scrub_text("\n".join(filter(None, said)), tuple(known)), MOST_MESSAGE)


def diff_text(diff: Any, known: Iterable[str] = ()) -> str:
    """The unified text of Ansible's ``diff``, bounded; empty where there is none."""
    known = tuple(known)
    parts = [_one(part, known) for part in (diff if isinstance(diff, list) else [diff]) if isinstance(part, Mapping)]
    return bounded("".join(filter(None, parts)), MOST_DIFF)


def _one(part: Mapping[str, Any], known: tuple[str, ...]) -> str:
    if part.get("prepared"):
        return scrub_text(str(part["prepared"]), known)
    header = scrub_text(str(part.get("after_header") or part.get("before_header") or ""), known)
    if any(key in part for key in ("src_larger", "dst_larger", "src_binary", "dst_binary")):
        return f"{header}: too large or binary, no diff\n"
    before, after = part.get("before") or "", part.get("after") or ""
    old, new = (_lines(side, known) for side in (before, after))
    lines = list(difflib.unified_diff(old, new, fromfile=header, tofile=header, n=1))
    if not lines and before != after:
        return f"{header}: {HIDDEN} alone differs\n"
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _lines(side: Any, known: tuple[str, ...]) -> list[str]:
    return shown(side, known)[:MOST_SIDE].splitlines(keepends=True)


def shown(value: Any, known: tuple[str, ...]) -> str:
    """A value as text without secrets."""
    if value is None:
        return ""
    if isinstance(value, str):
        return scrub_text(value, known)
    clean = scrub(value, known)
    if isinstance(clean, list) and all(isinstance(word, str) for word in clean):
        return " ".join(clean)
    return json.dumps(clean, indent=1, sort_keys=True, default=str) + "\n"


def bounded(text: str, most: int) -> str:
    """The text, or its beginning, with the sum of the whole."""
    if len(text) <= most:
        return text
    sum_ = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[:most]}\n... {len(text) - most} characters more, sha256 {sum_}\n"
