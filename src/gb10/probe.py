"""The random-read probe of the disk that holds the weights: what to run, and what fio's answer means for a step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from gb10 import data
from gb10.disks import volumes
from gb10.findings import Finding, warning

Document = Mapping[str, Any]


def identity(facts: Document) -> str:
    """What was measured: file system, and the disk it is on. Empty where the weights' file system is unknown."""
    place = (facts.get("weights") or {}).get("filesystem") or {}
    source = str(place.get("source") or "")
    for volume, disk in volumes(facts):
        if f"/dev/{volume['name']}" == source:
            return " ".join(str(part).strip() for part in (place["fstype"], volume.get("uuid"), disk.get("serial")))
    return f"{place.get('fstype')} {source}" if source else ""


def probe_todo(facts: Document) -> dict[str, Any] | None:
    """The probe to run, None where this very disk was measured: ``argv`` of fio, ``identity``, ``remove`` (a file).

    The largest weights file is read where it is large enough; else a file is made on the same file system.
    """
    known, held = data.load("prepared")["probe"], facts.get("storage_probe") or {}
    weights, what = facts.get("weights") or {}, identity(facts)
    if not what or held.get("identity") == what:
        return None
    place, size = weights["filesystem"], int(known["file_bytes"])
    files = [f for f in weights.get("files") or [] if not f.get("symlink") and (f.get("size") or 0) >= size]
    largest = max(files, key=lambda f: int(f["size"]), default=None)
    made = "" if largest else f"{str(place['target']).rstrip('/')}/.gb10-probe"
    if made and (place.get("free_bytes") or 0) < 2 * size:
        return None
    name = made or f"{weights['path'].rstrip('/')}/{largest['path']}"  # type: ignore[index]
    argv = ["fio", "--name=engram", f"--filename={name}", "--rw=randread", f"--bs={known['block_bytes']}", "--direct=1"]
    argv += ["--ioengine=psync", "--thread", f"--numjobs={known['threads']}", "--time_based", "--group_reporting"]
    argv += [f"--runtime={known['seconds']}", "--output-format=json", "--randrepeat=0"]
    argv += [f"--filesize={size}"] if made else ["--readonly"]
    return {"argv": argv, "identity": what, "remove": made, "timeout": int(known["seconds"]) + 120}


def probe_result(output: str, what: str) -> str:
    """What the node keeps of fio's JSON, as JSON text: reads a second, mean and 99th percentile in microseconds.

    Raises ValueError where fio said something else.
    """
    try:
        read = json.loads(output[output.index("{") :])["jobs"][0]["read"]
        mean, p99 = read["lat_ns"]["mean"] / 1000, read["clat_ns"]["percentile"]["99.000000"] / 1000
        result = {"identity": what, "iops": round(read["iops"]), "mean_us": round(mean, 1), "p99_us": round(p99, 1)}
    except (KeyError, IndexError, TypeError, ValueError) as problem:
        raise ValueError(f"fio did not say what it read: {problem}") from None
    return json.dumps({"schema": 1, **result}, sort_keys=True) + "\n"


def step_ms(p99_us: float, ranks: int) -> float:
    """ms the Engram reads of one step take on one rank: rounds of as many reads as there are threads, each as slow as
    its slowest read (the 99th percentile)."""
    known = data.load("prepared")["probe"]
    reads = known["rows_per_token"] * known["reads_per_row"] * known["tokens_per_step"] / max(1, ranks)
    return float(math.ceil(reads / known["threads"]) * p99_us / 1000)


def probe_findings(node: str, facts: Document, ranks: int) -> list[Finding]:
    """A warning where the disk that was measured is too slow for Engram."""
    held, known = facts.get("storage_probe") or {}, data.load("prepared")["probe"]
    if held.get("identity") != identity(facts) or not isinstance(held.get("p99_us"), int | float):
        return []
    taken = step_ms(held["p99_us"], ranks)
    if taken <= known["step_ms"]:
        return []
    message = (
        f"Random reads take {held['p99_us']:.0f} us at the 99th percentile ({held.get('iops')} a second): "
        f"{taken:.1f} ms a step for Engram, {known['step_ms']:g} is what local NVMe takes."
    )
    return [
        warning(
            "engram-disk-slow", message, "Put the weights on the node's own NVMe, or serve with engram: memory.", node
        )
    ]
