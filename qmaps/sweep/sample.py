"""Measuring a sample of each tensor, with a confidence interval beside each mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from qmaps import metrics
from qmaps.algebra.pair import Pair, adam_update, zero_points
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import Quantizer
from qmaps.analyze.update_error import LEVELS, bits_of
from qmaps.capture import CapturedStates
from qmaps.engines import reference
from qmaps.errors import BadValueError
from qmaps.maps.base import table
from qmaps.maps.fitted import FittedMap
from qmaps.metrics.sqnr_db import decibels
from qmaps.normalize.base import Normalizer, Scales
from qmaps.ops.fit import fit_normalized
from qmaps.sweep import measure
from qmaps.sweep.units import Scaler, Slabs, Units, choose_units, count_of, per_unit, unit_of

CONFIDENCE = 0.95
"""Probability with which an interval covers the mean over all elements."""


def sampled_rows(
    states: CapturedStates, parameter: str, names: Sequence[str], share: float, specs: measure.Specs
) -> Iterator[dict[str, Any]] | None:
    """Yield the rows of one parameter, measured on a sample; None if it has too few units for one.

    The states, all of one shape, are read twice, a slab at a time: for their signs, and for the
    largest units and the scales of the whole tensor. Then the chosen rows are read. Means and
    quantiles are estimates for the whole tensor; each mean has an interval. Maxima and measures of
    codes are of the sample.

    Raises:
        BadValueError: a quantizer has a low-rank part, a normalizer does not say what its scales
            span, or a map of a pair is unsigned and elements are negative.
    """
    for q in measure.quantizers_of(*specs):
        if q.low_rank is not None:
            raise BadValueError(
                f"{q.spec} keeps factors of whole matrices; sweep it without sample, and with "
                "memory for the largest"
            )
    shape = states.shape(parameter, names[0])
    opened = {name: Slabs(shape, states.opened(parameter, name)) for name in names}
    signs = {name: state.signs() for name, state in opened.items()}
    wanted = measure.wanted_of({name: found.negative > 0 for name, found in signs.items()}, *specs)
    for name, quantizers in wanted.items():
        for q in quantizers:
            if signs[name].negative and not q.map.signed:
                raise BadValueError(
                    f"x holds {signs[name].negative} negative elements, the first at flat index "
                    f"{signs[name].first_negative}; {q.map.spec} is unsigned; use a signed map"
                )
    size = unit_of(shape, {q.normalizer for quantizers in wanted.values() for q in quantizers})
    count = count_of(math.prod(shape), size, share)
    if count is None:
        return None
    scalers = {
        name: {q.normalizer: Scaler(q.normalizer, len(shape)) for q in wanted[name]}
        for name in names
    }
    squares = [opened[name].surveyed(size, list(scalers[name].values())) for name in names]
    chosen = choose_units(parameter, shape, size, count, squares)
    samples = {
        name: Sample(
            x := state.chosen(chosen.chosen, size),
            {normalizer: scaler.scales(x) for normalizer, scaler in scalers[name].items()},
            signs[name].mean_square,
            _fitted(state, scalers[name], wanted[name], size),
        )
        for name, state in opened.items()
    }
    return _rows(states, parameter, shape, samples, wanted, specs[1], chosen)


class Sample(NamedTuple):
    """The chosen rows of a state.

    Attributes:
        x: the rows.
        scales: their scales under each normalizer, as it computes them from the whole state.
        mean_square: mean of the squares of the whole state.
        frozen: quantizers with fitted maps, with their codebooks.
    """

    x: Tensor
    scales: dict[Normalizer, Scales]
    mean_square: float
    frozen: dict[Quantizer, Quantizer]


def _fitted(
    state: Slabs, scalers: Mapping[Normalizer, Scaler], quantizers: Sequence[Quantizer], size: int
) -> dict[Quantizer, Quantizer]:
    """Fit the fitted maps to units of about `FIT` elements, spread evenly over the state."""
    groups: dict[Normalizer, list[Quantizer]] = {}
    for q in quantizers:
        if isinstance(q.map, FittedMap):
            groups.setdefault(q.normalizer, []).append(q)
    if not groups:
        return {}
    count = -(-state.numel // size)
    fitted_units = min(count, max(1, measure.FIT // size))
    x = state.chosen(np.linspace(0, count - 1, fitted_units).astype(np.int64), size)
    frozen: dict[Quantizer, Quantizer] = {}
    for normalizer, alike in groups.items():
        scales = scalers[normalizer].scales(x)
        scale = normalizer.expand(scales, tuple(x.shape)).expand(x.shape)
        fitted = fit_normalized(alike, normalizer.normalize(x, scales), scale)
        frozen |= dict(zip(alike, fitted, strict=True))
    return frozen


def _rows(
    states: CapturedStates,
    parameter: str,
    shape: tuple[int, ...],
    samples: Mapping[str, Sample],
    wanted: Mapping[str, Sequence[Quantizer]],
    pairs: Sequence[Pair],
    chosen: Units,
) -> Iterator[dict[str, Any]]:
    paired = {place for pair in pairs for place in measure.places(pair)}
    decoded: dict[tuple[str, Quantizer | None], Tensor] = {}
    for name, sample in samples.items():
        x = sample.x
        decoded[name, None] = x
        ones, nonzero = torch.ones_like(x, dtype=torch.float64), (x != 0).double()
        for q in wanted[name]:
            map_ = sample.frozen.get(q, q).map
            key = RoundingKey() if q.rounding.random else None
            codes, parts = reference.quantize(
                x, q.normalizer, map_, key, sample.scales[q.normalizer], dithered=q.dithered
            )
            away = key if q.dithered else None
            y = reference.dequantize(codes, parts, q.normalizer, map_, away)
            if (name, q) in paired:
                decoded[name, q] = y
            error = (x.double() - y.double()).abs()
            relative = torch.where(x != 0, error / x.double().abs(), 0.0)
            row = {
                **measure.about(states, parameter, name, shape, q),
                "bits_per_element": bits_of(q, shape),
                **metrics.measure(x, y, codes, table(map_).numel()),
                "mean_square": sample.mean_square,
                **mean("mean_abs_error", error, ones, chosen),
                **mean("mse", error.square(), ones, chosen),
                **mean("mean_rel_error", relative, nonzero, chosen),
                **mean("zeroed_share", nonzero * (y == 0), nonzero, chosen),
            }
            row["sqnr_db"] = decibels(row["mean_square"], row["mse"])
            yield row
    if not (samples.keys() >= measure.MOMENTS):
        return
    m, v = decoded["exp_avg", None], decoded["exp_avg_sq", None]
    eps = states.eps(parameter)
    u = adam_update(m, v, eps).double()
    ones, nonzero = torch.ones_like(u), (u != 0).double()
    for pair in pairs:
        mq, vq = (decoded[place] for place in measure.places(pair))
        error = (u - adam_update(mq, vq, eps).double()).abs()
        relative = torch.where(u != 0, error / u.abs(), 0.0)
        yield {
            **measure.about(states, parameter, "update", shape, pair),
            "bits_per_element": bits_of(pair, shape),
            **quantiles("abs", error, ones.bool(), chosen),
            **quantiles("rel", relative, u != 0, chosen),
            **mean("mean_abs_error", error, ones, chosen),
            **mean("mean_rel_error", relative, nonzero, chosen),
            **mean("zeroed_share", zero_points(mq, vq, v).double(), ones, chosen),
        }


def mean(name: str, values: Tensor, weights: Tensor, chosen: Units) -> dict[str, float]:
    """The estimate of a mean, sum of `values` over sum of `weights`, and the ends of its interval.

    The largest units add nothing to the width; the others are a sample without replacement, and the
    mean is a ratio of weighted sums over units. The width is that of Student's t with one degree of
    freedom less than drawn units. All are NaN where nothing is counted.
    """
    y, w = per_unit(values, chosen.size), per_unit(weights, chosen.size)
    total = (chosen.weights * w).sum()
    if total == 0:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), math.nan)
    estimate = (chosen.weights * y).sum() / total
    drawn = ~chosen.certain
    count, remaining = int(drawn.sum()), chosen.count - int(chosen.certain.sum())
    residual = (y - estimate * w)[drawn]
    variance = remaining * (remaining - count) / count * residual.var(ddof=1) / total**2
    half = stdtrit(count - 1, (1 + CONFIDENCE) / 2) * math.sqrt(variance)  # Student's t
    ends = {f"{name}_low": max(0.0, estimate - half), f"{name}_high": estimate + half}
    return {name: float(estimate), **{end: float(value) for end, value in ends.items()}}


def quantiles(kind: str, values: Tensor, counted: Tensor, chosen: Units) -> dict[str, float]:
    """Nearest-rank quantiles and the maximum of the counted errors, weighted by unit."""
    weights = np.repeat(chosen.weights, chosen.size)[: values.numel()][counted.reshape(-1).numpy()]
    flat = values[counted].numpy()
    if flat.size == 0:
        return {f"{name}_{kind}_error": math.nan for name in (*LEVELS, "max")}
    order = np.argsort(flat, kind="stable")
    reached = np.cumsum(weights[order])
    ranks = {name: np.searchsorted(reached, q * reached[-1]) for name, q in LEVELS.items()}
    ranks["max"] = np.intp(flat.size - 1)
    return {f"{name}_{kind}_error": float(flat[order[rank]]) for name, rank in ranks.items()}
