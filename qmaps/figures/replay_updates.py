"""Quantized updates over many steps: descent, displacement, explosions, zero points."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._declare import figure
from qmaps.figures._style import panels, points, require

NEEDED = (
    "quantizer",
    "progress",
    "displacement_error",
    "explosion_share",
    "zero_point_share",
)


@figure(file="replay/summary.parquet")
def replay_updates(frame: pd.DataFrame) -> Figure:
    """Measures of the updates under each pair of quantizers.

    Pairs stand in the frame's order, from the top. The panels show the share of the exact descent
    along the next gradient (progress; exact is 1), how far from the exact parameters the updates
    lead (displacement error), the share of updates that exact Adam cannot make (explosions), and of
    elements where v became 0 and m did not (zero points). Progress stands at the edge outside -0.5
    to 2, and errors above 100. Non-finite values are left out.

    Args:
        frame: a frame of `qmaps.replay.summarize`, or rows of one parameter of `qmaps.replay.run`:
            `quantizer` (a label), `progress`, `displacement_error`, `explosion_share` and
            `zero_point_share` (both in [0, 1]).

    Raises:
        BadValueError: columns or rows are missing.
    """
    require(frame, NEEDED, "replay_updates")
    figure, (progress, error, explosions, zeros) = panels(frame, 4)
    points(progress, frame["progress"].clip(-0.5, 2), (1,))
    progress.set_xticks([-0.5, 0, 1, 2], ["≤-0.5", "0", "1", "≥2"])
    progress.set_xlim(-0.6, 2.1)
    progress.set_xlabel("kept descent (progress)")
    points(error, frame["displacement_error"].clip(upper=100))
    error.set_xscale("symlog", linthresh=0.01)
    error.set_xlim(-0.001, 130)
    error.set_xticks([0, 0.01, 1, 100], ["0", "0.01", "1", "≥100"])
    error.set_xlabel("displacement error")
    for axis, name, label in (
        (explosions, "explosion_share", "explosions (%)"),
        (zeros, "zero_point_share", "zero points (%)"),
    ):
        points(axis, 100 * frame[name])
        axis.set_xscale("symlog", linthresh=0.01)
        axis.set_xlim(-0.001, 130)
        axis.set_xticks([0, 0.01, 1, 100], ["0", "0.01", "1", "100"])
        axis.set_xlabel(label)
    return figure
