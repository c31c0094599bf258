"""Labels beside points that cover neither one another nor the points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from qmaps.figures._style import SMALL

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
    """Write each of `texts` near its point, joined to it by a thin line.

    Labels never overlap one another. They avoid the points `avoid` and the `lines` as far as
    there is room. A label for which the axes have no room beside the others is left out. Call
    this function last, as it needs the final layout.

    Args:
        figure: the figure that holds `axis`.
        axis: the axes to write into.
        points: the points that the labels name, as (x, y) in data coordinates.
        texts: the labels, one for each point.
        avoid: points, in data coordinates, that labels should not cover.
        lines: polylines, in data coordinates, that labels should not cross; crossing one counts
            less than covering a point.
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
    """Boxes of that size around `anchor`, the preferred ones first."""
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
    """Points along polylines, dense enough that no label slips between two."""
    points = [np.empty((0, 2))]
    for line in lines:
        for start, end in pairwise(line):
            steps = 2 + int(np.hypot(*(end - start)) // 6)
            points.append(start + np.linspace(0, 1, steps)[:, None] * (end - start))
    return np.concatenate(points)
