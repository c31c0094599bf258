"""Error per code of the first moment."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._declare import Picture, figure
from qmaps.figures._style import axes, legend_below, look, new, require

PANELS = (
    ("mean_abs_error", "mean |Δu|, u = m / (sqrt(v) + eps)"),
    ("mean_rel_error", "mean |Δu| / |u| (fraction)"),
    ("use", "use (share of elements)"),
)
FEW = 64
"""Maps of at most this many codes get a dot at each."""


@figure(
    Picture(
        "first_code_error",
        "Error per code of the first moment",
        "After figure 5 of the 8-bit paper.",
        place=40,
    ),
)
def first_code_error(frame: pd.DataFrame) -> Figure:
    """The Adam update's error, and the use, for each code of the first moment.

    Three panels with logarithmic ordinates, one line per pair of quantizers. A line breaks at
    codes that do not occur and where the value is 0.

    Args:
        frame: of `qmaps.analyze.first_code_error`: `quantizer`, `position` (code scaled to
            [-1, 1]), `use` (share of elements), `mean_abs_error` (of u = m / (sqrt(v) + eps)),
            `mean_rel_error` (fraction).

    Raises:
        BadValueError: columns or rows are missing.

    Source: 8-bit optimizers, figure 5.
    """
    require(frame, ("quantizer", "position", *(name for name, _ in PANELS)), "first_code_error")
    figure = new(10.5, 4.2)
    row = axes(figure, 1, len(PANELS))[0]
    for axis, (name, label) in zip(row, PANELS, strict=True):
        for index, (quantizer, rows) in enumerate(frame.groupby("quantizer", sort=False)):
            values = rows[name].where(rows[name] > 0)
            axis.plot(
                rows["position"],
                values,
                label=str(quantizer),
                linewidth=1.2,
                marker=".",
                markersize=4 if len(rows) > FEW else 6,
                markevery=_dotted(values),
                **look(index),
            )
        axis.set_yscale("log")
        axis.set_ylabel(label)
        axis.set_xlim(-1.04, 1.04)
        axis.set_xticks([-1, -0.5, 0, 0.5, 1])
        axis.set_xlabel("code, scaled to [-1, 1]")
    row[1].set_xlabel("code of the first moment, scaled to [-1, 1]")
    legend_below(figure, row[0].get_legend_handles_labels()[0], 2)
    return figure


def _dotted(values: pd.Series[float]) -> list[int]:
    """The codes that get a dot: all in a small codebook, else those without a line."""
    there = values.notna().to_numpy()
    if there.size > FEW:
        there = there & ~np.r_[False, there[:-1]] & ~np.r_[there[1:], False]
    return [int(code) for code in np.flatnonzero(there)]
