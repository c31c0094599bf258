"""Limits of measures, and warnings beyond them."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from qmaps.errors import BadTypeError, BadValueError, StateWarning, shown


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Limits of the measures of `qmaps.capture.Monitor`; None turns a warning off.

    Attributes:
        stalled_share: largest allowed share of stalled elements among those that moved, if at
            least a tenth of all moved. Nearest rounding at a beta of 0.999 stalls in 8 bits too
            without harm, so only the loss of nearly all movement is reported.
        zero_point_share: largest allowed share of zero points. One of them is enough for an update
            of m / eps, so none is allowed by default.
        saturated_share: largest allowed share of saturated elements. A 4-bit map with every code
            equally often (`quantile`) has 2 / 16 of them at the ends.
        sqnr_db: smallest allowed SQNR in dB. At 10 dB the noise has a tenth of the power of the
            state.
        update_median_rel_error: largest allowed median relative error of the update. At 1 half of
            the updates are as wrong as no update.

    Raises:
        BadTypeError, BadValueError: a limit is not a finite number or None.
    """

    stalled_share: float | None = 0.9
    zero_point_share: float | None = 0.0
    saturated_share: float | None = 0.2
    sqnr_db: float | None = 10.0
    update_median_rel_error: float | None = 0.5

    def __post_init__(self) -> None:
        for option in fields(self):
            limit = getattr(self, option.name)
            if limit is None:
                continue
            if isinstance(limit, bool) or not isinstance(limit, (int, float)):
                raise BadTypeError(f"{option.name}={shown(limit)} must be a number or None")
            if not math.isfinite(limit):
                raise BadValueError(f"{option.name}={shown(limit)} must be a finite number or None")


MOVERS = 0.1
"""Share of moved elements below which a share of them says little about the state."""

ADVICE = {
    "stalled_share": "use more bits or stochastic rounding (+sr)",
    "zero_point_share": "an update may be m / eps; use a map without 0, such as DE-0 or linear",
    "saturated_share": "refit the map more often (refit_every), or use smaller blocks",
    "sqnr_db": "use more bits or smaller blocks",
    "update_median_rel_error": "use more bits or smaller blocks",
}


class Warner:
    """Warns once about each state and cause, whatever the number of steps and parameters.

    Args:
        thresholds: the limits.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._told: set[tuple[str, str]] = set()

    def look(self, rows: Sequence[dict[str, Any]], step: int) -> None:
        """Warn about what these rows show for the first time."""
        for state in dict.fromkeys(row["state"] for row in rows):
            of_state = [row for row in rows if row["state"] == state]
            for option in fields(self._thresholds):
                limit = getattr(self._thresholds, option.name)
                below = option.name == "sqnr_db"
                if limit is not None:
                    self._compare(of_state, state, option.name, limit, step, below=below)

    def _compare(
        self,
        rows: Sequence[dict[str, Any]],
        state: str,
        measure: str,
        limit: float,
        step: int,
        *,
        below: bool,
    ) -> None:
        beyond: Callable[[float, float], bool] = operator.lt if below else operator.gt
        bad = [row for row in rows if beyond(row[measure], limit)]  # NaN is never beyond
        if measure == "stalled_share":
            bad = [row for row in bad if row["moved_share"] >= MOVERS]
        if not bad or (state, measure) in self._told:
            return
        self._told.add((state, measure))
        worst = (min if below else max)(bad, key=lambda row: row[measure])
        warnings.warn(
            f"{measure}={worst[measure]:.3g} of state {state!r} ({worst['quantizer']}) of "
            f"{shown(worst['parameter'])} at step {step} is {'below' if below else 'above'} "
            f"{limit:g}, as in {len(bad)} of {len(rows)} parameters; {ADVICE[measure]}",
            StateWarning,
            stacklevel=2,
        )
