"""How numbers of ours compare with those of a paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import pandas as pd

KEYS = ("what", "quantity")
COLUMNS = (
    "what", "quantity", "unit", "paper", "paper_spread", "stand_in", "ours", "ours_spread",
    "verdict",
)  # fmt: skip
"""`stand_in` names what ours is where it is not the paper's quantity; see `stand_ins`."""
TOLERANCE = 0.1
"""Share of the paper's number by which ours may differ and still be called reproduced."""


class Verdict(StrEnum):
    """What came of a number, a statement, or a whole figure or table."""

    REPRODUCED = "reproduced"
    ORDERING = "same ordering"
    DIFFERS = "differs"
    NOT_COMPARED = "not compared"


Measured = Mapping[tuple[str, str], float | tuple[float, float]]
"""A number, or a number and its spread, by what it is of and by quantity."""


def beside(paper: pd.DataFrame, ours: Measured, *, tolerance: float = TOLERANCE) -> pd.DataFrame:
    """The paper's numbers with ours and a verdict on each.

    A number is reproduced if it differs from the paper's by at most `tolerance` of that plus the
    paper's spread (a wide spread of ours proves nothing). Else it has the same ordering if it lies
    to every other number of its quantity as the paper's does (what is equal in the paper may lie
    either way), and at least one lies apart. Else it differs. What was not measured, or what the
    paper does not give, is not compared.

    Args:
        paper: `what`, `quantity`, `unit`, `paper`, `paper_spread`; a row per number.
        ours: numbers by `what` and `quantity`; others than the paper's are added after them.
        tolerance: a fraction.

    Returns:
        The columns of `COLUMNS`; numbers that are missing are NaN.
    """
    known = list(zip(paper["what"], paper["quantity"], strict=True))
    units = dict(zip(paper["quantity"], paper["unit"], strict=True))
    extra = pd.DataFrame(
        [
            {"what": what, "quantity": quantity, "unit": units.get(quantity, "")}
            for what, quantity in ours
            if (what, quantity) not in set(known)
        ],
        columns=["what", "quantity", "unit"],
    )
    rows = pd.concat([paper, extra], ignore_index=True) if len(extra) else paper.copy()
    rows["stand_in"] = ""
    pairs = [_pair(ours.get(key)) for key in zip(rows["what"], rows["quantity"], strict=True)]
    rows["ours"] = [value for value, _ in pairs]
    rows["ours_spread"] = [spread for _, spread in pairs]
    rows["verdict"] = ""
    for _, group in rows.groupby("quantity", sort=False):
        for index in group.index:
            rows.loc[index, "verdict"] = _verdict(group, index, tolerance).value
    return rows[list(COLUMNS)]


def _pair(given: float | tuple[float, float] | None) -> tuple[float, float]:
    if given is None:
        return float("nan"), float("nan")
    return given if isinstance(given, tuple) else (given, float("nan"))


def _verdict(group: pd.DataFrame, index: object, tolerance: float) -> Verdict:
    row = group.loc[index]  # type: ignore[call-overload]
    if pd.isna(row["paper"]) or pd.isna(row["ours"]):
        return Verdict.NOT_COMPARED
    spread = 0.0 if pd.isna(row["paper_spread"]) else float(row["paper_spread"])
    if abs(row["ours"] - row["paper"]) <= tolerance * abs(row["paper"]) + spread:
        return Verdict.REPRODUCED
    others = group[group.index != index].dropna(subset=["paper", "ours"])
    apart = others[others["paper"] != row["paper"]]
    if apart.empty:
        return Verdict.DIFFERS
    below = (apart["paper"] < row["paper"]) & (apart["ours"] < row["ours"])
    above = (apart["paper"] > row["paper"]) & (apart["ours"] > row["ours"])
    return Verdict.ORDERING if bool((below | above).all()) else Verdict.DIFFERS


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The weakest of those that compare something."""
    found = [each for each in verdicts if each != Verdict.NOT_COMPARED]
    for weakest in (Verdict.DIFFERS, Verdict.ORDERING, Verdict.REPRODUCED):
        if weakest in found:
            return weakest
    return Verdict.NOT_COMPARED
