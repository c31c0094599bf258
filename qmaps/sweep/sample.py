"""Measuring a sample of each tensor, with a confidence interval beside each mean.

A unit is the smallest number of consecutive rows that is a whole number of blocks of every
normalizer in the sweep; in a tensor of one dimension a row is one element. The given share of the
units is measured, at least `LEAST`:

- a quarter are the largest ones, by the sum of squares of their elements, divided by that of the
  tensor and added up over the states. A few large rows may hold most of an error, and no interval
  from a sample without them would cover it.
- The others are drawn from the rest: the first in the order of a 64-bit hash (splitmix64) of their
  number and of the parameter's name.

The choice depends on nothing else, so it is the same in every process.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from qmaps import metrics
from qmaps.algebra.pair import Pair, adam_update, zero_points
from qmaps.algebra.quantizer import Quantizer
from qmaps.analyze.update_error import LEVELS, bits_of
from qmaps.capture import CapturedStates
from qmaps.capture.snapshot import Part
from qmaps.engines import reference
from qmaps.errors import BadValueError
from qmaps.maps.base import table
from qmaps.maps.fitted import FittedMap
from qmaps.metrics.sqnr_db import decibels
from qmaps.normalize.base import Minimum, Normalizer, Scales
from qmaps.normalize.scale_format import ScaleFormat
from qmaps.ops.fit import fit_normalized
from qmaps.sweep import measure

LEAST = 128
"""Units of a tensor that are measured at least; all of them where there are no more."""

LARGEST = 2**24
"""Elements of the largest tensor of which all elements are measured if no sample is asked for."""

SAMPLE = 2**20
"""Elements that are measured of larger ones, about."""


@dataclass(frozen=True)
class Units:
    """The measured units of one tensor.

    Attributes:
        size: elements of a unit; the last of the tensor may have fewer.
        count: number of units in the tensor.
        chosen: numbers of the measured units, ascending.
        certain: bool, True for units chosen by their size.
    """

    size: int
    count: int
    chosen: NDArray[np.int64]
    certain: NDArray[np.bool_]

    @property
    def weights(self) -> NDArray[np.float64]:
        """Number of units of the tensor represented by each chosen one."""
        drawn = int((~self.certain).sum())
        return np.where(self.certain, 1.0, (self.count - self.certain.sum()) / drawn)


def share_of_large(shape: Sequence[int], quantizers: Iterable[Quantizer]) -> float | None:
    """The share of a tensor that a sweep measures if no sample is asked for.

    None to measure all of it: a tensor of at most `LARGEST` elements, or one of which a quantizer
    needs the whole.
    """
    numel = math.prod(shape)
    in_full = numel <= LARGEST or any(
        q.low_rank is not None or q.normalizer.extents(len(shape)) is None for q in quantizers
    )
    return None if in_full else SAMPLE / numel


def unit_of(shape: Sequence[int], normalizers: Iterable[Normalizer]) -> int:
    """Number of elements of a unit: whole rows, and whole blocks of every normalizer.

    Raises:
        BadValueError: a normalizer does not say what its scales span.
    """
    size = math.prod(shape[1:])
    for normalizer in normalizers:
        extents = normalizer.extents(len(shape))
        if extents is None:
            raise BadValueError(
                f"sample cannot be combined with {normalizer.spec}, which does not say what its "
                "scales span; leave it out or measure all elements"
            )
        size = math.lcm(size, *(extent.block for extent in extents if extent.block))
    return size


def count_of(numel: int, size: int, share: float) -> int | None:
    """Number of measured units of a tensor; None for all of them."""
    count = -(-numel // size)
    wanted = max(LEAST, math.ceil(share * count))
    return None if wanted >= count else wanted


def choose_units(
    parameter: str,
    shape: Sequence[int],
    size: int,
    wanted: int,
    squares: Iterable[NDArray[np.float64]],
) -> Units:
    """Choose `wanted` of the units of a parameter by the sums of squares of those of each state."""
    total = sum(of_state / of_state.sum() for of_state in squares if of_state.any())
    count = -(-math.prod(shape) // size)
    order = np.argsort(-(np.zeros(count) + total), kind="stable")
    largest = order[: wanted // 4]
    hashes = _hashes(parameter, count)
    hashes[largest] = 0  # before all others
    chosen = np.sort(np.argsort(hashes, kind="stable")[:wanted]).astype(np.int64)
    return Units(size, count, chosen, np.isin(chosen, largest))


def _hashes(parameter: str, count: int) -> NDArray[np.uint64]:
    """Splitmix64 of the numbers below `count`, begun at a hash of the name."""
    seed = np.frombuffer(
        hashlib.sha256(parameter.encode(errors="surrogatepass")).digest()[:8], "<u8"
    )[0]
    z = seed + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return hashes


SLAB = 2**20
"""Elements of a slab, about, unless a unit has more."""


@dataclass(frozen=True)
class Slabs:
    """A state read in slabs: consecutive rows of whole units.

    Attributes:
        shape: its shape, of at least one dimension.
        read: reads its elements from one flat index up to another.
    """

    shape: tuple[int, ...]
    read: Part

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def slabs(self, unit: int) -> Iterator[Tensor]:
        """Yield all slabs, float32 of shape (rows, *shape[1:]), of whole units but for the last."""
        step = unit * max(1, SLAB // unit)
        for begin in range(0, self.numel, step):
            yield self._rows(begin, begin + step)

    def chosen(self, numbers: NDArray[np.int64], unit: int) -> Tensor:
        """The rows of some units, float32 of shape (rows, *shape[1:])."""
        return torch.cat([self._rows(int(n) * unit, (int(n) + 1) * unit) for n in numbers])

    def _rows(self, begin: int, end: int) -> Tensor:
        return self.read(begin, min(end, self.numel)).view(-1, *self.shape[1:])

    def surveyed(
        self, unit: int, scalers: Iterable[Scaler] = ()
    ) -> tuple[NDArray[np.float64], float, bool]:
        """Read all elements once, for sums of squares and for scalers, which look at each slab.

        Returns:
            The sum of the squares of each unit, the mean of all squares, and whether an element is
            negative.
        """
        squares, total, negative = [], 0.0, False
        for x in self.slabs(unit):
            squares.append(per_unit(x.double().square(), unit))
            total += float(np.square(x.numpy().ravel(), dtype=np.float64).sum())
            negative |= bool((x < 0).any())
            for scaler in scalers:
                scaler.look(x)
        return np.concatenate(squares), total / self.numel, negative


class Scaler:
    """Computes a normalizer's scales of some rows, as from the whole state.

    Scales of blocks and of rows are those of the rows themselves. Those of the tensor and of other
    slices are maxima over all slabs, and so are the ends of grids of scales.
    """

    def __init__(self, normalizer: Normalizer, dims: int) -> None:
        self._parts: list[Scaler] = []
        if isinstance(normalizer, Minimum):
            self._parts = [Scaler(part, dims) for part in normalizer.parts]
            return
        self._format = normalizer if isinstance(normalizer, ScaleFormat) else None
        self._inner = normalizer if self._format is None else self._format.inner
        extents = self._inner.extents(dims) or ()
        self._local = [bool(extent.block) or 0 in extent.axes for extent in extents]
        self._maxima: list[Tensor] = []
        self._ends: list[Tensor] = []

    def look(self, x: Tensor) -> None:
        """Look at the next slab."""
        if self._parts:
            for part in self._parts:
                part.look(x)
            return
        scales = self._inner.scales(x)
        local = [s for s, is_local in zip(scales, self._local, strict=True) if is_local]
        spanning = [s for s, is_local in zip(scales, self._local, strict=True) if not is_local]
        pairs = zip(self._maxima, spanning, strict=True) if self._maxima else ()
        self._maxima = [torch.maximum(*pair) for pair in pairs] or spanning
        if self._format is not None and local:
            self._ends.append(self._format.ends(local))

    def scales(self, x: Tensor) -> Scales:
        """The scales of whole rows and whole blocks, after the last slab."""
        if self._parts:
            return tuple(scale for part in self._parts for scale in part.scales(x))
        maxima = iter(self._maxima)
        local_scales = self._inner.scales(x)
        parts = [
            part if local else next(maxima)
            for part, local in zip(local_scales, self._local, strict=True)
        ]
        if self._format is None:
            return tuple(parts)
        ends = [*self._ends, *([self._format.ends(self._maxima)] if self._maxima else ())]
        return self._format.stored(parts, self._format.ends(ends))


def per_unit(values: Tensor, size: int) -> NDArray[np.float64]:
    """The sum of each `size` consecutive elements, float64; the last may be of fewer."""
    flat = values.reshape(-1)
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % size))
    sums: NDArray[np.float64] = padded.view(-1, size).numpy().sum(axis=1)
    return sums


CONFIDENCE = 0.95
"""Probability with which an interval covers the mean over all elements."""


def sampled_rows(
    states: CapturedStates, parameter: str, names: Sequence[str], share: float, specs: measure.Specs
) -> Iterator[dict[str, Any]] | None:
    """Yield the rows of one parameter, measured on a sample; None if it has too few units for one.

    The states, all of one shape, are read once, a slab at a time: for their signs, the largest
    units, and the scales of the whole tensor. Then the chosen rows are read. Means and
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
    normalizers = {q.normalizer for q in measure.quantizers_of(*specs)}
    size = unit_of(shape, normalizers)
    count = count_of(math.prod(shape), size, share)
    if count is None:
        return None
    opened = {name: Slabs(shape, states.opened(parameter, name)) for name in names}
    scalers = {name: {n: Scaler(n, len(shape)) for n in normalizers} for name in names}
    surveys = {name: state.surveyed(size, scalers[name].values()) for name, state in opened.items()}
    wanted = measure.wanted_of({name: survey[2] for name, survey in surveys.items()}, *specs)
    for name, quantizers in wanted.items():
        for q in quantizers:
            if surveys[name][2] and not q.map.signed:
                raise BadValueError(
                    f"{name} of {parameter!r} holds negative elements; {q.map.spec} is unsigned; "
                    "use a signed map"
                )
    squares = (of_state for of_state, _, _ in surveys.values())
    chosen = choose_units(parameter, shape, size, count, squares)
    samples = {
        name: Sample(
            x := state.chosen(chosen.chosen, size),
            {normalizer: scaler.scales(x) for normalizer, scaler in scalers[name].items()},
            surveys[name][1],
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
            given = sample.scales[q.normalizer]
            codes, parts = reference.quantize(x, q.normalizer, map_, q.noise(None), given)
            y = reference.dequantize(codes, parts, q.normalizer, map_)
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
