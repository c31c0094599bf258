"""Whether a pair of quantizers is safe, and the measured reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

SAFE, UNSAFE = 0.1, 0.3
"""Displacement errors up to which a pair is safe, and from which on it is unsafe."""
EXPLODING = 1e-6
"""Share of updates larger than exact Adam's from which on a pair is unsafe."""

LEVELS = ("safe", "caution", "unsafe")


class Verdict(NamedTuple):
    """What is said of a pair.

    Attributes:
        level: ``safe``, ``caution`` or ``unsafe``.
        reason: the measure that decided, in a few words.
    """

    level: str
    reason: str


def verdict(measures: Mapping[str, Any], parts: pd.DataFrame) -> Verdict:
    """Judge a pair by its replay.

    Args:
        measures: its row of `qmaps.replay.summarize`.
        parts: its rows of `qmaps.replay.run`, one per parameter.
    """
    if measures["zero_point_share"] > 0:
        worst = _worst(parts, "zero_point_share")
        return Verdict(
            "unsafe",
            f"second moments become 0 under first moments that are not "
            f"({measures['zero_point_share']:.2g} of the elements, most in {worst})",
        )
    if measures["explosion_share"] > EXPLODING:
        return Verdict(
            "unsafe",
            f"updates of up to {measures['largest_update']:.3g} learning rates "
            f"(most in {_worst(parts, 'explosion_share')})",
        )
    error = measures["displacement_error"]
    if not error <= UNSAFE:
        return Verdict(
            "unsafe", f"displacement error {error:.2g}, above {UNSAFE:g}{_stalled(measures)}"
        )
    bad = parts.loc[~(parts["displacement_error"] <= UNSAFE), "parameter"].tolist()
    if error > SAFE:
        return Verdict(
            "caution", f"displacement error {error:.2g}, above {SAFE:g}{_stalled(measures)}"
        )
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        return Verdict("caution", f"displacement error above {UNSAFE:g} in {bad[0]}{more}")
    return Verdict("safe", f"displacement error {error:.2g}, at most {SAFE:g}")


def _worst(parts: pd.DataFrame, measure: str) -> str:
    return str(parts.loc[parts[measure].idxmax(), "parameter"])


def _stalled(measures: Mapping[str, Any]) -> str:
    """Where the error comes from, if many states do not move."""
    shares = {name: measures[f"stalled_share_{name}"] for name in ("first", "second")}
    name = max(shares, key=lambda each: shares[each] if shares[each] == shares[each] else 0)
    return f"; {shares[name]:.0%} of the {name} moments stall" if shares[name] > 0.2 else ""
