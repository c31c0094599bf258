"""Updates under repeated quantization: length, noise, explosions, stalled states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.figures.declare import figure
from qmaps.figures.style import COLOURS, SMALL, axes, legend_below, new, require

NEEDED = (
    *("quantizer", "step_cost", "update_gain", "update_noise", "largest_update"),
    *("stalled_share_first", "stalled_share_second"),
)
LIMITS = (0.0005, 0.03, 0.1)
"""Step costs above which `qmaps.recommend` says ``unproven``, ``caution`` and ``unsafe``."""
LEAST = 1e-4
"""Step cost below which the axis is linear."""
MOMENTS: dict[str, dict[str, Any]] = {
    "first": {"marker": "o", "color": COLOURS[0]},
    "second": {"marker": "D", "color": COLOURS[1]},
}
"""Marker and colour of each moment, by the ending of a measure's column."""


@figure(file="replay/summary.parquet")
def replay(frame: pd.DataFrame) -> Figure:
    """Step cost of each pair of quantizers and its terms, and stalled states.

    Pairs stand in the frame's order, from the top. Step costs of 10 and more or of 0 and less, and
    gains of 1.5 and more, stand at the edge. Lines mark exact updates, and in the first panel the
    step costs above which `qmaps.recommend` calls a pair unproven, caution and unsafe. Missing
    measures are left out: a moment in 32 bits cannot stall, and in a short window no state may
    have moved by a code.

    Args:
        frame: a frame of `qmaps.replay.summarize`, or rows of one parameter of `qmaps.replay.run`:
            `quantizer` (a label), `step_cost`, `update_gain`, `update_noise` (relative to the exact
            update), `largest_update` (in learning rates), `stalled_share_first` and
            `stalled_share_second` (in [0, 1]).

    Raises:
        BadValueError: columns or rows are missing.
    """
    require(frame, NEEDED, "replay")
    figure = new(13, 0.24 * len(frame) + 2.2)
    ((cost, gain, noise, largest, stalled),) = axes(
        figure, 1, 5, sharey=True, width_ratios=(1.8, 1, 1, 1, 1)
    )
    cost.set_yticks(np.arange(len(frame)), [str(name) for name in frame["quantizer"]])
    cost.set_ylim(len(frame) - 0.4, -0.6)
    _points(cost, frame["step_cost"].clip(-LEAST, 10), LIMITS)
    cost.set_xscale("symlog", linthresh=LEAST, linscale=0.2)
    cost.set_xticks([0, 1e-3, 0.01, 0.1, 1, 10], ["≤0", "0.001", "0.01", "0.1", "1", "≥10"])
    cost.set_xlim(-2 * LEAST, 20)
    cost.minorticks_off()
    cost.set_xlabel("step cost")
    for at, word in zip((0, *LIMITS), ("safe", "unproven", "caution", "unsafe"), strict=True):
        cost.annotate(
            word,
            (at, 1),
            xycoords=cost.get_xaxis_transform(),
            xytext=(2, 2),
            textcoords="offset points",
            rotation=45,
            fontsize=SMALL,
            color="#444444",
        )
    _points(gain, frame["update_gain"].clip(0, 1.5), (1,))
    gain.set_xticks([0, 0.5, 1, 1.5], ["≤0", "0.5", "1", "≥1.5"])
    gain.set_xlim(-0.06, 1.56)
    gain.set_xlabel("kept length (update gain)")
    _points(noise, frame["update_noise"])
    noise.set_xscale("symlog", linthresh=1)
    noise.set_xlim(left=-0.05)
    noise.set_xlabel("noise over update")
    _points(largest, frame["largest_update"], (7.27,))
    largest.set_xscale("log")
    largest.set_xlabel("largest update (learning rates)")
    for moment, look in MOMENTS.items():
        _points(stalled, 100 * frame[f"stalled_share_{moment}"], **look)
    stalled.set_xlim(-4, 104)
    stalled.set_xlabel("stalled states (%)")
    handles = [
        Line2D([], [], linestyle="", label=f"{moment} moment", **look)
        for moment, look in MOMENTS.items()
    ]
    legend_below(figure, handles, 2)
    return figure


def _points(axis: Axes, values: pd.Series, lines: Sequence[float] = (), **look: Any) -> None:
    """Finite values as points; lines where something changes."""
    for line in lines:
        axis.axvline(line, color="#777777", linewidth=1)
    shown = values.where(np.isfinite(values))
    points: dict[str, Any] = {
        "marker": "o",
        "color": COLOURS[2],
        "markersize": 5,
        "linestyle": "",
        **look,
    }
    axis.plot(shown, np.arange(len(shown)), **points)
