"""Updates under repeated quantization: length, noise, explosions, stalled states."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._declare import figure
from qmaps.figures._style import legend_of_moments, name_gain, of_moments, panels, points, require

NEEDED = (
    *("quantizer", "step_cost", "update_gain", "update_noise", "largest_update"),
    *("stalled_share_first", "stalled_share_second"),
)
LIMITS = (0.03, 0.1)
"""Step costs above which `qmaps.recommend` says ``caution`` and ``unsafe``."""


@figure(file="replay/summary.parquet")
def replay(frame: pd.DataFrame) -> Figure:
    """Step cost of each pair of quantizers and its terms, and stalled states.

    Pairs stand in the frame's order, from the top. Step costs of 10 and more, and gains of 1.5 and
    more, stand at the edge. Lines mark exact updates, and in the first panel
    the step costs up to which `qmaps.recommend` calls a pair safe, and above which unsafe. Missing
    measures are left out: a moment in 32 bits cannot stall, and in a short
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
    figure, (cost, gain, noise, largest, stalled) = panels(frame, 5)
    points(cost, frame["step_cost"].clip(-0.1, 10), LIMITS)
    cost.set_xscale("symlog", linthresh=LIMITS[1])
    cost.set_xticks([-0.1, 0, 0.1, 1, 10], ["-0.1", "0", "0.1", "1", "≥10"])
    cost.set_xlim(-0.14, 16)
    cost.set_xlabel("step cost")
    points(gain, frame["update_gain"].clip(0, 1.5), (1,))
    name_gain(gain, "kept length (update gain)")
    points(noise, frame["update_noise"])
    noise.set_xscale("symlog", linthresh=1)
    noise.set_xlim(left=-0.05)
    noise.set_xlabel("noise over update")
    points(largest, frame["largest_update"], (7.27,))
    largest.set_xscale("log")
    largest.set_xlabel("largest update (learning rates)")
    of_moments(stalled, frame, "stalled_share", 100)
    stalled.set_xlim(-4, 104)
    stalled.set_xlabel("stalled states (%)")
    legend_of_moments(figure)
    return figure
