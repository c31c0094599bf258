"""What repeated quantization does to updates: length, noise, explosions, stalled states."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.figures._declare import figure
from qmaps.figures._style import COLOURS, axes, legend_below, new, require

NEEDED = (
    "quantizer",
    "step_cost",
    "update_gain",
    "update_noise",
    "largest_update",
    "stalled_share_first",
    "stalled_share_second",
)
SERIES = (
    ("stalled_share_first", "first moment", "o", COLOURS[0]),
    ("stalled_share_second", "second moment", "D", COLOURS[1]),
)
LIMITS = (0.03, 0.1)
"""Step costs where verdicts of `qmaps.recommend` change."""


@figure(file="replay/summary.parquet")
def replay(frame: pd.DataFrame) -> Figure:
    """Step cost of each pair of quantizers and what it is made of, and stalled states.

    Pairs stand in the frame's order, from the top. Step costs of 10 and more, and gains of 1.5 and
    more, stand at the edge. Lines mark exact updates, and in the first panel
    the step costs up to which `qmaps.recommend` calls a pair safe, and above which unsafe. A
    measure that a pair does not have is left out: a moment in 32 bits cannot stall, and in a short
    window no state may have moved by a code.

    Args:
        frame: a frame of `qmaps.replay.summarize`, or rows of one parameter of `qmaps.replay.run`:
            `quantizer` (a label), `step_cost`, `update_gain`, `update_noise` (relative to the exact
            update), `largest_update` (in learning rates), `stalled_share_first` and
            `stalled_share_second` (in [0, 1]).

    Raises:
        BadValueError: columns or rows are missing.
    """
    require(frame, NEEDED, "replay")
    figure = new(13, 0.24 * len(frame) + 1.7)
    ((cost, gain, noise, largest, stalled),) = axes(figure, 1, 5, sharey=True)
    places = np.arange(len(frame))
    _points(cost, frame["step_cost"].clip(-0.1, 10), places, LIMITS)
    cost.set_xscale("symlog", linthresh=LIMITS[1])
    cost.set_xticks([-0.1, 0, 0.1, 1, 10], ["-0.1", "0", "0.1", "1", "≥10"])
    cost.set_xlim(-0.14, 16)
    cost.set_xlabel("step cost")
    _points(gain, frame["update_gain"].clip(0, 1.5), places, (1,))
    gain.set_xticks([0, 0.5, 1, 1.5], ["≤0", "0.5", "1", "≥1.5"])
    gain.set_xlim(-0.06, 1.56)
    gain.set_xlabel("kept length (update gain)")
    _points(noise, frame["update_noise"], places, ())
    noise.set_xscale("symlog", linthresh=1)
    noise.set_xlim(left=-0.05)
    noise.set_xlabel("noise over update")
    _points(largest, frame["largest_update"], places, (7.27,))
    largest.set_xscale("log")
    largest.set_xlabel("largest update (learning rates)")
    for name, _, marker, tint in SERIES:
        stalled.plot(100 * frame[name], places, marker, color=tint, markersize=5, linestyle="")
    stalled.set_xlim(-4, 104)
    stalled.set_xlabel("stalled states (%)")
    cost.set_yticks(places, [str(name) for name in frame["quantizer"]])
    cost.set_ylim(len(frame) - 0.4, -0.6)
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=tint, label=label)
        for _, label, marker, tint in SERIES
    ]
    legend_below(figure, handles, 2)
    return figure


def _points(axis: Axes, values: pd.Series, places: np.ndarray, lines: tuple[float, ...]) -> None:
    """Finite values as points; lines where something changes."""
    for line in lines:
        axis.axvline(line, color="#777777", linewidth=1)
    shown = values.to_numpy(float)
    shown = np.where(np.isfinite(shown), shown, np.nan)
    axis.plot(shown, places, "o", color=COLOURS[2], markersize=5)
