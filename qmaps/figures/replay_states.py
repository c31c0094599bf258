"""Moments under repeated quantization, and their errors."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._declare import figure
from qmaps.figures._style import MOMENTS, legend_of_moments, name_gain, of_moments, panels, require

MEASURES = ("gain", "lag", "bias", "amplification")
NEEDED = ("quantizer", *(f"{name}_{ending}" for name in MEASURES for ending, *_ in MOMENTS))


@figure(file="replay/summary.parquet")
def replay_states(frame: pd.DataFrame) -> Figure:
    """Gain, lag and errors of both moments under each pair of quantizers.

    Pairs stand in the frame's order, from the top. The panels show the part of the exact state that
    the quantized one has (gain; exact is 1), the mean age in steps of the gradients that it
    averages (lag), the bias relative to the exact state, and the accumulated error by that of one
    rounding (amplification; 1 where errors do not add up). Gains below 0 and above 1.5
    stand at the edge. Non-finite values are left out: a moment in 32 bits has no error to amplify.

    Args:
        frame: a frame of `qmaps.replay.summarize`, or rows of one parameter of `qmaps.replay.run`:
            `quantizer` (a label) and, with the endings ``_first`` and ``_second``, `gain`, `lag`
            (steps), `bias` (relative to the exact state) and `amplification`.

    Raises:
        BadValueError: columns or rows are missing.
    """
    require(frame, NEEDED, "replay_states")
    figure, (gain, *others) = panels(frame, len(MEASURES))
    clipped = {name: frame[name].clip(0, 1.5) for name in ("gain_first", "gain_second")}
    gain.axvline(1, color="#777777", linewidth=1)
    of_moments(gain, frame.assign(**clipped), "gain")
    name_gain(gain, "kept state (gain)")
    labels = ("mean age (steps)", "bias over state", "amplified error")
    linear_up_to = (10, 0.01, 1)
    for axis, name, label, end in zip(others, MEASURES[1:], labels, linear_up_to, strict=True):
        of_moments(axis, frame, name)
        axis.set_xscale("symlog", linthresh=end)
        axis.set_xlim(left=-end / 10)
        axis.set_xlabel(label)
    others[-1].axvline(1, color="#777777", linewidth=1)
    legend_of_moments(figure)
    return figure
