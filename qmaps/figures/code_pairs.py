"""Heatmaps of use and error over pairs of codes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from qmaps.errors import BadValueError
from qmaps.figures._style import UNUSED, axes, new, require

QUANTITIES = {
    "use": ("use", "share of elements", "cividis"),
    "abs": ("mean_abs_error", "mean |Δu|", "viridis"),
    "rel": ("mean_rel_error", "mean |Δu| / |u|", "magma"),
}
"""Column, title and colour map of each quantity."""

COLUMNS = (
    "quantizer",
    "code_first",
    "code_second",
    "value_first",
    "value_second",
    "size_first",
    "size_second",
    "use",
    "mean_abs_error",
    "mean_rel_error",
)
ENDS = (0.01, 0.995)
"""Quantiles of the cells between which colours span: a handful of collapsed cells, whose error is
millions of times the others', would leave one colour for all the rest."""


def code_pairs(frame: pd.DataFrame, *, quantities: Sequence[str] = ("use", "abs", "rel")) -> Figure:
    """Where pairs of codes are used, and where the Adam update errs.

    A good pair of quantizers has no overlap between regions of high use and of high error.
    One row per pair of quantizers, one column per quantity; logarithmic colours, shared in a
    column, that span all but the outermost cells. Pairs of codes that do not occur are light grey.
    Axes count codes and are labelled by the values that the codes stand for.

    Args:
        frame: of `qmaps.analyze.code_pairs`.
        quantities: "use" (share of elements), "abs" (mean absolute error of
            u = m / (sqrt(v) + eps)), "rel" (mean relative error, a fraction).

    Source: 8-bit optimizers, figure 4.
    """
    require(frame, COLUMNS, "code_pairs")
    unknown = [name for name in quantities if name not in QUANTITIES]
    if unknown or not quantities:
        allowed = ", ".join(map(repr, QUANTITIES))
        raise BadValueError(f"quantities={list(quantities)!r} must be some of {allowed}")
    quantizers = list(frame["quantizer"].unique())
    figure = new(3.5 * len(quantities) + 0.6, 3.3 * len(quantizers) + 0.4)
    grid = axes(figure, len(quantizers), len(quantities))
    for column, quantity in enumerate(quantities):
        name, title, palette = QUANTITIES[quantity]
        norm = LogNorm(*_range(frame[name]), clip=True)
        colours = colormaps[palette].with_extremes(bad=UNUSED)
        for row, quantizer in enumerate(quantizers):
            axis = grid[row][column]
            rows = frame[frame["quantizer"] == quantizer]
            mesh = axis.pcolormesh(
                *_edges(rows), _matrix(rows, name), norm=norm, cmap=colours, rasterized=True
            )
            _label(axis, rows)
            first, _, second = str(quantizer).partition(" + ")
            axis.set_xlabel(f"first moment, {first}", fontsize=9)
            if column == 0:
                axis.set_ylabel(f"second moment, {second}", fontsize=9)
            if row == 0:
                axis.set_title(title)
        figure.colorbar(
            mesh,
            ax=[grid[row][column] for row in range(len(quantizers))],
            shrink=0.85,
            pad=0.02,
            extend="both",
        )
    return figure


def _range(values: pd.Series[float]) -> tuple[float, float]:
    """The ends of the colours for a column."""
    positive = values[values > 0]
    if positive.empty:
        return 0.1, 1.0
    low, high = positive.quantile(list(ENDS))
    return float(low), max(float(high), float(low) * 10)


def _edges(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Cell edges along both axes."""
    first, second = int(rows["size_first"].iloc[0]), int(rows["size_second"].iloc[0])
    return np.arange(first + 1) - 0.5, np.arange(second + 1) - 0.5


def _matrix(rows: pd.DataFrame, name: str) -> np.ma.MaskedArray:
    """The quantity by (second code, first code); what does not occur is masked."""
    shape = int(rows["size_second"].iloc[0]), int(rows["size_first"].iloc[0])
    values = np.full(shape, np.nan)
    values[rows["code_second"].to_numpy(), rows["code_first"].to_numpy()] = rows[name].to_numpy()
    return np.ma.masked_invalid(values)


def _label(axis: Axes, rows: pd.DataFrame) -> None:
    """Tick a few codes by the values that they stand for."""
    axis.grid(visible=False)
    for which, setter in (("first", axis.set_xticks), ("second", axis.set_yticks)):
        codes = rows[[f"code_{which}", f"value_{which}"]].drop_duplicates()
        codes = codes.sort_values(f"code_{which}")
        picks = codes.iloc[np.unique(np.linspace(0, len(codes) - 1, 5).astype(int))]
        labels = [f"{value:.2g}" for value in picks[f"value_{which}"]]
        setter(picks[f"code_{which}"].tolist(), labels)
