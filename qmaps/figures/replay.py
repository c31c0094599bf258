"""What repeated quantization does to training: progress, stalled states, explosions."""

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
    "progress",
    "stalled_share_first",
    "stalled_share_second",
    "explosion_share",
)
SERIES = (
    ("stalled_share_first", "first moment", "o", COLOURS[0]),
    ("stalled_share_second", "second moment", "D", COLOURS[1]),
)
LEAST = 1e-6
"""Below it the axis of explosions is linear, as most pairs have none."""


@figure(file="replay/summary.parquet")
def replay(frame: pd.DataFrame) -> Figure:
    """Progress, stalled states and explosions of each pair of quantizers, one line per pair.

    Pairs stand in the frame's order, from the top. A vertical line marks the progress of exact
    states. A measure that a pair does not have is left out: a moment in 32 bits cannot stall, and
    in a short window no state may have moved by a code.

    Args:
        frame: a frame of `qmaps.replay.summarize`, or rows of one parameter of `qmaps.replay.run`:
            `quantizer` (a label), `progress` (share of the exact descent), `stalled_share_first`,
            `stalled_share_second` and `explosion_share` (in [0, 1]).

    Raises:
        BadValueError: columns or rows are missing.
    """
    require(frame, NEEDED, "replay")
    figure = new(11, 0.24 * len(frame) + 1.7)
    ((kept, stalled, exploded),) = axes(figure, 1, 3, sharey=True)
    places = np.arange(len(frame))
    colour = COLOURS[2]
    kept.axvline(1, color="#777777", linewidth=1)
    kept.plot(frame["progress"], places, "o", color=colour, markersize=5)
    kept.set_xlabel("progress: kept share of the descent")
    for name, _, marker, tint in SERIES:
        stalled.plot(100 * frame[name], places, marker, color=tint, markersize=5, linestyle="")
    stalled.set_xlim(-4, 104)
    stalled.set_xlabel("stalled states (% of those that moved)")
    _explosions(exploded, 100 * frame["explosion_share"].to_numpy(float), places)
    kept.set_yticks(places, [str(name) for name in frame["quantizer"]])
    kept.set_ylim(len(frame) - 0.4, -0.6)
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=tint, label=label)
        for _, label, marker, tint in SERIES
    ]
    legend_below(figure, handles, 2)
    return figure


def _explosions(axis: Axes, percent: np.ndarray, places: np.ndarray) -> None:
    axis.plot(percent, places, "x", color=COLOURS[1], markersize=6)
    axis.set_xscale("symlog", linthresh=100 * LEAST, linscale=0.5)
    most = np.nanmax(percent, initial=100 * LEAST)
    axis.set_xlim(-50 * LEAST, 3 * most)
    axis.set_xticks([0, *10.0 ** np.arange(-4, np.ceil(np.log10(most)) + 0.5, 2)])
    axis.set_xlabel("exploded updates (%)")
