"""Runs of the benchmark on the controller: a directory each, named by the run, beside the change history.

``run.json`` (the run), ``raw.json`` (the client's per-request times), ``levels.csv``, the charts and the report page.
The ledger has run.json's SHA-256. Written beside its place and renamed: a run is there whole or not at all.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from gb10 import benchmark_plots, plots, report_page
from gb10.benchmark import PERCENTILES, RATES
from gb10.benchmark_run import SCHEMA, Document
from gb10.memory_input import MemoryInput
from gb10.sources import shown

RUN, RAW, LEVELS, PAGE = "run.json", "raw.json", "levels.csv", "report.html"
MEMORY = "memory-budget"
KEYS = ("run", "time", "profile", "deployment", "workload", "client", "slo", "levels", "capacity", "findings")


class NotKept(Exception):
    """A run cannot be written or read; one line of text."""


def folder(root: Path, given: str, cluster: str) -> Path:
    """Where a cluster's runs are: as given, else beside its ledger in the checkout."""
    return Path(given).expanduser() if given else root / "history" / (cluster or "gb10") / "benchmarks"


def load(path: Path) -> Document:
    """A run by its directory or its run.json. Raises NotKept."""
    file = path / RUN if path.is_dir() else path
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as problem:
        raise NotKept(f"{file}: {shown(problem)}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not set(KEYS) <= set(found):
        raise NotKept(f"{file} is no run of the benchmark")
    return found


def previous(runs: Path, run: Mapping[str, Any], named: str = "") -> Document | None:
    """The run to compare with: ``named``, else the newest of the same profile before this one. Raises NotKept."""
    if named:
        return load(runs / named)
    earlier = sorted(path.parent.name for path in runs.glob(f"*/{RUN}") if path.parent.name != run["run"])
    for name in reversed(earlier):
        try:
            found = load(runs / name)
        except NotKept:
            continue  # of another release, or damaged: not what is asked about
        if found["profile"] == run["profile"] and found["run"] < run["run"]:
            return found
    return None


def keep(
    runs: Path,
    run: Document,
    raw: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
    memory: MemoryInput | None = None,
) -> tuple[Path, str]:
    """Writes a run's directory anew; its path, and run.json's SHA-256. Raises NotKept."""
    target, beside = runs / run["run"], runs / f".{run['run']}"
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        text = json.dumps(run, indent=1, sort_keys=True) + "\n"
        (beside / RUN).write_text(text)
        if raw is not None:
            (beside / RAW).write_text(json.dumps(raw, separators=(",", ":")) + "\n")
        if memory is not None:
            plots.write({run["profile"]: memory}, beside)
        render(run, before, beside)
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
    except OSError as problem:
        shutil.rmtree(beside, ignore_errors=True)
        raise NotKept(f"{target}: {shown(problem)}") from None
    return target, sha256(text.encode()).hexdigest()


def render(run: Mapping[str, Any], before: Mapping[str, Any] | None, place: Path) -> Path:
    """CSV, charts and page of a run into a directory; the page's path. Raises OSError."""
    place.mkdir(parents=True, exist_ok=True)
    (place / LEVELS).write_text(levels_csv(run))
    charts = benchmark_plots.write(run, before, place)
    memory = place / f"{MEMORY}.svg"
    page = place / PAGE
    page.write_text(report_page.page(run, before, charts, memory if memory.exists() else None))
    return page


def levels_csv(run: Mapping[str, Any]) -> str:
    """One line a level: counts, rates, and every figure's statistics."""
    whole = ("c", "requests", "completed", "failed", "tokens", "wall_s", "aggregate_tps", "request_rate")
    statistics = ("mean", *(f"p{x}" for x in PERCENTILES))
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow([*whole, *(f"{figure}_{name}" for figure in RATES for name in statistics)])
    for level in run["levels"]:
        rows.writerow(
            [*(level[key] for key in whole), *(level[figure][name] for figure in RATES for name in statistics)]
        )
    return out.getvalue()
