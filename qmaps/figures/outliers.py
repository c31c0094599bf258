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
    flat = [axis for row in grid for axis in row]
    for axis, name in zip(flat, names, strict=False):
        part = frame[frame["tensor"] == name]
        pivot = part.pivot_table(index="row", columns="col", values="magnitude")
        rows, cols = int(part["rows"].iloc[0]), int(part["cols"].iloc[0])
        # Below the median nothing stands out; a few extremes must not fade the rest.
        top = max(10.0, float(np.quantile(pivot.to_numpy(), 0.999)))
        norm = LogNorm(1.0, top, clip=True)
        mesh = axis.imshow(
            np.maximum(pivot.to_numpy(), 1.0),
            norm=norm,
            cmap="viridis",
            extent=(0, cols, rows, 0),
            aspect="auto",
            interpolation="nearest",
        )
        axis.grid(visible=False)
        axis.set_title(str(name), fontsize=9)
        axis.set_xlabel("column")
        axis.set_ylabel("row")
        figure.colorbar(mesh, ax=axis, label="|x| / median |x|", extend="both")
    hide_unused(grid, len(names))
    return figure
