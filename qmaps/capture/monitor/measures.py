"""Measures of one step on samples of states."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.pair import adam_update, zero_points
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.metrics.sqnr_db import decibels
from qmaps.ops import gaps

MOMENTS = ("exp_avg", "exp_avg_sq")

MEASURES = (
    "held_share",
    "moved_share",
    "stalled_share",
    "stuck_share",
    "saturated_share",
    "sqnr_db",
    "zero_point_share",
    "update_mean_rel_error",
    "update_median_rel_error",
)
"""Names of the measures, as `qmaps.capture.Monitor` defines them."""

SUMS = (
    *("numel", "held", "moved", "stalled", "stuck", "saturated", "signal", "noise"),
    *("pairs", "zeroed", "relative", "nonzero", "median"),
)
"""Names of the sums that the measures are made of; those of several shards can be added.

Counts of elements, except for the sums of squares `signal` and `noise`, the sum `relative` of the
update's relative errors, and their `median`, which is no sum. `pairs` counts elements of both
moments, `nonzero` those with an update. NaN if unknown."""

Sums = dict[str, float]

FAR = 10
"""Ratio of a second moment to the mean of the squared gradients from which on it is far above."""


def measures_of(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the measures by name, from their sums."""
    size = sums["numel"]
    return {
        "held_share": sums["held"] / size,
        "moved_share": sums["moved"] / size,
        "stalled_share": _ratio(sums["stalled"], sums["moved"]),
        "stuck_share": sums["stuck"] / size,
        "saturated_share": sums["saturated"] / size,
        "sqnr_db": decibels(sums["signal"], sums["noise"]),
        "zero_point_share": _ratio(sums["zeroed"], sums["pairs"]),
        "update_mean_rel_error": _ratio(sums["relative"], sums["nonzero"]),
        "update_median_rel_error": sums["median"],
    }


def added(parts: Sequence[Mapping[str, float]]) -> Sums:
    """Return the sums of several samples together, with the largest of their medians."""
    together = {name: sum(part[name] for part in parts) for name in SUMS}
    medians = [part["median"] for part in parts if not math.isnan(part["median"])]
    return {**together, "median": max(medians, default=math.nan)}


def of_states(
    first: QuantizedTensor | None,
    last: QuantizedTensor,
    drifted: Tensor | None,
    exact: Tensor | None,
    sizes: Sequence[int],
    decay: tuple[float, int] | None = None,
) -> list[Sums]:
    """Return the sums of several states, without those of both moments together.

    `first` are the sampled codes at the start of the window (None if the map has changed since),
    `last` those after the step, 1-D and on the CPU as all others here, and `drifted` and `exact`
    the exact values after all steps of the window and after the last; None if unknown. The samples
    of `sizes` elements lie one after another. `decay` is that of an average of squares, and the
    number of steps in the window; None for other states.
    """
    results = [{**dict.fromkeys(SUMS, math.nan), "numel": float(size)} for size in sizes]
    codes = last.codes()
    summed: dict[str, Tensor] = {}
    if first is not None:
        same = summed["held"] = first.codes() == codes
        if drifted is not None:
            moved = summed["moved"] = gaps.moved(first, drifted - first.dequantize())
            summed["stalled"] = moved & same
            if decay is not None and (stuck := _stuck(first, last, drifted, *decay)) is not None:
                summed["stuck"] = stuck
    if exact is not None:
        summed["saturated"] = _saturated(last, exact, codes)
        wide = exact.double()
        summed["signal"], summed["noise"] = wide.square(), (wide - last.dequantize()).square()
    for name, values in summed.items():
        for sums, value in zip(results, _sums(values, sizes), strict=True):
            sums[name] = value
    return results


def of_moments(
    first: Tensor,
    second: Tensor,
    exact: Mapping[str, Tensor] | None,
    group: Mapping[str, Any],
    step: int,
    sizes: Sequence[int],
) -> list[Sums]:
    """Return the sums of Adam's two moments together, of several parameters.

    `first` and `second` are the decoded moments after the step, 1-D, and `exact` all states of the
    rule before they were encoded; None if unknown. `eps` and `betas` of the `group` are used.
    """
    v = torch.ones_like(second) if exact is None else exact["exp_avg_sq"]
    zeroed = _sums(zero_points(first, second, v), sizes)
    results = [{"pairs": size, "zeroed": n} for n, size in zip(zeroed, sizes, strict=True)]
    if exact is None or set(exact) != set(MOMENTS):  # AdEMAMix's update has a third state
        return results
    # Bias corrections multiply the whole update by a number if eps is multiplied as well.
    eps = float(group["eps"]) * math.sqrt(1 - float(group["betas"][1]) ** step)
    u, w = adam_update(exact["exp_avg"], v, eps), adam_update(first, second, eps)
    nonzero, wide = u != 0, u.double()
    relative = ((w - wide) / wide).abs()
    totals, counts = _sums(torch.where(nonzero, relative, 0.0), sizes), _sums(nonzero, sizes)
    parts = torch.split(torch.where(nonzero, relative, math.nan), list(sizes))
    medians = [float(part.nanmedian()) for part in parts]
    for sums, total, count, median in zip(results, totals, counts, medians, strict=True):
        sums.update(relative=total, nonzero=count, median=median)
    return results


def decay_of(name: str, group: Mapping[str, Any], states: Collection[str]) -> float | None:
    """The decay of an average of squares; None for other states."""
    if name == "exp_avg_sq":  # Adan has an average between
        return float(group["betas"][2 if "exp_avg_diff" in states else 1])
    return float(group["alpha"]) if name == "square_avg" else None


def _stuck(
    first: QuantizedTensor, last: QuantizedTensor, drifted: Tensor, decay: float, steps: int
) -> Tensor | None:
    """Return a mask of elements far above squared gradients that cannot fall; None if unknown.

    The mean of what entered the average follows from its exact movement.
    """
    kept, v = decay**steps, last.dequantize()
    if last.quantizer.rounding.stochastic or kept == 1:
        return torch.zeros_like(v, dtype=torch.bool)
    mean = (drifted - kept * first.dequantize()).div_(1 - kept)
    least = 8 * torch.finfo(v.dtype).eps / (1 - kept) * v  # more than the error of the mean
    far = (mean > least) & (v > FAR * mean)
    factor = decay + (1 - decay) * torch.where(far, mean / v, 1.0)
    stays = gaps.stays(last.quantizer, last.codes(), factor)
    return None if stays is None else far & stays


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


def _ratio(count: float, of: float) -> float:
    """NaN for a share of nothing."""
    return count / of if of else math.nan
