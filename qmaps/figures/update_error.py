"""Errors of the Adam update of many pairs of quantizers."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._style import COLOURS, axes, new, require

POINTS = (("median", "o", 0), ("mean", "D", 1), ("p99", "|", 2))


def update_error(frame: pd.DataFrame) -> Figure:
    """Median, mean and 99th percentile of absolute and relative error, one line per pair.

    Args:
        frame: of `qmaps.analyze.update_error`: `quantizer` and
            ``{median,mean,p99}_{abs,rel}_error`` (relative: fractions).

    Source: 8-bit optimizers, table 6 and appendix C.
    """
    needed = [f"{name}_{kind}_error" for kind in ("abs", "rel") for name, _, _ in POINTS]
    require(frame, ("quantizer", *needed), "update_error")
    figure = new(11, 0.27 * len(frame) + 1.3)
    left, right = axes(figure, 1, 2, sharey=True)[0]
    places = range(len(frame))[::-1]
    for axis, kind, label in (
        (left, "abs", "|Δu|, u = m / (sqrt(v) + eps)"),
        (right, "rel", "|Δu| / |u| (fraction)"),
    ):
        ends = frame[f"median_{kind}_error"], frame[f"p99_{kind}_error"]
        axis.hlines(places, *ends, color="#BBBBBB", linewidth=1.5)
        for name, marker, colour in POINTS:
            axis.plot(
                frame[f"{name}_{kind}_error"],
                places,
                linestyle="",
                marker=marker,
                markersize=6,
                color=COLOURS[colour],
                label={"p99": "99th percentile"}.get(name, name),
            )
        axis.set_xscale("log")
        axis.set_xlabel(label)
    left.set_yticks(list(places), [str(name) for name in frame["quantizer"]])
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=3)
    return figure
