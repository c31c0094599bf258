"""Measuring a sample of each tensor, with a confidence interval beside each mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor

from qmaps import metrics
from qmaps.algebra.pair import Pair, adam_update, spec_of, zero_points
from qmaps.algebra.quantizer import Quantizer
from qmaps.analyze._updates import LEVELS
from qmaps.capture import CapturedStates
from qmaps.engines import reference
from qmaps.engines.philox import RoundingKey
from qmaps.maps.base import table
from qmaps.normalize.base import Normalizer, Scales
from qmaps.sweep.measure import MOMENTS, about, fitted, is_negative, mean_square_of, wanted_of
from qmaps.sweep.state import refuse_factors
from qmaps.sweep.units import Units, per_unit, units

CONFIDENCE = 0.95
"""Probability with which an interval covers the mean over all elements."""


def sampled_rows(
    states: CapturedStates,
    parameter: str,
    names: Sequence[str],
    singles: Sequence[Quantizer],
    pairs: Sequence[Pair],
    share: float,
) -> Iterator[dict[str, Any]] | None:
    """Yield the rows of one parameter, measured on a sample; None if all of it is to be measured.

    Scales and fitted maps are those of the whole tensor. Means and quantiles are estimates for the
    whole tensor; each mean has an interval. Maxima and what is known of codes are of the sample.

    Args:
        states: the states that hold the parameter.
        parameter: its name.
        names: its states that are measured.
        singles: quantizers to measure alone.
        pairs: quantizers of both moments.
        share: share of the units.
    """
    moments = (q for pair in pairs for q in (pair.first, pair.second) if q is not None)
    refuse_factors([*moments, *singles])
    tensors = {name: states.tensor(parameter, name) for name in names}
    negative = {name: is_negative(tensor) for name, tensor in tensors.items()}
    wanted = wanted_of(negative, singles, pairs)
    normalizers = {q.normalizer for chosen in wanted.values() for q in chosen}
    shapes = {tuple(tensor.shape) for tensor in tensors.values()}
    chosen = None
    if len(shapes) == 1:
        chosen = units(parameter, list(tensors.values()), normalizers, share)
    if chosen is None:
        return None
    return _rows(states, parameter, tensors, wanted, pairs, chosen)


def _rows(
    states: CapturedStates,
    parameter: str,
    tensors: dict[str, Tensor],
    wanted: dict[str, list[Quantizer]],
    pairs: Sequence[Pair],
    chosen: Units,
) -> Iterator[dict[str, Any]]:
    frozen = fitted(tensors, wanted)
    decoded: dict[tuple[str, Quantizer | None], Tensor] = {}
    for name, tensor in tensors.items():
        x = chosen.of(tensor)
        decoded[name, None] = x
        ones = torch.ones_like(x, dtype=torch.float64)
        mean_square = mean_square_of(tensor)
        scales: dict[Normalizer, Scales] = {}
        for q in wanted[name]:
            if q.normalizer not in scales:
                scales[q.normalizer] = chosen.restricted(
                    q.normalizer.scales(tensor), q.normalizer, tensor.dim()
                )
            map_ = frozen.get((name, q), q).map
            key = RoundingKey() if q.rounding.random else None
            codes, parts = reference.quantize(
                x, q.normalizer, map_, key, scales[q.normalizer], dithered=q.dithered
            )
            away = key if q.dithered else None
            y = reference.dequantize(codes, parts, q.normalizer, map_, away)
            decoded[name, q] = y
            error = (x.double() - y.double()).abs()
            kept = (x != 0).double()
            relative = torch.where(x != 0, error / x.double().abs(), 0.0)
            row = {
                **about(states, parameter, name, tuple(tensor.shape)),
                "quantizer": q.spec,
                "first": None,
                "second": None,
                "bits_per_element": _bits(q, tensor),
                **metrics.measure(x, y, codes, table(map_).numel()),
                "mean_square": mean_square,
                **mean("mean_abs_error", error, ones, chosen),
                **mean("mse", error.square(), ones, chosen),
                **mean("mean_rel_error", relative, kept, chosen),
                **mean("zeroed_share", kept * (y == 0), kept, chosen),
            }
            row["sqnr_db"] = _decibels(row["mean_square"], row["mse"])
            yield row
    if not (tensors.keys() >= MOMENTS):
        return
    m, v = decoded["exp_avg", None], decoded["exp_avg_sq", None]
    eps = states.eps(parameter)
    u = adam_update(m, v, eps).double()
    ones, kept = torch.ones_like(u), (u != 0).double()
    for pair in pairs:
        mq, vq = decoded["exp_avg", pair.first], decoded["exp_avg_sq", pair.second]
        error = (u - adam_update(mq, vq, eps).double()).abs()
        relative = torch.where(u != 0, error / u.abs(), 0.0)
        collapsed = zero_points(mq, vq, v).double()
        whole = tensors["exp_avg"]
        yield {
            **about(states, parameter, "update", tuple(whole.shape)),
            "quantizer": pair.spec,
            "first": spec_of(pair.first),
            "second": spec_of(pair.second),
            "bits_per_element": (_bits(pair.first, whole) + _bits(pair.second, whole)) / 2,
            **quantiles("abs", error, ones.bool(), chosen),
            **quantiles("rel", relative, u != 0, chosen),
            **mean("mean_abs_error", error, ones, chosen),
            **mean("mean_rel_error", relative, kept, chosen),
            **mean("zeroed_share", collapsed, ones, chosen),
        }


def mean(name: str, values: Tensor, weights: Tensor, chosen: Units) -> dict[str, float]:
    """The estimate of a mean, sum of `values` over sum of `weights`, and the ends of its interval.

    The largest units add nothing to the width; the others are a sample without replacement, and
    the mean is a ratio of weighted sums over units. The width is that of Student's t with one
    degree of freedom less than drawn units.

    Args:
        name: name of the metric.
        values: what is summed, float64, of the chosen rows.
        weights: what is counted, likewise.
        chosen: the units.

    Returns:
        ``NAME``, ``NAME_low`` and ``NAME_high``; NaN where nothing is counted.
    """
    y, w = per_unit(values, chosen.size), per_unit(weights, chosen.size)
    total = (chosen.weights * w).sum()
    if total == 0:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), math.nan)
    found = (chosen.weights * y).sum() / total
    drawn = ~chosen.certain
    count, rest = int(drawn.sum()), chosen.count - int(chosen.certain.sum())
    residual = (y - found * w)[drawn]
    variance = rest * (rest - count) / count * residual.var(ddof=1) / total**2
    half = student.ppf((1 + CONFIDENCE) / 2, count - 1) * math.sqrt(variance)
    ends = {f"{name}_low": max(0.0, found - half), f"{name}_high": found + half}
    return {name: float(found), **{end: float(value) for end, value in ends.items()}}


def quantiles(kind: str, values: Tensor, kept: Tensor, chosen: Units) -> dict[str, float]:
    """Nearest-rank quantiles and the maximum of the elements that count, weighted by unit.

    Args:
        kind: ``abs`` or ``rel``.
        values: errors of the chosen rows, float64.
        kept: bool of the same shape, which of them count.
        chosen: the units.
    """
    weights = np.repeat(chosen.weights, chosen.size)[: values.numel()][kept.reshape(-1).numpy()]
    flat = values[kept].numpy()
    if flat.size == 0:
        return {f"{name}_{kind}_error": math.nan for name in (*LEVELS, "max")}
    order = np.argsort(flat, kind="stable")
    reached = np.cumsum(weights[order])
    ranks = {name: np.searchsorted(reached, q * reached[-1]) for name, q in LEVELS.items()}
    ranks["max"] = np.intp(flat.size - 1)
    return {f"{name}_{kind}_error": float(flat[order[rank]]) for name, rank in ranks.items()}


def _bits(q: Quantizer | None, x: Tensor) -> float:
    return 32.0 if q is None else 8 * q.nbytes(tuple(x.shape)) / x.numel()


def _decibels(signal: float, noise: float) -> float:
    if signal == 0:
        return math.nan
    return math.inf if noise == 0 else 10 * (math.log10(signal) - math.log10(noise))
