"""A tensor's histogram at the four stages of quantization."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures.declare import Picture, figure
from qmaps.figures.style import COLOURS, SMALL, axes, new, require

PANELS = {
    "original": "log10 |x|",
    "normalized": "log10 |x / s|",
    "quantized": "log10 |codebook value|",
    "dequantized": "log10 |decoded x|",
}
NOTE = "#B34700"


@figure(
    Picture(
        "histogram_second",
        "A second moment on its way through quantizers",
        "Of the largest matrix, which the title names. After figures 20 to 31 of the 4-bit paper.",
        place=90,
        stacks=True,
    ),
    Picture(
        "histogram_first",
        "A first moment on its way through quantizers",
        "The same matrix.",
        place=100,
        stacks=True,
    ),
)
def histogram(frame: pd.DataFrame, *, stacked: bool = False) -> Figure:
    """Original, normalized, quantized and dequantized magnitudes, one row per quantizer.

    Counts are on a logarithmic scale that is linear between 0 and 1; all panels share it, and
    the panels of a column their abscissa. Exact zeros have no logarithm; their share is written
    into the panel.

    Args:
        frame: of `qmaps.analyze.histogram`: `quantizer`, `panel` ("original", "normalized",
            "quantized" or "dequantized"), `bin_left`, `bin_right` (log10 of the magnitude),
            `count` (elements), `zeros` (elements of the panel equal to 0). The title names the
            tensor if `parameter` and `state` are there.
        stacked: whether panels stand below each other, for a narrow screen.

    Raises:
        BadValueError: columns or rows are missing.

    Source: 4-bit optimizers, figures 20 to 31.
    """
    columns = ("quantizer", "panel", "bin_left", "bin_right", "count", "zeros")
    require(frame, columns, "histogram")
    quantizers = list(frame["quantizer"].unique())
    tall, wide = len(quantizers), len(PANELS)
    figure = new(4.6, 2.0 * tall * wide + 0.6) if stacked else new(11, 2.2 * tall + 0.6)
    if {"parameter", "state"} <= set(frame.columns):
        named = f"{frame['parameter'].iloc[0]}: {frame['state'].iloc[0]}"
        figure.suptitle(named, fontsize=10.5, fontweight="bold", x=0.01, ha="left")
    if stacked:
        places = [row[0] for row in axes(figure, tall * wide, 1, sharey=True)]
        grid = [places[row * wide : (row + 1) * wide] for row in range(tall)]
        for row in grid[1:]:
            for axis, first in zip(row, grid[0], strict=True):
                axis.sharex(first)
    else:
        grid = axes(figure, tall, wide, sharex="col", sharey=True)
    for row, quantizer in zip(grid, quantizers, strict=True):
        for number, (axis, (panel, label)) in enumerate(zip(row, PANELS.items(), strict=True)):
            part = frame[(frame["quantizer"] == quantizer) & (frame["panel"] == panel)]
            if len(part):
                edges = [*part["bin_left"], part["bin_right"].iloc[-1]]
                axis.stairs(part["count"], edges, fill=True, color=COLOURS[number])
                zeros = int(part["zeros"].iloc[0])
                share = zeros / max(1, zeros + int(part["count"].sum()))
                if zeros:
                    axis.set_title(f"{_percent(share)} exactly 0", loc="right", color=NOTE,
                                   fontsize=SMALL)  # fmt: skip
            if stacked:
                name = f"{quantizer}\n{panel}" if number == 0 else panel
                axis.set_title(name, loc="left")
                axis.set_ylabel("elements per bin")
            elif row is grid[0]:
                axis.set_title(panel, loc="left")
            if row is grid[-1] or stacked:
                axis.set_xlabel(label)
        if not stacked:
            row[0].set_ylabel(f"{quantizer}\nelements per bin")
    grid[0][0].set_yscale("symlog", linthresh=1, linscale=0.4)
    grid[0][0].set_ylim(0, 3 * max(1, int(frame["count"].max())))
    return figure


def _percent(share: float) -> str:
    """The share in per cent; a small one is not rounded to 0, nor one short of all to 100."""
    if 0 < share < 0.001:
        return "< 0.1%"
    if 0.999 < share < 1:
        return "> 99.9%"
    return f"{share:.1%}"
