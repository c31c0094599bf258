"""Where the large elements of moment matrices lie."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from qmaps.figures._style import axes, hide_unused, new, require

COLUMNS_PER_ROW = 3


def outliers(frame: pd.DataFrame) -> Figure:
    """Magnitudes of matrices over their median; stripes are outlier rows or columns.

    Args:
        frame: of `qmaps.analyze.outliers`: `tensor`, `row`, `col`, `rows`, `cols`,
            `magnitude` (multiples of the median).

    Source: 4-bit optimizers, figures 1 and 2.
    """
    columns = ("tensor", "row", "col", "rows", "cols", "magnitude")
    require(frame, columns, "outliers")
    names = list(frame["tensor"].unique())
    wide = min(COLUMNS_PER_ROW, len(names))
    tall = -(-len(names) // wide)
    figure = new(3.5 * wide + 0.7, 3.1 * tall)
    grid = axes(figure, tall, wide)
    # Below the median nothing stands out; the scale spans what does.
    norm = LogNorm(1.0, max(10.0, float(frame["magnitude"].max())), clip=True)
    flat = [axis for row in grid for axis in row]
    for axis, name in zip(flat, names, strict=False):
        part = frame[frame["tensor"] == name]
        pivot = part.pivot_table(index="row", columns="col", values="magnitude")
        rows, cols = int(part["rows"].iloc[0]), int(part["cols"].iloc[0])
        mesh = axis.imshow(
            np.maximum(pivot.to_numpy(), norm.vmin or 1.0),
            norm=norm,
            cmap="viridis",
            extent=(0, cols, rows, 0),
            aspect="auto",
            interpolation="nearest",
        )
        axis.grid(visible=False)
        axis.set_title(str(name))
        axis.set_xlabel("column")
        axis.set_ylabel("row")
    hide_unused(grid, len(names))
    figure.colorbar(mesh, ax=flat, label="|x| / median |x|", shrink=0.8, extend="min")
    return figure
