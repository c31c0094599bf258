"""Claims of the LPMM paper about its Tables 2 and 3."""

from __future__ import annotations

import pandas as pd

from reproduction.claim import Claim

WITHIN = 2.0
"""Spreads over seeds within which two losses count as one."""


def at(rows: pd.DataFrame, bits: int, rounding: str, n: int = 1) -> pd.Series:
    """The row of a contender."""
    chosen = (rows["parameters"] == str(bits)) & (rows["rounding"] == rounding) & (rows["N"] == n)
    row: pd.Series = rows[chosen].iloc[0]
    return row


def _loss_of_several(rows: pd.DataFrame) -> float:
    chosen = (rows["parameters"] == "8") & (rows["rounding"] == "stochastic") & (rows["N"] > 1)
    return float(rows[chosen]["loss"].min())


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Given the rows of the summary; what explains a difference is their detail."""
    return [
        Claim(
            "12/8/8 bits with stochastic rounding end as full precision does (within two spreads).",
            bool(at(rows, 12, "stochastic")["in_spreads"] <= WITHIN),
        ),
        Claim(
            "8 bits rounded to nearest end behind it (by more than two spreads).",
            bool(at(rows, 8, "nearest")["in_spreads"] > WITHIN),
        ),
        Claim(
            "Stochastic rounding brings 8 bits back (within two spreads).",
            bool(at(rows, 8, "stochastic")["in_spreads"] <= WITHIN),
        ),
        Claim(
            "Micro-batches lower the loss of 8 bits once more.",
            bool(_loss_of_several(rows) < at(rows, 8, "stochastic")["loss"]),
            "Stochastic rounding alone leaves nothing to win back here, and N gradients summed at "
            "one learning rate make steps N times as long and N times as few, by which full "
            "precision loses as much.",
        ),
    ]
