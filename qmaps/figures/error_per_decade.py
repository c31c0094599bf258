"""Errors of second moments by decade below the largest."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from qmaps.figures._style import axes, legend_below, look, mark, new, require, styled

PANELS = (
    ("mean_rel_error", "mean |Δv| / v (fraction)"),
    ("mean_update_error", "mean |Δh| / h, h = 1 / (sqrt(v) + eps)"),
    ("zeros", "elements that decode to 0 (%)"),
)
PERCENT = "zeros"
BEHIND = "#D5D5D5"


@styled
def error_per_decade(frame: pd.DataFrame) -> Figure:
    """How precisely quantizers keep second moments that lie powers of ten below the largest.

    Relative error of the value, that of ``h = 1 / (sqrt(v) + eps)``, and what decodes to 0, one
    line per quantizer; the last panel has the elements of each decade behind it. The first two
    are logarithmic: an error of exactly 0 is not drawn.

    Args:
        frame: of `qmaps.analyze.error_per_decade`: `quantizer`, `decade`, `share` (of the
            elements), `mean_rel_error`, `mean_update_error`, `zeros` (fractions).

    Raises:
        BadValueError: columns or rows are missing.

    Source: 8-bit Adafactor, "Quantization precision".
    """
    columns = ("quantizer", "decade", "share", *(name for name, _ in PANELS))
    require(frame, columns, "error_per_decade")
    figure = new(10.5, 4.2)
    row = axes(figure, 1, len(PANELS))[0]
    deepest = int(frame.loc[frame["share"] > 0, "decade"].max())
    for axis, (name, label) in zip(row, PANELS, strict=True):
        for index, (quantizer, rows) in enumerate(frame.groupby("quantizer", sort=False)):
            part = rows.sort_values("decade")
            values = 100 * part[name] if name == PERCENT else part[name].where(part[name] > 0)
            axis.plot(
                part["decade"],
                values,
                label=str(quantizer),
                linewidth=1.2,
                markersize=4,
                **(look(index) | mark(index)),
            )
        axis.set_ylabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("decades below the largest")
        axis.set_xlim(-0.6, deepest + 0.6)
        if name != PERCENT:
            axis.set_yscale("log")
    elements = frame.drop_duplicates("decade")
    bars = row[-1].bar(elements["decade"], 100 * elements["share"], color=BEHIND, width=0.9)
    bars.set_label("elements of the decade (%)")
    row[-1].set_ylim(-3, 103)
    legend_below(figure, row[-1].get_legend_handles_labels()[0], 4)
    return figure
