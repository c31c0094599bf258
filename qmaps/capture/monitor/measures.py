"""Measures of one step on samples of states, their limits, and warnings beyond them."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.pair import adam_update, zero_points
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.errors import BadTypeError, BadValueError, StateWarning, shown
from qmaps.metrics import Sums, mean_rel_error, sqnr_db
from qmaps.ops import gaps

MOMENTS = ("exp_avg", "exp_avg_sq")

MEASURES = (
    "held_share",
    "moved_share",
    "stalled_share",
    "saturated_share",
    "sqnr_db",
    "zero_point_share",
    "update_mean_rel_error",
    "update_median_rel_error",
)
"""Names of the measures, as `qmaps.capture.Monitor` defines them."""

Measures = dict[str, float]


def of_states(
    first: QuantizedTensor | None,
    last: QuantizedTensor,
    drifted: Tensor | None,
    exact: Tensor | None,
    sizes: Sequence[int],
) -> list[Measures]:
    """Return the measures of several states, except for those of both moments together.

    Args:
        first: the sampled codes at the start of the window; None if the map has changed since.
        last: those after the step, 1-D and on the CPU as all others here.
        drifted: the exact values after all steps of the window; None if unknown.
        exact: the exact values after the step, from the codes before it; None if unknown.
        sizes: number of elements of each state's sample; the samples lie one after another.
    """
    measures = [dict.fromkeys(MEASURES, math.nan) for _ in sizes]
    codes = last.codes()
    shares: dict[str, Tensor] = {}
    if first is not None:
        same = shares["held_share"] = first.codes() == codes
        if drifted is not None:
            moved = shares["moved_share"] = gaps.moved(first, drifted - first.dequantize())
            shares["stalled_share"] = moved & same
    if exact is not None:
        shares["saturated_share"] = _saturated(last, exact, codes)
        wide = exact.double()
        noise = (wide - last.dequantize()).square()
        signals, noises = _sums(wide.square(), sizes), _sums(noise, sizes)
        for measured, size, signal, square in zip(measures, sizes, signals, noises, strict=True):
            measured["sqnr_db"] = sqnr_db.from_sums(_of(size, signal=signal, square=square))
    for name, where in shares.items():
        for measured, size, count in zip(measures, sizes, _sums(where, sizes), strict=True):
            measured[name] = count / size
    for measured in measures:  # the share of those that moved
        moved_share = measured["moved_share"]
        measured["stalled_share"] = (
            measured["stalled_share"] / moved_share if moved_share else math.nan
        )
    return measures


def of_moments(
    first: Tensor,
    second: Tensor,
    exact: Mapping[str, Tensor] | None,
    group: Mapping[str, Any],
    step: int,
    sizes: Sequence[int],
) -> list[Measures]:
    """Return the measures of Adam's two moments together, of several parameters.

    Args:
        first: the decoded first moments after the step, 1-D.
        second: the decoded second moments after the step.
        exact: all states of the rule before they were encoded, by name; None if unknown.
        group: options of the parameter group; `eps` and `betas` are used.
        step: number of the parameters' step.
        sizes: number of elements of each parameter's sample.
    """
    v = torch.ones_like(second) if exact is None else exact["exp_avg_sq"]
    zeroed = _sums(zero_points(first, second, v), sizes)
    measures = [{"zero_point_share": n / size} for n, size in zip(zeroed, sizes, strict=True)]
    if exact is None or set(exact) != set(MOMENTS):  # AdEMAMix's update has a third state
        return measures
    # Bias corrections multiply the whole update by a number if eps is multiplied as well.
    eps = float(group["eps"]) * math.sqrt(1 - float(group["betas"][1]) ** step)
    u, w = adam_update(exact["exp_avg"], v, eps), adam_update(first, second, eps)
    nonzero, wide = u != 0, u.double()
    relative = ((w - wide) / wide).abs()
    totals, counts = _sums(torch.where(nonzero, relative, 0.0), sizes), _sums(nonzero, sizes)
    parts = torch.split(torch.where(nonzero, relative, math.nan), list(sizes))
    medians = [float(part.nanmedian()) for part in parts]
    for measured, size, total, count, median in zip(
        measures, sizes, totals, counts, medians, strict=True
    ):
        sums = _of(size, relative=total, nonzero=int(count))
        measured["update_mean_rel_error"] = mean_rel_error.from_sums(sums)
        measured["update_median_rel_error"] = median
    return measures


def _saturated(t: QuantizedTensor, exact: Tensor, codes: Tensor) -> Tensor:
    """Return a mask of elements with an end code and a magnitude below their scale."""
    ends = codes == len(t.quantizer.map.codebook()) - 1
    if t.quantizer.map.signed:
        ends |= codes == 0
    return ends & (t.quantizer.normalizer.normalize(exact, t.scales).abs() < 1)


def _sums(x: Tensor, sizes: Sequence[int]) -> list[float]:
    """The sum of each part of a 1-D tensor."""
    if len(set(sizes)) == 1:
        rows: list[float] = x.view(len(sizes), -1).sum(dim=1).tolist()
        return rows
    return [part.sum().item() for part in torch.split(x, list(sizes))]


def _of(numel: int, **sums: float) -> Sums:
    """Sums with NaN for unknown ones."""
    nothing = dict.fromkeys(("absolute", "square", "signal", "relative", "largest"), math.nan)
    codes = torch.empty(0, dtype=torch.float32)
    counts: dict[str, Any] = {"nonzero": 0, "zeroed": 0, "codes": codes}
    return Sums(numel=numel, **{**nothing, **counts, **sums})


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Limits of the measures of `qmaps.capture.Monitor`; None turns a warning off.

    Attributes:
        stalled_share: largest allowed share of stalled elements among moved ones, if at
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
        """Warn about new problems in these rows."""
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
