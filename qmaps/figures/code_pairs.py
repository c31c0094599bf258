"""Heatmaps of use and error over pairs of codes."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from qmaps.figures.declare import Picture, figure
from qmaps.figures.style import SMALL, UNUSED, axes, colour_bar, extent, new, require

QUANTITIES = (
    ("use", "use", "share of all elements (fraction)", "cividis"),
    ("mean_abs_error", "absolute error", "mean |Δu|, u = m / (sqrt(v) + eps)", "viridis"),
    ("mean_rel_error", "relative error", "mean |Δu| / |u| (fraction)", "magma"),
)
"""Column, title, label with unit, and colour map of each quantity."""

COLUMNS = (
    "quantizer",
    *(f"{name}_{which}" for name in ("code", "value", "size") for which in ("first", "second")),
    *(name for name, *_ in QUANTITIES),
)
ENDS = (0.01, 0.995)
"""Quantiles of a quantizer's cells between which colours span: a handful of collapsed cells, whose
error is millions of times the others', would leave one colour for the rest. (The smallest use is a
single element, and never left out.)"""
TICKS = 5


@figure(
    Picture(
        "code_pairs",
        "Use and error over pairs of codes",
        "A good pair of quantizers has no overlap between what is used much and what errs much. "
        "Grey: never used. After figure 4 of the 8-bit paper.",
        place=30,
        stacks=True,
    )
)
def code_pairs(frame: pd.DataFrame, *, stacked: bool = False) -> Figure:
    """Use of each pair of codes, and error of the Adam update for it.

    With a good pair of quantizers, regions of high use and regions of high error do not overlap.
    There is one row per pair of quantizers and one column per quantity. Colours are logarithmic
    and shared in a column. They span the values of all cells but each quantizer's extreme ones.
    Unused pairs of codes are light grey. Axes count codes; ticks give the values of a few codes.

    Args:
        frame: of `qmaps.analyze.code_pairs`: `quantizer` (``first + second``), `code_first`,
            `code_second`, `value_first`, `value_second` (codebook values), `size_first`,
            `size_second` (codebook sizes), `use` (share of all elements), `mean_abs_error` (of
            u = m / (sqrt(v) + eps)), `mean_rel_error` (fraction; may be NaN). One row per pair of
            codes in use.
        stacked: whether panels stand below each other, for a narrow screen.

    Raises:
        BadValueError: columns or rows are missing.

    Source: 8-bit optimizers, figure 4.
    """
    require(frame, COLUMNS, "code_pairs")
    quantizers = list(frame["quantizer"].unique())
    tall, wide = len(quantizers), len(QUANTITIES)
    if stacked:
        figure = new(4.4, (3.3 * tall + 1.1) * wide)
        places = [row[0] for row in axes(figure, tall * wide, 1)]
        grid = [places[row::tall] for row in range(tall)]
    else:
        figure = new(3.6 * wide + 0.6, 3.3 * tall + 1.1)
        grid = axes(figure, tall, wide)
    for column, (name, title, unit, palette) in enumerate(QUANTITIES):
        low, high = _range(frame, name, (0.0 if name == "use" else ENDS[0], ENDS[1]))
        norm = LogNorm(low, high, clip=True)
        colours = colormaps[palette].with_extremes(bad=UNUSED)
        for row, quantizer in enumerate(quantizers):
            axis = grid[row][column]
            rows = frame[frame["quantizer"] == quantizer]
            cells = _matrix(rows, name)
            edges = [np.arange(size + 1) - 0.5 for size in reversed(cells.shape)]
            mesh = axis.pcolormesh(*edges, cells, norm=norm, cmap=colours, rasterized=True)
            _label(axis, rows)
            first, _, second = str(quantizer).partition(" + ")
            axis.set_xlabel(f"first moment, {first}", fontsize=SMALL)
            if column == 0 or stacked:
                axis.set_ylabel(f"second moment, {second or first}", fontsize=SMALL)
            if row == 0:
                axis.set_title(title)
        colour_bar(
            figure,
            mesh,
            ax=[grid[row][column] for row in range(len(quantizers))],
            location="bottom",
            shrink=0.95,
            aspect=28,
            pad=0.02,
            label=unit,
            extend=extent(bool((frame[name] < low).any()), bool((frame[name] > high).any())),
        )
    told = (
        "Axes count codes; ticks give the values of some.",
        "Light grey: pairs that do not occur.",
    )
    figure.supxlabel(
        ("\n" if stacked else " ").join(told),
        fontsize=SMALL,
        color="#444444",
    )
    return figure


def _range(frame: pd.DataFrame, name: str, ends: tuple[float, float]) -> tuple[float, float]:
    """The ends of the colours: wide enough for every quantizer's cells between its quantiles."""
    positive = frame[frame[name] > 0]
    if positive.empty:
        return 0.1, 1.0
    # By quantizer, so that a quantizer with 65536 cells does not outweigh one with 256.
    cells = positive.groupby("quantizer", sort=False)[name]
    low, high = float(cells.quantile(ends[0]).min()), float(cells.quantile(ends[1]).max())
    return (low, high) if high >= 2 * low else (low / 2, high * 2)


def _matrix(rows: pd.DataFrame, name: str) -> np.ma.MaskedArray:
    """The quantity by (second code, first code); unused pairs are masked."""
    shape = int(rows["size_second"].iloc[0]), int(rows["size_first"].iloc[0])
    values = np.full(shape, np.nan)
    values[rows["code_second"].to_numpy(), rows["code_first"].to_numpy()] = rows[name].to_numpy()
    return np.ma.masked_invalid(values)


def _label(axis: Axes, rows: pd.DataFrame) -> None:
    """Tick a few codes by their values."""
    axis.grid(visible=False)
    for which, setter in (("first", axis.set_xticks), ("second", axis.set_yticks)):
        values = rows.drop_duplicates(f"code_{which}").set_index(f"code_{which}")[f"value_{which}"]
        picks = _picks(values.sort_index(), int(rows[f"size_{which}"].iloc[0]))
        setter(picks, [_short(float(values[code])) for code in picks])


def _picks(values: pd.Series[float], size: int) -> list[int]:
    """Codes to tick: the outermost, the one nearest 0, and used ones about evenly between."""
    codes = values.index.to_numpy()
    centre = int(codes[values.abs().to_numpy().argmin()])
    even = [int(codes[np.abs(codes - at).argmin()]) for at in np.linspace(0, size - 1, TICKS)]
    picks: list[int] = []
    for code in (int(codes[0]), int(codes[-1]), centre, *even):
        if all(abs(code - pick) >= 0.17 * size for pick in picks):
            picks.append(code)
    return sorted(picks)


def _short(value: float) -> str:
    """The value in few characters: 7.7e-06 is 8e-6."""
    if value == 0 or abs(value) >= 0.01:
        return f"{value:.2g}"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"
