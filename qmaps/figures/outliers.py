"""Positions of the large elements of moment matrices."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from qmaps.figures.declare import Picture, figure
from qmaps.figures.style import SMALL, axes, colour_bar, extent, hide_unused, new, require

COLUMNS_PER_ROW = 3
LONGEST = 36
"""Characters of a title's line that a panel has room for."""


@figure(
    Picture(
        "outliers",
        "Outlier patterns of the moments",
        "Horizontal and vertical stripes are outlier rows and columns, which per-tensor and "
        "block-wise scales cannot separate. After figures 1 and 2 of the 4-bit paper.",
        place=80,
        stacks=True,
    )
)
def outliers(frame: pd.DataFrame, *, one_scale: bool = False, stacked: bool = False) -> Figure:
    """Magnitudes of matrices over their median; stripes are outlier rows or columns.

    There is one panel per matrix. Its colours are logarithmic and start at the median, as nothing
    below it stands out. They end where the largest thousandth of the cells begins, so that a few
    cells do not fade the rest, but at ten times the median at least.

    Args:
        frame: of `qmaps.analyze.outliers`: `tensor` (title), `row`, `col` (index of the cell's
            first element), `rows`, `cols` (elements of the matrix along each axis), `magnitude`
            (largest |x| of the cell in multiples of the matrix's median |x|).
        one_scale: whether all panels have the colours of the panel that reaches furthest, for
            panels to compare with each other.
        stacked: whether panels stand below each other, for a narrow screen.

    Raises:
        BadValueError: columns or rows are missing.

    Source: 4-bit optimizers, figures 1 and 2.
    """
    columns = ("tensor", "row", "col", "rows", "cols", "magnitude")
    require(frame, columns, "outliers")
    names = list(frame["tensor"].unique())
    wide = 1 if stacked else min(COLUMNS_PER_ROW, len(names))
    tall = -(-len(names) // wide)
    figure = new(3.5 * wide + 0.7, 3.3 * tall)
    grid = axes(figure, tall, wide)
    colours = colormaps["viridis"]
    colours = colours.with_extremes(bad=colours(0.0))  # 0 has no logarithm
    finite = frame[np.isfinite(frame["magnitude"])]
    tops = finite.groupby("tensor")["magnitude"].quantile(0.999).clip(lower=10.0)
    tops = tops.reindex(names, fill_value=10.0)
    if one_scale:
        tops[:] = tops.max()
    for number, name in enumerate(names):
        axis = grid[number // wide][number % wide]
        part = frame[frame["tensor"] == name]
        cells = part.pivot(index="row", columns="col", values="magnitude").to_numpy()
        rows, cols = int(part["rows"].iloc[0]), int(part["cols"].iloc[0])
        top = tops[name]
        mesh = axis.imshow(
            cells,
            norm=LogNorm(1.0, top, clip=True),
            cmap=colours,
            extent=(0, cols, rows, 0),
            aspect="auto",
            interpolation="nearest",
        )
        axis.grid(visible=False)
        axis.locator_params(nbins=5)
        axis.set_title(_title(str(name)), fontsize=SMALL + 0.5)
        axis.set_xlabel("column")
        if number % wide == 0:
            axis.set_ylabel("row")
        beyond = bool(np.nanmin(cells) < 1), bool(np.nanmax(cells) > top)
        bar = colour_bar(figure, mesh, ax=axis, extend=extent(*beyond), aspect=25, pad=0.02)
        if number % wide == wide - 1 or number == len(names) - 1:
            bar.set_label("|x| / median |x|")
    hide_unused(grid, len(names))
    return figure


def _title(name: str) -> str:
    """The name, broken after dots and colons where it is too long for one line."""
    lines = [""]
    for piece in re.findall(r"[^.:]*(?:\.|: ?|$)", name):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > LONGEST:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)
