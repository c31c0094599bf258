"""Measures of one step on samples of states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.pair import adam_update, zero_points
from qmaps.algebra.quantizer import QuantizedTensor
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
