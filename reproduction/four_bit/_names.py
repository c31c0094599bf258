"""Quantizers by the names of the 4-bit paper."""

from __future__ import annotations

import pandas as pd

PRINTED = {"rank1": "Rank-1", "linear": "Linear"}


def printed(spec: str) -> str:
    """``Rank-1/Linear`` for ``rank1/linear@4u``: the paper names neither width nor sign."""
    parts = spec.partition("@")[0].split("/")
    return "/".join(PRINTED.get(part, part) for part in parts)


def renamed(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """The frame with the names of a column's specs as the paper prints them."""
    return frame.assign(**{column: frame[column].map(printed)})
