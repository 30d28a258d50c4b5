"""The memory plan as pictures: what fills a node, and how many requests fit at which length. GiB of one rank.

Both show the reported accounting beside the engine's. The same input gives the same bytes, SVG and PNG: no dates, no
random ids, no settings of the user's matplotlib. Colours are of the Okabe-Ito palette, ordered so that neighbours also
differ in lightness: the pictures can be printed in grey.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gb10.accounting import REPORTED, Accounting
from gb10.memory import MemoryPlan, plan_memory, with_gmu
from gb10.memory_input import MemoryInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FREE = "left to the system"
# Component: colour of its bar, colour of the number in it.
COLOURS = {
    "weights": ("#0072B2", "white"),
    "engram": ("#F0E442", "black"),
    "nccl": ("#D55E00", "black"),
    "autotune-peak": ("#A9DAF5", "black"),
    "profiling-peak": ("#56B4E9", "black"),
    "cuda-graphs": ("#CC79A7", "black"),
    "unexplained": ("white", "black"),
    "KV cache": ("#004D3C", "white"),
    "host-and-context": ("#BBBBBB", "black"),
    FREE: ("#F4F4F4", "black"),
}
OTHER = ("#999999", "black")
HATCH = {"unexplained": "xxx"}
OUTSIDE = "///"
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "gb10",
    "text.parse_math": False,
}
DPI = 110
SHORTEST = 4096
"""Tokens at the left end of the capacity picture."""
POINTS = 41
BOTTOM = 0.4
"""Requests at the lower edge of the capacity picture."""


def write(inputs: Mapping[str, MemoryInput], directory: Path) -> list[Path]:
    """Writes memory-budget and kv-capacity, each .svg and .png, of the profiles by name into ``directory``.

    Raises ValueError when there is no profile, or for input plan_memory does not take.
    """
    if not inputs:
        raise ValueError("there is no profile to draw")
    plans = {name: plan_memory(i) for name, i in inputs.items()}
    directory.mkdir(parents=True, exist_ok=True)
    with _style():
        budget = _budget_figure(plans)
        capacity = _capacity_figure(inputs, plans)
        return [*_save(budget, directory / "memory-budget"), *_save(capacity, directory / "kv-capacity")]


@contextmanager
def _style() -> Iterator[None]:
    """Matplotlib's own defaults with STYLE over them, whatever the user's are."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def _save(figure: Figure, stem: Path) -> list[Path]:
    svg, png = stem.with_suffix(".svg"), stem.with_suffix(".png")
    figure.savefig(svg, metadata={"Date": None, "Creator": None})
    figure.savefig(png, dpi=DPI, metadata={"Software": None})
    return [svg, png]


# --- memory-budget ----------------------------------------------------------------------------------------------------


def _budget_figure(plans: Mapping[str, MemoryPlan]) -> Figure:
    """Two bars a profile, from 0 to the node's memory."""
    from matplotlib.figure import Figure

    bars = [(name, a) for name, plan in plans.items() for a in plan.accountings]
    rows = [3.0 * (n // 2) + 1.25 * (n % 2) for n in range(len(bars))]
    end = max(max(a.total_gib, _spent(a)) for _, a in bars)
    figure = Figure(figsize=(13, 2.2 + 0.7 * rows[-1]), layout="constrained")
    axes = figure.add_subplot()
    drawn: dict[str, None] = {}
    for row, (_, a) in zip(rows, bars, strict=True):
        drawn |= dict.fromkeys(_bar(axes, row, a, end))
    axes.set_yticks(rows, [f"{name}\n{a.name}" for name, a in bars])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(rows[-1] + 0.6, -0.85)
    axes.set_xlim(0, end * 1.002)
    axes.set_xlabel("GiB of one node")
    axes.set_title("What fills a node's memory, as the report adds it up and as vLLM does", loc="left", pad=12)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _budget_legend(figure, list(drawn))
    return figure


def _bar(axes: Axes, row: float, a: Accounting, end: float) -> list[str]:
    """One accounting; returns what is in it."""
    left = taken = 0.0
    names = []
    for name, gib, outside in _segments(a):
        fill, ink = COLOURS.get(name, OTHER)
        hatch = OUTSIDE if outside else HATCH.get(name)
        axes.barh(row, gib, 0.62, left, color=fill, edgecolor="black", linewidth=0.6, hatch=hatch)
        text, middle = f"{gib:.2f}", left + gib / 2
        width = 0.0085 * len(text) * end
        reserve = a.total_gib - a.reserve_gib
        if name == FREE and left + width < reserve:  # clear of the line
            middle = (left + reserve) / 2
        if gib > width:
            box = {"facecolor": fill, "edgecolor": "none", "pad": 1.0}
            axes.text(middle, row, text, color=ink, ha="center", va="center", bbox=box, zorder=4)
        elif gib >= 0.005:  # below the bar, beside the one before
            middle = max(middle, taken + width / 2)
            axes.text(middle, row + 0.34, text, ha="center", va="top", fontsize=8)
            taken = middle + width / 2
        left += gib
        names.append(name)
    if not a.pinned_pool:
        _mark(axes, row, a.budget_gib, f"budget {a.budget_gib:.2f} ", "right")
    _mark(axes, row, a.total_gib, f"node {a.total_gib:.2f}", "right" if a.total_gib > 0.9 * end else "left")
    axes.plot([a.total_gib - a.reserve_gib] * 2, [row - 0.31, row + 0.31], color="black", linestyle=(0, (2, 2)))
    axes.annotate(_verdict(a), (1.01, row), xycoords=("axes fraction", "data"), va="center", annotation_clip=False)
    return names


def _segments(a: Accounting) -> list[tuple[str, float, bool]]:
    """Name, GiB and whether it lies outside the budget, from left to right."""
    inside = [(c.name, c.gib, False) for c in a.components]
    rest = [("unexplained", a.unexplained_gib, False), ("KV cache", a.kv_gib, False)]
    outside = [(c.name, c.gib, True) for c in a.outside]
    segments = [*inside, *rest, *outside, (FREE, a.total_gib - _spent(a), False)]
    return [segment for segment in segments if segment[1] > 0]


def _spent(a: Accounting) -> float:
    """Everything in the node, its free part apart."""
    return a.used_gib + a.unexplained_gib + max(0.0, a.kv_gib) + a.outside_gib


def _mark(axes: Axes, row: float, at: float, text: str, align: str) -> None:
    axes.plot([at, at], [row - 0.45, row + 0.31], color="black", linewidth=2, solid_capstyle="butt")
    axes.text(at, row - 0.47, text, ha=align, va="bottom", fontsize=8)


def _verdict(a: Accounting) -> str:
    """The line beside the bar."""
    if a.kv_bytes <= 0:
        pool = f"{-a.kv_gib:.2f} GiB over the budget, no KV cache"
    else:
        pool = f"KV cache {a.kv_gib:.2f} GiB, {a.tokens:,} tokens"
    held = f"{a.requests:.2f} requests of" if a.serves else "holds no request of"
    short = a.reserve_gib - a.headroom_gib
    below = f"\n{short:.2f} GiB short of the reserve" if short > 0.005 else ""
    return f"{pool}\n{held} {a.max_model_len:,}{below}"


def _budget_legend(figure: Figure, drawn: list[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    order = [*(name for name in COLOURS if name in drawn), *(name for name in drawn if name not in COLOURS)]
    edge: Any = {"edgecolor": "black", "linewidth": 0.6}
    handles: list[Any] = [
        Patch(facecolor=COLOURS.get(name, OTHER)[0], hatch=HATCH.get(name), label=name, **edge) for name in order
    ]
    handles += [
        Patch(facecolor="white", hatch=OUTSIDE, label="outside the budget", **edge),
        Line2D([], [], color="black", linewidth=2, label="budget (GMU x total); node"),
        Line2D([], [], color="black", linestyle=(0, (2, 2)), label="the system's reserve lies right of it"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)


# --- kv-capacity ------------------------------------------------------------------------------------------------------


def _capacity_figure(inputs: Mapping[str, MemoryInput], plans: Mapping[str, MemoryPlan]) -> Figure:
    """A row a profile, a column an accounting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 0.9 + 3.6 * len(inputs)), layout="constrained")
    panels = figure.subplots(len(inputs), 2, squeeze=False)
    for row, (name, i) in zip(panels, inputs.items(), strict=True):
        lengths = _lengths(i)
        curves = [{gmu: _requests(i, a.name, gmu, lengths) for gmu in _gmus(i, a)} for a in plans[name].accountings]
        top = 2.0 * max(i.max_num_seqs, *(max(requests) for both in curves for requests in both.values()))
        for axes, a, held in zip(row, plans[name].accountings, curves, strict=True):
            axes.set_title(f"{name}, {a.name}", loc="left", fontweight="bold", pad=18)
            _axes(axes, lengths, top)
            _panel(axes, i, a, lengths, held)
        row[0].set_ylabel("requests of that length at once")
    for axes in panels[-1]:
        axes.set_xlabel("context length (max_model_len), tokens")
    figure.suptitle(
        "How many requests of full length the KV cache holds, by context length and gpu_memory_utilization (GMU)",
        x=0.01,
        ha="left",
    )
    return figure


def _axes(axes: Axes, lengths: list[int], top: float) -> None:
    """Lengths and requests, both logarithmic; where not even one request fits is grey."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(lengths[0], lengths[-1])
    axes.set_ylim(BOTTOM, top)
    ticks = [1 << n for n in range(lengths[0].bit_length() - 1, 25, 2) if lengths[0] <= 1 << n <= lengths[-1]]
    axes.set_xticks(ticks, [f"{tick >> 20}M" if tick >> 20 else f"{tick >> 10}k" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(color="#DDDDDD", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.axhspan(BOTTOM, 1, color="#EEEEEE", zorder=0)
    axes.text(lengths[0], 0.97, " below 1 it does not start", va="top", color="#555555", fontsize=8)


def _panel(axes: Axes, i: MemoryInput, a: Accounting, lengths: list[int], curves: Mapping[float, list[float]]) -> None:
    """The curves of one accounting, by GMU."""
    floor, ceiling = a.gmu_floor(), a.gmu_ceiling
    axes.text(0, 1.02, _room_text(a), transform=axes.transAxes, va="bottom")
    if not a.pinned_pool and floor <= ceiling:
        axes.fill_between(lengths, curves[floor], curves[ceiling], color="#D9E8F2", linewidth=0)
    ends = []
    for gmu, requests in curves.items():
        planned = gmu == i.gpu_memory_utilization
        style = "solid" if planned else "dashed" if gmu in (floor, ceiling) else "dotted"
        colour, width = ("#0072B2", 2.2) if planned else ("#444444", 1.0)
        axes.plot(lengths, requests, color=colour, linestyle=style, linewidth=width)
        ends.append((requests[-1], _gmu_label(gmu, i, a), colour))
    axes.axhline(a.max_num_seqs, color="#D55E00", linewidth=1.2, linestyle=(0, (6, 2)))
    axes.text(lengths[0], a.max_num_seqs, f" max_num_seqs {a.max_num_seqs}", va="bottom", color="#A04000")
    _label_ends(axes, ends, lengths[-1])
    _planned(axes, a)


def _planned(axes: Axes, a: Accounting) -> None:
    """The point of the plan; at the lower edge where the pool is empty."""
    at = max(a.requests, BOTTOM * 1.1)
    axes.plot([a.max_model_len], [at], "o", markersize=8, color="#0072B2", markeredgecolor="black", clip_on=False)
    axes.annotate(
        f"planned: {a.requests:.2f} requests of {a.max_model_len:,}",
        (a.max_model_len, at),
        xytext=(-8, -14 if at > 1 else 8),
        textcoords="offset points",
        ha="right",
        fontweight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8},
    )


def _gmus(i: MemoryInput, a: Accounting) -> list[float]:
    """The planned GMU, floor, ceiling and two between; only the planned one where the pool is pinned."""
    if a.pinned_pool:
        return [i.gpu_memory_utilization]
    floor, ceiling = a.gmu_floor(), a.gmu_ceiling
    planned = i.gpu_memory_utilization
    thirds = [round(floor + (ceiling - floor) * third, 2) for third in (1 / 3, 2 / 3)]
    between = [gmu for gmu in thirds if floor < gmu < ceiling and abs(gmu - planned) > 0.015]
    return sorted({planned, *between, *(gmu for gmu in (floor, ceiling) if 0 < gmu <= 1)})


def _requests(i: MemoryInput, accounting: str, gmu: float, lengths: list[int]) -> list[float]:
    """Requests of each length at once, as if it were max_model_len."""
    found = []
    for length in lengths:
        plan = plan_memory(replace(with_gmu(i, gmu), max_model_len=length))
        found.append((plan.reported if accounting == REPORTED else plan.engine).requests)
    return found


def _lengths(i: MemoryInput) -> list[int]:
    """From SHORTEST to the longest the model takes in equal ratios, the planned one among them."""
    longest = max(4, i.max_model_len, i.model_limit or 4 * i.max_model_len)
    shortest = min(SHORTEST, longest // 4)
    ratio = longest / shortest
    return sorted({*(round(shortest * ratio ** (n / (POINTS - 1))) for n in range(POINTS)), i.max_model_len})


def _gmu_label(gmu: float, i: MemoryInput, a: Accounting) -> str:
    if a.pinned_pool:
        return f"pool {a.kv_gib:.2f} GiB"
    roles = {i.gpu_memory_utilization: "planned", a.gmu_floor(): "floor", a.gmu_ceiling: "ceiling"}
    return f"{gmu:g} {roles.get(gmu, '')}".rstrip()


def _label_ends(axes: Axes, ends: list[tuple[float, str, str]], longest: int) -> None:
    """Each curve's GMU at its right end, apart enough to be read."""
    bottom, top = axes.get_ylim()
    apart = (top / bottom) ** 0.06
    lowest = bottom
    for requests, text, colour in sorted(ends):
        at = max(requests, lowest)
        axes.annotate(text, (longest, at), xytext=(6, 0), textcoords="offset points", va="center", color=colour)
        lowest = at * apart


def _room_text(a: Accounting) -> str:
    if a.pinned_pool:
        return "the pool is given in bytes; GMU plays no part"
    floor, ceiling = a.gmu_floor(), a.gmu_ceiling
    if floor <= ceiling:
        return f"shaded: GMU {floor:g} to {ceiling:g} serves the plan and keeps the reserve"
    least = f"{floor:g}" if floor <= 1 else "more than 1"
    return f"no room: the plan needs GMU {least}, the reserve allows {ceiling:g}"
