"""Error per code of the first moment."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._style import axes, look, new, require

PANELS = (
    ("mean_abs_error", "mean |Δu| (absolute)"),
    ("mean_rel_error", "mean |Δu| / |u| (fraction)"),
    ("use", "use (share of elements)"),
)


def first_code_error(frame: pd.DataFrame) -> Figure:
    """The Adam update's error, and the use, for each code of the first moment.

    Args:
        frame: of `qmaps.analyze.first_code_error`: `quantizer`, `position` (code scaled to
            [-1, 1]), `use`, `mean_abs_error`, `mean_rel_error` (fraction).

    Source: 8-bit optimizers, figure 5.
    """
    require(frame, ("quantizer", "position", *(name for name, _ in PANELS)), "first_code_error")
    figure = new(10.5, 4.0)
    row = axes(figure, 1, len(PANELS))[0]
    for axis, (name, label) in zip(row, PANELS, strict=True):
        for index, (quantizer, rows) in enumerate(frame.groupby("quantizer", sort=False)):
            values = rows[name].where(rows[name] > 0)
            axis.plot(rows["position"], values, label=quantizer, linewidth=1.2, **look(index))
        axis.set_yscale("log")
        axis.set_ylabel(label)
        axis.set_xlabel("code of the first moment, scaled to [-1, 1]")
    handles, labels = row[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(2, len(labels)))
    return figure
