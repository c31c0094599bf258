"""Summaries of a sweep over all tensors."""

from __future__ import annotations

import pandas as pd


def summarize(sweep: pd.DataFrame, *, state: str = "update") -> pd.DataFrame:
    """One row per quantizer: means over tensors weighted by size, and the largest maxima.

    The weighted mean of an absolute or squared error is its mean over all elements. A relative
    error is averaged over elements other than 0 alone, and a tensor without such counts as an
    error of 0; its weighted mean is exact where no tensor holds zeros. Quantiles (median, p99,
    p999) of several tensors cannot be computed from those of each;
    `qmaps.analyze.update_error` measures them over all elements together. Columns whose names begin
    with ``max_`` are maxima.

    Args:
        sweep: a frame of `qmaps.sweep.run`.
        state: ``update`` for pairs, or a state's name.

    Returns:
        `quantizer`, `first`, `second`, `numel`, and the sweep's columns of floating-point numbers
        other than quantiles, in the order of the sweep. The frame is empty if the sweep has no
        rows of `state`.
    """
    rows = sweep[sweep["state"] == state]
    joined = ("quantile", "median", "p99", "p999")
    columns = [
        name
        for name in rows.columns
        if pd.api.types.is_float_dtype(rows[name])
        and rows[name].notna().any()
        and not name.startswith(joined)
    ]
    records = []
    for spec, group in rows.groupby("quantizer", sort=False):
        weight = group["numel"] / group["numel"].sum()
        record = {"quantizer": spec, "first": group["first"].iloc[0]}
        record |= {"second": group["second"].iloc[0], "numel": int(group["numel"].sum())}
        for name in columns:
            values = group[name]
            if name.endswith(("_low", "_high")):  # of a tensor that is measured in full: its mean
                values = values.fillna(group[name.rpartition("_")[0]])
            record[name] = (
                values.max() if name.startswith("max_") else float((values * weight).sum())
            )
        records.append(record)
    return pd.DataFrame(records)
