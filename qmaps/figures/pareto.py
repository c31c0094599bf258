"""Error against storage, with labels beside the points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from qmaps.figures._declare import Picture, figure
from qmaps.figures._style import SMALL, axes, legend_below, mark, new, require

DISTANCES = (10, 18, 28, 40, 55, 72, 92, 115, 140)
"""Distances from a point to the nearest edge of its label, in points."""
ANGLES = (225, 270, 200, 245, 180, 45, 90, 20, 65, 315, 0)
"""Directions in degrees, the preferred ones first."""
GAP = 2.5
"""Clearance around a label in points."""


def place(
    figure: Figure,
    axis: Axes,
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    avoid: Sequence[tuple[float, float]],
    lines: Sequence[Sequence[tuple[float, float]]] = (),
) -> None:
    """Write each of `texts` near its point (x, y), joined to it by a thin line.

    Labels never overlap one another. They avoid the points `avoid`, and less so the polylines
    `lines`, as far as there is room. A label for which the axes have no room beside the others is
    left out. Call this function last, as it needs the final layout. All coordinates are those of
    the data.
    """
    figure.draw_without_rendering()  # fixes the layout, and with it positions in pixels
    pixels = figure.dpi / 72
    inside = axis.get_window_extent()
    dots = axis.transData.transform(np.asarray(avoid, dtype=float).reshape(-1, 2))
    strokes = _sampled([axis.transData.transform(np.asarray(line)) for line in lines if len(line)])
    drawn: list[Bbox] = []
    for point, text in zip(points, texts, strict=True):
        sample = axis.text(0, 0, text, fontsize=SMALL)
        extent = sample.get_window_extent()
        sample.remove()
        size = extent.width + 2 * GAP * pixels, extent.height + 2 * GAP * pixels
        anchor = axis.transData.transform(point)
        best: tuple[float, Bbox] | None = None
        for preference, box in enumerate(_boxes(anchor, size, pixels)):
            if not _within(box, inside) or any(box.overlaps(neighbour) for neighbour in drawn):
                continue
            cost = preference + 1000.0 * _inside(dots, box) + 4.0 * _inside(strokes, box)
            if best is None or cost < best[0]:
                best = cost, box
        if best is None:
            continue  # no room: a missing label is better than overlapping ones
        box = best[1]
        drawn.append(box)
        centre = (box.x0 + box.x1) / 2 - anchor[0], (box.y0 + box.y1) / 2 - anchor[1]
        note = axis.annotate(
            text,
            point,
            xytext=(centre[0] / pixels, centre[1] / pixels),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=SMALL,
            color="#222222",
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            arrowprops={"arrowstyle": "-", "color": "#777777", "lw": 0.7, "shrinkA": 0},
            zorder=6,
        )
        note.set_in_layout(False)


def _boxes(anchor: NDArray[np.float64], size: tuple[float, float], pixels: float) -> Iterator[Bbox]:
    """Boxes of a size around `anchor`, the preferred ones first."""
    width, height = size
    for distance in DISTANCES:
        for angle in ANGLES:
            x, y = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            x0 = anchor[0] + distance * pixels * x + (x - 1) / 2 * width
            y0 = anchor[1] + distance * pixels * y + (y - 1) / 2 * height
            yield Bbox.from_bounds(x0, y0, width, height)


def _within(box: Bbox, outer: Bbox) -> bool:
    return bool(
        box.x0 >= outer.x0 and box.x1 <= outer.x1 and box.y0 >= outer.y0 and box.y1 <= outer.y1
    )


def _inside(points: NDArray[np.float64], box: Bbox) -> int:
    """Number of points in the box."""
    x, y = points[:, 0], points[:, 1]
    return int(((x > box.x0) & (x < box.x1) & (y > box.y0) & (y < box.y1)).sum())


def _sampled(lines: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Points along polylines, too dense for a label between two."""
    points = [np.empty((0, 2))]
    for line in lines:
        for start, end in pairwise(line):
            steps = 2 + int(np.hypot(*(end - start)) // 6)
            points.append(start + np.linspace(0, 1, steps)[:, None] * (end - start))
    return np.concatenate(points)


COLUMNS = (
    "quantizer",
    "normalizer",
    "map",
    "bits_per_element",
    "error",
    "error_name",
    "on_frontier",
    "is_limit",
)
LIMITS = ((0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)), (0, (1, 2)), (0, (9, 3)))
"""Dashes of the limits."""


@figure(
    Picture(
        "pareto_exp_avg",
        "Error against storage: first moment",
        "All tensors together. The dashed line is the least-squares optimum of its width, which "
        "no other map under the same normalizer can pass.",
        place=60,
    ),
    Picture("pareto_exp_avg_sq", "Error against storage: second moment", "As above.", place=70),
)
def pareto(frame: pd.DataFrame) -> Figure:
    """Every quantizer's error over its bits per element, the frontier, and the limit.

    Each quantizer but Lloyd-Max has a marker that shows its map. The frontier is drawn as steps,
    and its points are named. One dashed line per normalizer shows the error of the fitted Lloyd-Max
    codebook, which no other codebook of its width can beat.

    Args:
        frame: of `qmaps.analyze.pareto`: `quantizer`, `normalizer`, `map` (names),
            `bits_per_element` (bits, scales and codebooks included), `error` (in the unit that
            `error_name` names), `error_name` (label of the axis), `on_frontier` (bool: named),
            `is_limit` (bool: Lloyd-Max, drawn as a line).

    Raises:
        BadValueError: columns or rows are missing.

    Source: not from a paper; it shows the best quantizer for a number of bits.
    """
    require(frame, COLUMNS, "pareto")
    figure = new(10.5, 6.6)
    axis = axes(figure, 1, 1)[0][0]
    is_limit = frame["is_limit"].astype(bool)
    drawn, limits = frame[~is_limit], frame[is_limit]
    for index, (name, rows) in enumerate(drawn.groupby("map", sort=False)):
        axis.scatter(
            rows["bits_per_element"],
            rows["error"],
            s=32,
            label=str(name),
            alpha=0.9,
            edgecolors="white",
            linewidths=0.4,
            zorder=3,
            **mark(index),
        )
    frontier = drawn[drawn["on_frontier"].astype(bool)].sort_values("bits_per_element")
    lines = [_points(frontier)]
    if len(frontier):
        axis.plot(
            frontier["bits_per_element"],
            frontier["error"],
            color="#444444",
            linewidth=1.2,
            drawstyle="steps-post",
            label="Pareto frontier",
            zorder=2,
        )
    for number, (normalizer, rows) in enumerate(limits.groupby("normalizer", sort=False)):
        ordered = rows.sort_values("bits_per_element")
        lines.append(_points(ordered))
        axis.plot(
            ordered["bits_per_element"],
            ordered["error"],
            color="#000000",
            linestyle=LIMITS[number % len(LIMITS)],
            marker="_",
            markersize=5,
            linewidth=0.9,
            label=f"Lloyd-Max limit ({normalizer})",
            zorder=1,
        )
    axis.set_yscale("log")
    axis.margins(x=0.06, y=0.08)
    axis.set_xlabel("bits per element, scales and codebooks included")
    axis.set_ylabel(str(frame["error_name"].iloc[0]))
    legend_below(figure, axis.get_legend_handles_labels()[0], 5)
    names = [str(name) for name in frontier.loc[frontier["error"] > 0, "quantizer"]]
    place(figure, axis, _points(frontier), names, avoid=_points(drawn), lines=lines)
    return figure


def _points(rows: pd.DataFrame) -> list[tuple[float, float]]:
    """The coordinates of these rows."""
    return [
        (float(bits), float(error))
        for bits, error in zip(rows["bits_per_element"], rows["error"], strict=True)
        if error > 0
    ]
