"""Error against storage."""

from __future__ import annotations

import numpy as np
import pandas as pd

from qmaps.errors import BadValueError

LIMIT = "lloyd"
"""The map that no other of its width can beat under the same normalizer."""


def pareto(sweep: pd.DataFrame, *, state: str = "exp_avg") -> pd.DataFrame:
    """Relative squared error of one state over bits per element, with the Pareto frontier.

    Args:
        sweep: a frame of `qmaps.sweep.run` with rows for single quantizers.
        state: name of the state to take.

    Returns:
        One row per quantizer: `quantizer`, `normalizer`, `map` (name without width),
        `bits_per_element` (mean over all elements), `error` (sum of squared errors over sum of
        squares, all tensors together), `error_name` (label of the axis), `on_frontier` (bool: no
        other quantizer is at least as good in both bits and error and better in one), `is_limit`
        (bool: a Lloyd-Max map, fitted to the data; it is never on the frontier).

    Raises:
        BadValueError: `sweep` has no rows of `state`.
    """
    rows = sweep[sweep["state"] == state]
    if rows.empty:
        allowed = ", ".join(sorted(map(repr, sweep["state"].unique())))
        raise BadValueError(f"state={state!r} is not in the sweep; allowed are {allowed}")
    weighted = rows.assign(
        noise=rows["mse"] * rows["numel"],
        signal=rows["mean_square"] * rows["numel"],
        bits=rows["bits_per_element"] * rows["numel"],
    )
    total = weighted.groupby("quantizer", sort=False)[["noise", "signal", "bits", "numel"]].sum()
    frame = pd.DataFrame(
        {
            "quantizer": total.index,
            "bits_per_element": (total["bits"] / total["numel"]).to_numpy(),
            "error": (total["noise"] / total["signal"]).to_numpy(),
        }
    )
    parts = frame["quantizer"].str.extract(r"^(?P<normalizer>[^/]+)/(?P<map>[^@(]+)")
    frame = frame.join(parts)
    frame["error_name"] = "relative squared error"
    frame["is_limit"] = frame["map"] == LIMIT
    frame["on_frontier"] = frontier(frame["bits_per_element"], frame["error"], ~frame["is_limit"])
    return frame


def frontier(bits: pd.Series, error: pd.Series, rivals: pd.Series) -> list[bool]:
    """Membership of each quantizer in the Pareto frontier of error over bits.

    Returns:
        For each quantizer, whether it counts and no other that counts is at least as good in both
        bits and error and better in one.
    """
    cost, lost, counts = bits.to_numpy(), error.to_numpy(), rivals.to_numpy()
    return [
        bool(
            counts[i]
            and not np.any(
                counts
                & (cost <= cost[i])
                & (lost <= lost[i])
                & ((cost < cost[i]) | (lost < lost[i]))
            )
        )
        for i in range(len(cost))
    ]
