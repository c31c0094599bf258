"""Error against storage."""

from __future__ import annotations

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
    means = rows[["mse", "mean_square", "bits_per_element"]]
    weighted = means.mul(rows["numel"], axis=0).assign(numel=rows["numel"])
    total = weighted.groupby(rows["quantizer"], sort=False).sum()
    frame = pd.DataFrame(
        {
            "quantizer": total.index,
            "bits_per_element": (total["bits_per_element"] / total["numel"]).to_numpy(),
            "error": (total["mse"] / total["mean_square"]).to_numpy(),
        }
    )
    parts = frame["quantizer"].str.extract(r"^(?P<normalizer>[^/]+)/(?P<map>[^@(]+)")
    frame = frame.join(parts)
    frame["error_name"] = "relative squared error"
    frame["is_limit"] = frame["map"] == LIMIT
    cost, error = frame["bits_per_element"].to_numpy(), frame["error"].to_numpy()
    as_good = (cost <= cost[:, None]) & (error <= error[:, None])
    better = (cost < cost[:, None]) | (error < error[:, None])
    rivals = ~frame["is_limit"].to_numpy()
    frame["on_frontier"] = rivals & ~(as_good & better & rivals).any(axis=1)
    return frame
