"""Speed-up against devices and sub-batch size."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.figures.style import axes, legend_below, look, mark, new, require, styled


@styled
def speedup(frame: pd.DataFrame) -> Figure:
    """Speed-up over devices, each at its best sub-batch, and over sub-batch size on all devices.

    Args:
        frame: of `reproduction.speedup.curves`: `panel` ("GPUs" or "sub-batch"), `quantizer`
            (label), `gpus` (number of devices), `sub_batch` (samples), `speedup` (over one
            device).

    Raises:
        BadValueError: columns or rows are missing.

    Source: 8-bit approximations for parallelism, Tables 1 and 7.
    """
    require(frame, ("panel", "quantizer", "gpus", "sub_batch", "speedup"), "speedup")
    figure = new(9, 4.2)
    left, right = axes(figure, 1, 2)[0]
    handles = []
    for index, (name, rows) in enumerate(frame.groupby("quantizer", sort=False)):
        style = look(index) | mark(index) | {"markersize": 4, "linewidth": 1.2}
        handles.append(Line2D([], [], label=str(name), **style))
        grown = rows[rows["panel"] == "GPUs"].sort_values("gpus")
        left.plot(grown["gpus"], grown["speedup"], **style)
        turned = rows[rows["panel"] == "sub-batch"].sort_values("sub_batch")
        right.plot(turned["sub_batch"], turned["speedup"], **style)
    max_gpus = int(frame["gpus"].max())
    ideal: dict[str, Any] = {"color": "#8C8C8C", "linewidth": 0.9, "linestyle": ":"}
    left.plot([1, max_gpus], [1, max_gpus], **ideal)
    handles.append(Line2D([], [], label="as many times as devices", **ideal))
    for axis, label in ((left, "devices"), (right, f"sub-batch (samples), {max_gpus} devices")):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlabel(label)
        axis.set_ylabel("speed-up over one device")
    left.set_yscale("log", base=2)
    left.yaxis.set_major_formatter("{x:g}")
    right.set_ylim(bottom=0)
    left.set_title("best sub-batch for each")
    right.set_title("all devices")
    legend_below(figure, handles, 4)
    return figure
