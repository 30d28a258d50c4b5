"""What the engine reports once it has booted, beside what the plan said; and what a next plan can learn of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gb10.calibration import measurement_key
from gb10.findings import Finding, warning

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Line:
    """One figure, ``None`` where the plan or the engine has none. GiB are of one rank."""

    what: str
    planned: float | None
    measured: float | None
    node: str = ""
    """Whose figure it is: of several the one that decides."""

    @property
    def apart(self) -> float | None:
        """Percent the engine's figure differs from the plan's."""
        if self.planned is None or self.measured is None:
            return None
        if self.planned == 0:
            return 0.0 if self.measured == 0 else 100.0
        return round((self.measured - self.planned) / self.planned * 100, 1)

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {**asdict(self), "apart_percent": self.apart}


# What is compared: name, the engine's figure, of several ranks the smallest or the largest, the likely reason.
COMPARED = (
    ("KV tokens", "kv_tokens", min, "The pool is what the other figures leave: see which of them is apart."),
    ("requests of full length", "requests", min, "It follows the KV tokens."),
    ("weights GiB", "weights_gib", max, "The checkpoint is another than the plan's model, or Engram lies elsewhere."),
    ("CUDA graphs GiB", "graphs_gib", max, "Other capture sizes or another graph mode than the plan assumes."),
    (
        "KV pool GiB",
        "kv_gib",
        min,
        "Something else took memory before, or the profiling peak is another.",
    ),
)
# A rank logs two decimals: differences below are rounding.
ROUNDING_GIB = 0.02


def planned_figures(memory: Mapping[str, Any]) -> dict[str, float]:
    """The plan's figures (``memory`` of the plan document) under the names of ``COMPARED``."""
    engine = memory.get("engine") or {}
    parts: dict[str, float] = {}
    for component in engine.get("components") or []:
        parts[component["name"]] = parts.get(component["name"], 0.0) + float(component["gib"])
    found = {"kv_tokens": engine.get("kv_tokens"), "requests": engine.get("requests"), "kv_gib": engine.get("kv_gib")}
    found |= {"weights_gib": parts.get("weights"), "graphs_gib": parts.get("cuda-graphs")}
    return {name: float(value) for name, value in found.items() if value is not None}


def compare(memory: Mapping[str, Any], ranks: Mapping[str, Figures]) -> list[Line]:
    """Plan against engine. ``ranks``: per node what its rank's log said; what nobody said is left out."""
    planned = planned_figures(memory)
    lines = []
    for what, name, of, _reason in COMPARED:
        said = {node: figures[name] for node, figures in ranks.items() if name in figures}
        if said:
            node = of(said, key=lambda one: said[one])
            lines.append(Line(what, planned.get(name), said[node], node if len(said) > 1 else ""))
    return lines


def findings(lines: list[Line], limit: float) -> list[Finding]:
    """A warning for every figure that is more than ``limit`` percent from the plan's, with the likely reason."""
    reasons = {what: reason for what, _name, _of, reason in COMPARED}
    found = []
    for line in lines:
        if line.apart is None or abs(line.apart) <= limit or line.planned is None or line.measured is None:
            continue
        if "GiB" in line.what and abs(line.measured - line.planned) <= ROUNDING_GIB:
            continue
        numbers = f"{number(line.measured)} where the plan has {number(line.planned)} ({line.apart:+.1f} %)"
        remedy = f"{reasons[line.what]} With calibration_file the next plan has the engine's own figures."
        found.append(warning("engine-apart", f"{line.what}: the engine reports {numbers}.", remedy, line.node))
    return found


def number(value: float | None) -> str:
    """As printed."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 100 else f"{value:,.2f}"


# --- calibration ---

SCHEMA = 1
# Components of the engine's accounting a boot measures, and the pool that gives the profiling peak as what is left.
LEARNT = ("weights", "cuda-graphs", "profiling-peak")


def key(memory: Mapping[str, Any]) -> str:
    """What a measurement is of: figures of one model, degree and place of Engram say nothing of another."""
    return measurement_key(memory.get("model"), memory.get("tensor_parallel"), memory.get("engram"))


def learn(memory: Mapping[str, Any], ranks: Mapping[str, Figures], run: str) -> dict[str, Any] | None:
    """What the next plan of the same model can take from this boot: components in GiB, or None.

    Nothing is learnt where the pool was given in bytes or there is no GPU: the engine then measures nothing. The
    profiling peak is what the budget has left beside weights, Engram, graphs and the pool of the smallest rank, so that
    the next plan of the same settings has the pool that was measured.
    """
    if memory.get("kv_cache_memory_bytes") is not None or memory.get("accelerator") != "gpu":
        return None
    engine = memory.get("engine") or {}
    said = {name: [f[name] for f in ranks.values() if name in f] for name in ("weights_gib", "graphs_gib", "kv_gib")}
    parts = {c["name"]: float(c["gib"]) for c in engine.get("components") or []}
    if not said["weights_gib"] or not said["kv_gib"] or "budget_gib" not in engine:
        return None
    engram = parts.get("engram", 0.0)
    found = {"weights": round(max(said["weights_gib"]), 4)}
    graphs = max(said["graphs_gib"]) if said["graphs_gib"] else parts.get("cuda-graphs", 0.0)
    if said["graphs_gib"]:
        found["cuda-graphs"] = round(graphs, 4)
    left = float(engine["budget_gib"]) - found["weights"] - engram - graphs - min(said["kv_gib"])
    found["profiling-peak"] = round(left, 4)
    if min(found.values()) < 0:
        return None
    return {"components": found, "run": run, "max_model_len": memory.get("max_model_len")}
