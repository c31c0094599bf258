"""The errors of each moment under repeated quantization: bias, noise, amplification."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._declare import figure
from qmaps.figures._style import MOMENTS, legend_of_moments, of_moments, panels, require

MEASURES = ("bias", "noise", "amplification")
NEEDED = ("quantizer", *(f"{name}_{ending}" for name in MEASURES for ending, *_ in MOMENTS))


@figure(file="replay/summary.parquet")
def replay_errors(frame: pd.DataFrame) -> Figure:
    """Errors of the first and the second moment under each pair of quantizers.

    Pairs stand in the frame's order, from the top. The panels show the bias and the noise relative
    to the exact state, and the accumulated error by that of one rounding (amplification; 1 where
    errors do not add up). Non-finite values are left out: a moment in 32 bits has no error to
    amplify.

    Args:
        frame: a frame of `qmaps.replay.summarize`, or rows of one parameter of `qmaps.replay.run`:
            `quantizer` (a label) and, with the endings ``_first`` and ``_second``, `bias`, `noise`
            (both relative to the exact state) and `amplification`.

    Raises:
        BadValueError: columns or rows are missing.
    """
    require(frame, NEEDED, "replay_errors")
    figure, (bias, noise, amplification) = panels(frame, len(MEASURES))
    for axis, name in ((bias, "bias"), (noise, "noise")):
        of_moments(axis, frame, name)
        axis.set_xscale("symlog", linthresh=0.01)
        axis.set_xlim(left=-0.001)
        axis.set_xlabel(f"{name} over state")
    amplification.axvline(1, color="#777777", linewidth=1)
    of_moments(amplification, frame, "amplification")
    amplification.set_xscale("symlog", linthresh=1)
    amplification.set_xlim(left=-0.05)
    amplification.set_xlabel("amplified error")
    legend_of_moments(figure)
    return figure
