"""Cells of tables as text."""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd

from reproduction.numbers import number

DIGITS = 5
"""Digits before and after the point of a number with a spread; longer ones are shortened."""
LONGEST = 8
"""Largest number of decimals without an exponent."""


def numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame of `reproduction.verdict.beside` for readers: spreads join their numbers.

    If a measured quantity replaces a paper's metric, a column names it.
    """
    shown = pd.DataFrame(
        {
            "": frame["what"],
            "quantity": [
                f"{quantity} ({unit})" if isinstance(unit, str) and unit else quantity
                for quantity, unit in zip(frame["quantity"], frame["unit"], strict=True)
            ],
            "paper": [
                printed or _plain(value, spread)
                for printed, value, spread in zip(
                    frame["printed"], frame["paper"], frame["paper_spread"], strict=True
                )
            ],
            "ours": [
                _decimals(printed, value) or measured(value, spread)
                if pd.isna(spread) and not proxy
                else measured(value, spread)
                for printed, value, spread, proxy in zip(
                    frame["printed"],
                    frame["ours"],
                    frame["ours_spread"],
                    frame["proxy"],
                    strict=True,
                )
            ],
            "verdict": frame["verdict"],
        }
    )
    if frame["proxy"].any():
        shown.insert(3, "in its place", [name or "-" for name in frame["proxy"]])
    return shown


def _decimals(printed: str, value: float) -> str:
    """The number with as many decimals as the paper prints, and three digits at least.

    Empty without a printed number, or if the text has more than `LONGEST` decimals.

    >>> _decimals("0.236719", 0.23671875), _decimals("0.2", 0.2), _decimals("650", 649.0)
    ('0.236719', '0.2', '')
    """
    if not re.fullmatch(r"\d+\.\d+", printed) or not math.isfinite(value) or value == 0:
        return ""
    printed_decimals = len(printed.partition(".")[2])
    places = max(printed_decimals, 2 - math.floor(math.log10(abs(value))))
    if places > LONGEST:
        return ""
    integral, _, decimals = f"{value:,.{places}f}".partition(".")
    return f"{integral}.{decimals[:printed_decimals]}{decimals[printed_decimals:].rstrip('0')}"


def _plain(value: float, spread: float) -> str:
    return cell(value) + (f" ± {cell(spread)}" if pd.notna(spread) else "")


def measured(value: float, spread: float) -> str:
    """A number with its spread, rounded to two digits of the spread.

    A baseline minus itself has a spread of 0, and is shown to five digits.

    >>> measured(2.88649, 0.01781), measured(0.0462, float("nan")), measured(2.300914, 0.0)
    ('2.886 ± 0.018', '0.0462', '2.3009 ± 0')
    """
    if spread == 0 and 0.1 <= abs(value) < 10**DIGITS:
        return f"{value:.5g} ± 0"
    if not (math.isfinite(spread) and math.isfinite(value)) or spread <= 0:
        return _plain(value, spread)
    places = max(0, 1 - math.floor(math.log10(spread)))
    if places > DIGITS or abs(value) >= 10**DIGITS:
        return _plain(value, spread)
    return f"{value:.{places}f} ± {spread:.{places}f}"


def cell(value: Any) -> str:
    """A number to three digits, a dash if it is missing, other values unchanged."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else number(value)
