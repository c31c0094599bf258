"""Cells of tables as text."""

from __future__ import annotations

from typing import Any

import pandas as pd

from qmaps.papers.numbers import number


def numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame of `qmaps.papers.verdict.beside` for readers: spreads join their numbers.

    Where something of ours stands for a paper's metric, a column names it.
    """
    shown = pd.DataFrame(
        {
            "": frame["what"],
            "quantity": [
                f"{quantity} ({unit})" if isinstance(unit, str) and unit else quantity
                for quantity, unit in zip(frame["quantity"], frame["unit"], strict=True)
            ],
            "paper": _with_spread(frame, "paper"),
            "ours": _with_spread(frame, "ours"),
            "verdict": frame["verdict"],
        }
    )
    if frame["stand_in"].any():
        shown.insert(3, "in its place", [name or "-" for name in frame["stand_in"]])
    return shown


def _with_spread(frame: pd.DataFrame, name: str) -> list[str]:
    return [
        cell(value) + (f" ± {cell(spread)}" if pd.notna(spread) else "")
        for value, spread in zip(frame[name], frame[f"{name}_spread"], strict=True)
    ]


def cell(value: Any) -> str:
    """A number to three digits, a dash for none, other things as they are."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else number(value)
