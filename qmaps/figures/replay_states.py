"""Moments under repeated quantization."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._declare import figure
from qmaps.figures._style import MOMENTS, legend_of_moments, name_gain, of_moments, panels, require

MEASURES = ("gain", "lag")
NEEDED = ("quantizer", *(f"{name}_{ending}" for name in MEASURES for ending, *_ in MOMENTS))


@figure(file="replay/summary.parquet")
def replay_states(frame: pd.DataFrame) -> Figure:
    """Gain and lag of both moments under each pair of quantizers.

    Pairs stand in the frame's order, from the top. The panels show the part of the exact state that
    the quantized one has (gain; exact is 1), and the mean age in steps of the gradients that it
    averages (lag). Gains below 0 and above 1.5 stand at the edge. Non-finite values are left out.

    Args:
        frame: a frame of `qmaps.replay.summarize`, or rows of one parameter of `qmaps.replay.run`:
            `quantizer` (a label) and, with the endings ``_first`` and ``_second``, `gain` and
            `lag` (steps).

    Raises:
        BadValueError: columns or rows are missing.
    """
    require(frame, NEEDED, "replay_states")
    figure, (gain, lag) = panels(frame, len(MEASURES))
    clipped = {name: frame[name].clip(0, 1.5) for name in ("gain_first", "gain_second")}
    gain.axvline(1, color="#777777", linewidth=1)
    of_moments(gain, frame.assign(**clipped), "gain")
    name_gain(gain, "kept state (gain)")
    of_moments(lag, frame, "lag")
    lag.set_xscale("symlog", linthresh=10)
    lag.set_xlabel("mean age (steps)")
    legend_of_moments(figure)
    return figure
