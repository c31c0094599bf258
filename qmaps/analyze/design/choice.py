"""Which of several candidates to take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qmaps.algebra.pair import Pair

TIE = 1.05
"""Errors that differ by at most this factor count as equal."""
NOTHING = 1e-4
"""Errors below this count as equal."""


def preferred(rows: Mapping[Pair, Mapping[str, Any]], nothing: float = NOTHING) -> Pair:
    """Return the pair to take: the least error, and of equal ones the simplest.

    Of pairs whose errors count as equal, those of fewest bits per element (to two decimals) come
    first, then those with known maps, then those that round to nearest, and then the least error.

    Args:
        rows: for each pair its `selection_error`, `bits_per_element`, `designed` and `stochastic`;
            at least one.
        nothing: errors below this count as equal.
    """
    least = min(row["selection_error"] for row in rows.values())
    equal = [p for p, row in rows.items() if row["selection_error"] <= max(TIE * least, nothing)]

    def effort(pair: Pair) -> tuple[float, bool, bool, float]:
        row = rows[pair]
        bits = round(row["bits_per_element"], 2)
        return bits, row["designed"], row["stochastic"], row["selection_error"]

    return min(equal, key=effort)
