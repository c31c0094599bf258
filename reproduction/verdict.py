"""Comparison of measured numbers with those of a paper."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd

from reproduction.claim import TOLERANCE, Claim, Verdict

COLUMNS = (
    "what", "quantity", "unit", "paper", "paper_spread", "printed", "proxy", "ours",
    "ours_spread", "verdict",
)  # fmt: skip
"""`printed` is how the paper prints its number, empty if it is not known. `proxy` names what
ours is where it is not the paper's quantity; see `reproduction.proxy_metrics`."""


Measured = Mapping[tuple[str, str], float | tuple[float, float]]
"""A number, or a number and its spread, by row and by quantity."""


def beside(
    paper: pd.DataFrame,
    ours: Measured,
    *,
    tolerance: float = TOLERANCE,
    unordered: Collection[str] = (),
) -> pd.DataFrame:
    """The paper's numbers with ours and a verdict on each.

    Each row is a `Claim` about a number. Ours is reproduced only together with its spread: if that
    reaches beyond the tolerance, the row cannot tell, as a wide spread is no evidence. Numbers are
    ordered within their quantity, without those in doubt; equal numbers of the paper may have any
    order.

    Args:
        paper: `what`, `quantity`, `unit`, `paper`, `paper_spread`; a row per number. Optional
            are `doubt` (the paper itself contradicts the number), `rounding` (half a unit of the
            last digit printed), `printed`, and `undecided` (too few runs were counted).
        ours: numbers by `what` and `quantity`; additional ones follow the paper's.
        tolerance: tolerance as a fraction.
        unordered: quantities with an order by definition, which is no evidence.

    Returns:
        The columns of `COLUMNS`; missing numbers are NaN.
    """
    printed = list(zip(paper["what"], paper["quantity"], strict=True))
    units = dict(zip(paper["quantity"], paper["unit"], strict=True))
    extra = pd.DataFrame(
        [
            {"what": what, "quantity": quantity, "unit": units.get(quantity, "")}
            for what, quantity in ours
            if (what, quantity) not in set(printed)
        ],
        columns=["what", "quantity", "unit"],
    )
    rows = pd.concat([paper, extra], ignore_index=True) if len(extra) else paper.copy()
    rows["proxy"] = ""
    for column, nothing in (
        ("doubt", ""),
        ("printed", ""),
        ("rounding", 0.0),
        ("undecided", False),
    ):
        rows[column] = rows[column].fillna(nothing) if column in rows else nothing
    pairs = [_pair(ours.get(key)) for key in zip(rows["what"], rows["quantity"], strict=True)]
    rows["ours"] = [value for value, _ in pairs]
    rows["ours_spread"] = [spread for _, spread in pairs]
    rows["verdict"] = ""
    for quantity, group in rows.groupby("quantity", sort=False):
        peers = group.iloc[:0] if quantity in unordered else group
        for index in group.index:
            rows.loc[index, "verdict"] = _verdict(group.loc[index], peers, tolerance).value
    return rows[list(COLUMNS)]


def _pair(value: float | tuple[float, float] | None) -> tuple[float, float]:
    if value is None:
        return float("nan"), float("nan")
    return value if isinstance(value, tuple) else (value, float("nan"))


def _verdict(row: pd.Series[Any], peers: pd.DataFrame, tolerance: float) -> Verdict:
    """The verdict on a number; undecided where only its mean is reproduced, not all of its ±."""
    verdict, spread = _claim(row, peers, tolerance).verdict, row["ours_spread"]
    if verdict is not Verdict.REPRODUCED or pd.isna(spread):
        return verdict
    far = row.copy()
    far["ours"] += math.copysign(spread, row["ours"] - row["paper"])
    held = _claim(far, peers, tolerance).verdict is Verdict.REPRODUCED
    return verdict if held else Verdict.UNDECIDED


def _claim(row: pd.Series[Any], group: pd.DataFrame, tolerance: float) -> Claim:
    ranked = group[(group.index != row.name) & (group["doubt"] == "")]
    ranked = ranked.dropna(subset=["paper", "ours"])
    apart = ranked[ranked["paper"] != row["paper"]]
    below = (apart["paper"] < row["paper"]) & (apart["ours"] < row["ours"])
    above = (apart["paper"] > row["paper"]) & (apart["ours"] > row["ours"])
    return Claim(
        row["what"],
        (below | above).tolist(),
        paper=row["paper"],
        spread=0.0 if pd.isna(row["paper_spread"]) else float(row["paper_spread"]),
        rounding=row["rounding"],
        doubt=row["doubt"],
        undecided=bool(row["undecided"]),
        ours=row["ours"],
        tolerance=tolerance,
    )
