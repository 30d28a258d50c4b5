"""The matrix of measured links as a picture: one square a rail and kind, rows send. Printed in grey it still reads: the
numbers stand in the cells, and those that do not pass have a frame.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gb10 import bandwidth
from gb10.fabric_matrix import bad_cells

STYLE: dict[str, Any] = {"font.family": "DejaVu Sans", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "gb10"}
SUFFIXES = (".png", ".svg")


def write(document: Mapping[str, Any], label: str, path: Path) -> None:
    """Writes the picture; the path's ending decides whether as PNG or SVG. The same document gives the same bytes.

    Raises:
        ValueError: another ending, or nothing to draw.
    """
    import matplotlib
    from matplotlib.figure import Figure

    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in {' or '.join(SUFFIXES)}")
    squares = [(rail, kind, matrix) for rail, kinds in document["rails"].items() for kind, matrix in kinds.items()]
    if not squares:
        raise ValueError("there is no matrix to draw")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        columns = min(2, len(squares))
        rows = -(-len(squares) // columns)
        side = 1.6 + 0.62 * len(document["nodes"])
        figure = Figure(figsize=(side * 1.2 * columns, side * rows + 0.4), layout="constrained")
        figure.suptitle(f"Links between nodes, {label}")
        for number, (rail, kind, matrix) in enumerate(squares):
            _square(figure.add_subplot(rows, columns, number + 1), document, rail, kind, matrix)
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, dpi=110, metadata=metadata)


def _square(axes: Any, document: Mapping[str, Any], rail: str, kind: str, matrix: list[list[float | None]]) -> None:
    from matplotlib.patches import Rectangle

    names = document["nodes"]
    values = [[math.nan if value is None else value for value in row] for row in matrix]
    told = [value for row in values for value in row if not math.isnan(value)]
    top = max(told, default=1.0)
    image = axes.imshow(values, cmap="cividis" if kind == "gbps" else "cividis_r", vmin=0, vmax=top)
    axes.set_facecolor("#DDDDDD")
    bad = set(bad_cells(document, matrix, kind))
    for i, sender in enumerate(names):
        for j, receiver in enumerate(names):
            value = values[i][j]
            if i != j:
                light = not math.isnan(value) and (value > top / 2) == (kind == "gbps")
                colour = "black" if light or math.isnan(value) else "white"
                shown = "x" if math.isnan(value) else f"{value:.3g}"
                axes.text(j, i, shown, ha="center", va="center", color=colour)
            if (sender, receiver) in bad:
                axes.add_patch(
                    Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, edgecolor="#D55E00", linewidth=2)
                )
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("receives")
    axes.set_ylabel("sends")
    axes.set_title(f"rail {rail}, {bandwidth.UNITS[kind]}")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
