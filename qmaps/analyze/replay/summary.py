"""Summaries of a replay over all parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from qmaps.analyze.replay.recursion import shares
from qmaps.analyze.replay.step_cost import step_cost

SUMMED = (
    *("descent", "kept_descent", "cost", "spent_cost", "shared_cost"),
    *("displacement", "displacement_gap"),
)


def summarize(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per pair of quantizers, over all parameters.

    Args:
        frame: a frame of `qmaps.replay.run`.

    Returns:
        The frame's columns without `step`, `parameter` and `shape`, the least step cost first:

        - `numel`, `descent`, `kept_descent`, `cost`, `spent_cost`, `shared_cost`, `displacement`
          and `displacement_gap` are sums, from which `progress`, `update_gain`, `update_noise` and
          `displacement_error` follow: those of steps of all parameters with the same learning rate,
        - `largest_update` is the largest, and `step_cost` follows from it, `update_gain` and
          `update_noise`,
        - other measures are means over the parameters with a value, weighted by `numel`; each
          `stalled_share` by the number of moved elements, so it is the share over all,
        - `gradients` is ``mixed`` where some were recorded and some simulated.
    """
    records = [_record(str(spec), group) for spec, group in frame.groupby("quantizer", sort=False)]
    return pd.DataFrame(records).sort_values(
        ["step_cost", "update_noise"],
        key=lambda column: column.clip(lower=0),  # longer updates are no advantage
        ignore_index=True,
    )


def _record(spec: str, group: pd.DataFrame) -> dict[str, Any]:
    kinds = group["gradients"].unique()
    record: dict[str, Any] = {
        "quantizer": spec,
        "first": group["first"].iloc[0],
        "second": group["second"].iloc[0],
        "numel": int(group["numel"].sum()),
        "steps": int(group["steps"].max()),
        "gradients": kinds[0] if len(kinds) == 1 else "mixed",
    }
    sums = {name: float(group[name].sum()) for name in SUMMED}
    measures = {**sums, **shares(sums)}
    names = list(group.columns)
    for name in names[names.index("bits_per_element") :]:
        if name in measures:
            record[name] = measures[name]
        elif name == "largest_update":
            record[name] = float(group[name].max())
        elif name == "step_cost":  # after the columns that it needs
            record[name] = step_cost(
                record["update_gain"], record["update_noise"], record["largest_update"]
            )
        else:
            record[name] = _mean(name, group)
    return record


def _mean(name: str, group: pd.DataFrame) -> float:
    """The mean of a measure over the elements with a value; NaN if none has."""
    weight = group["numel"].to_numpy(float)
    if name.startswith("stalled_share"):
        moved = group[name.replace("stalled", "moved")].to_numpy(float)
        weight = weight * np.nan_to_num(moved)
    values = group[name].to_numpy(float)
    measured = ~np.isnan(values) & (weight > 0)
    if not measured.any():
        return math.nan
    return float(np.average(values[measured], weights=weight[measured]))
