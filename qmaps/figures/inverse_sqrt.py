"""The zero-point problem as a histogram."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._style import COLOURS, axes, new, require


def inverse_sqrt(frame: pd.DataFrame) -> Figure:
    """``h(v) = 1 / (sqrt(v) + 1e-6)`` of the second moment, in 32 bits and quantized.

    A second moment that decodes to 0 lands at 10^6, where its step is a million times the
    first moment.

    Args:
        frame: of `qmaps.analyze.inverse_sqrt`: `quantizer`, `bin_left`, `bin_right` (log10 h),
            `share`, `zero_share`.

    Source: 4-bit optimizers, figure 3.
    """
    columns = ("quantizer", "bin_left", "bin_right", "share", "zero_share")
    require(frame, columns, "inverse_sqrt")
    quantizers = list(frame["quantizer"].unique())
    figure = new(8.5, 1.45 * len(quantizers) + 0.6)
    grid = axes(figure, len(quantizers), 1, sharex=True, sharey=True)
    for index, ((axis,), quantizer) in enumerate(zip(grid, quantizers, strict=True)):
        part = frame[frame["quantizer"] == quantizer]
        edges = [*part["bin_left"], *part["bin_right"].iloc[-1:]]
        axis.stairs(part["share"], edges, fill=True, color=COLOURS[0 if index == 0 else 2])
        axis.set_yscale("log")
        axis.set_title(str(quantizer), loc="left")
        zero = float(part["zero_share"].iloc[0])
        if zero > 0:
            axis.set_title(
                f"{zero:.1%} of the non-zero values decode to 0 →", loc="right", color=COLOURS[1]
            )
            last = part.iloc[-1]
            axis.stairs(
                [last["share"]], [last["bin_left"], last["bin_right"]], fill=True, color=COLOURS[1]
            )
    figure.supylabel("share of elements", fontsize=10)
    grid[-1][0].set_xlabel("log10 h(v), h(v) = 1 / (sqrt(v) + 1e-6)")
    return figure
