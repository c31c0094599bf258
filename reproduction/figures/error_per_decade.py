"""Errors of second moments by decade below the largest."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from qmaps.figures.style import axes, legend_below, look, mark, new, require, styled

PANELS = (
    ("mean_rel_error", "mean |Δv| / v (fraction)"),
    ("mean_update_error", "mean |Δh| / h, h = 1 / (sqrt(v) + eps)"),
    ("zeros", "elements that decode to 0 (%)"),
)
PERCENT = "zeros"
BEHIND = "#D5D5D5"


@styled
def error_per_decade(frame: pd.DataFrame) -> Figure:
    """Errors of quantizers on second moments, by powers of ten below the largest.

    Three panels show the relative error of the value, the relative error of
    ``h = 1 / (sqrt(v) + eps)``, and the share of elements decoded to 0, with one line per
    quantizer. Bars in the last panel show the share of elements in each decade. The first two
    panels have logarithmic ordinates: an error of exactly 0 is not drawn.

    Args:
        frame: of `reproduction.analyses.error_per_decade`: `quantizer`, `decade` (powers of ten
            below the largest, from 0), `share` (fraction of the elements in the decade),
            `mean_rel_error` (fraction of v), `mean_update_error` (fraction of h), `zeros`
            (fraction decoded to 0).

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
