"""A tensor's histogram at the four stages of quantization."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._style import COLOURS, axes, new, require

PANELS = {
    "original": "log10 |x|",
    "normalized": "log10 |x / s|",
    "quantized": "log10 |codebook value|",
    "dequantized": "log10 |decoded x|",
}


def histogram(frame: pd.DataFrame) -> Figure:
    """Original, normalized, quantized and dequantized magnitudes, one row per quantizer.

    Exact zeros have no logarithm; their share is written into the panel.

    Args:
        frame: of `qmaps.analyze.histogram`: `quantizer`, `panel`, `bin_left`, `bin_right`
            (log10), `count`, `zeros`.

    Source: 4-bit optimizers, figures 20 to 31.
    """
    columns = ("quantizer", "panel", "bin_left", "bin_right", "count", "zeros")
    require(frame, columns, "histogram")
    quantizers = list(frame["quantizer"].unique())
    figure = new(11, 2.5 * len(quantizers) + 0.2)
    grid = axes(figure, len(quantizers), len(PANELS), sharey="row")
    for row, quantizer in zip(grid, quantizers, strict=True):
        tallest = frame.loc[frame["quantizer"] == quantizer, "count"].max()
        row[0].set_ylim(0, 3 * max(1, int(tallest)))
        for number, (axis, (panel, label)) in enumerate(zip(row, PANELS.items(), strict=True)):
            part = frame[(frame["quantizer"] == quantizer) & (frame["panel"] == panel)]
            edges = [*part["bin_left"], *part["bin_right"].iloc[-1:]]
            axis.stairs(part["count"], edges, fill=True, color=COLOURS[number % 4])
            axis.set_yscale("symlog", linthresh=1)
            axis.set_xlabel(label)
            zeros = int(part["zeros"].iloc[0]) if len(part) else 0
            share = zeros / max(1, zeros + int(part["count"].sum()))
            axis.set_title(panel, loc="left")
            if zeros:
                axis.set_title(f"{share:.1%} exactly 0", loc="right", color=COLOURS[1], fontsize=9)
        row[0].set_ylabel(f"{quantizer}\nelements per bin")
    return figure
