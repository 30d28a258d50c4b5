"""The five charts of a run over concurrent users: TTFT, ITL, TPS, latency, throughput; SVG and PNG.

This run is the thick line, with the 95 % interval of its mean from repeats; the run before it is thin, the report's
table dashed, the target dotted.
Small enough that a phone shows them with letters of their own size. The same input gives the
same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from gb10.benchmark_compare import student_t, values_of
from gb10.plots import DPI, STYLE
from gb10.reference import Row, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, OTHER, BEFORE, REFERENCE, TARGET = "#0072B2", "#CC79A7", "#56B4E9", "#555555", "#A04000"


@dataclass(frozen=True)
class Line:
    """A series: the figure of our levels, the report's column, and how it is called."""

    figure: str
    name: str
    reported: Callable[[Row], float | None] | None = None
    reported_name: str = "report"


@dataclass(frozen=True)
class Chart:
    """``target``: which of the SLO's targets is drawn."""

    stem: str
    title: str
    unit: str
    lines: Sequence[Line]
    target: str = ""


CHARTS = (
    Chart("ttft", "Time to first token (TTFT)", "ms", [Line("ttft_ms", "this run", lambda r: r.ttft_ms)], "ttft_ms"),
    Chart(
        "itl",
        "Between tokens (TPOT) and chunks (ITL)",
        "ms",
        [
            Line("tpot_ms", "TPOT, per token", lambda r: r.tpot_ms, "report's ITL, per token"),
            Line("itl_ms", "ITL, per chunk"),
        ],
    ),
    Chart("tps", "Tokens per second of one request (TPS)", "tok/s", [Line("tps", "this run", lambda r: r.tps)], "tps"),
    Chart("latency", "Latency of one request", "s", [Line("latency_s", "this run", lambda r: r.latency_s)]),
    Chart(
        "throughput",
        "Output tokens per second, all requests",
        "tok/s",
        [Line("aggregate_tps", "this run", lambda r: r.aggregate_tps, "report, users / latency")],
    ),
)


def write(run: Mapping[str, Any], before: Mapping[str, Any] | None, place: Path) -> dict[str, Path]:
    """Writes every chart as SVG and PNG into a directory; the SVG of each by its stem."""
    import matplotlib

    found = {}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        for chart in CHARTS:
            found[chart.stem] = place / f"{chart.stem}.svg"
            figure = draw(chart, run, before)
            figure.savefig(found[chart.stem], metadata={"Date": None, "Creator": None})
            figure.savefig(place / f"{chart.stem}.png", dpi=DPI, metadata={"Software": None})
    return found


def draw(chart: Chart, run: Mapping[str, Any], before: Mapping[str, Any] | None) -> Any:
    """One chart as a figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.4), layout="constrained")
    axes = figure.add_subplot()
    levels = [level["c"] for level in run["levels"]]
    rows = {c: row for c, row in table(run["profile"]).items() if c in levels}
    for line, colour in zip(chart.lines, (OURS, OTHER), strict=False):
        if before is not None:
            _series(axes, before, line, {"color": BEFORE if colour == OURS else colour, "linewidth": 1}, levels)
        if line.reported:
            told = {c: line.reported(row) for c, row in rows.items()}
            points = [(levels.index(c), value) for c, value in told.items() if value is not None]
            if points:
                style: Any = {
                    "color": REFERENCE,
                    "markersize": 7,
                    "markerfacecolor": "none",
                    "linewidth": 1,
                    "zorder": 3,
                }
                axes.plot(*zip(*points, strict=True), "s--", label=line.reported_name, **style)
        _series(axes, run, line, {"color": colour, "linewidth": 2.2, "marker": "o"}, levels, told=True)
    target = run["slo"].get(chart.target)
    if target is not None:
        axes.axhline(target, color=TARGET, linestyle=":", label=f"target {target:g} {chart.unit}")
    axes.set_title(f"{chart.title}, {chart.unit}", loc="left", fontsize=10, fontweight="bold")
    axes.set_xticks(range(len(levels)), [str(c) for c in levels])
    axes.set_xlim(-0.35, len(levels) - 0.65)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])  # room for the topmost figure
    axes.set_xlabel("concurrent users")
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def _series(
    axes: Axes, run: Mapping[str, Any], line: Line, style: dict[str, Any], levels: Sequence[int], *, told: bool = False
) -> None:
    """A line with its intervals; ``told``: its values beside its points (the run itself)."""
    points = []
    for level in run["levels"]:
        values = values_of(level, line.figure)
        if level["c"] in levels and values:
            points.append((levels.index(level["c"]), fmean(values), interval(values)))
    if not points:
        return
    x, y, spread = zip(*points, strict=True)
    name = (
        line.name if told else f"run before, {line.name.partition(',')[0]}" if line.name != "this run" else "run before"
    )
    axes.errorbar(x, y, yerr=spread if any(spread) else None, capsize=3, label=name, **style)
    if told:
        for at, value, _ in points:
            below = line.figure == "tpot_ms" and value > 0.15 * max(y)  # clear of the chunks' line, and of the axis
            offset = -12 if below else 6
            axes.annotate(f"{value:.3g}", (at, value), (0, offset), textcoords="offset points", ha="center", fontsize=8)


def interval(values: Sequence[float]) -> float:
    """Half the 95 % interval of the mean of repeats; 0 of a single one."""
    return student_t(len(values) - 1) * stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
