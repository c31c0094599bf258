"""Measuring quantizers on a large parameter, of which some chunks are in memory at a time.

The parameter is read three times:

1. for the scales that span it (`qmaps.sweep.spanning`), and for what is known of its elements;
   then fitted maps are fitted to a sample,
2. chunk by chunk, for the sums of all errors and the upper halves of the quantiles of updates,
3. for their lower halves (`qmaps.sweep.order`), if there are pairs.

Maxima, counts and quantiles are those of the whole tensor. Float64 sums are added chunk by chunk in
the order of the tensor.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qmaps import metrics
from qmaps.algebra.pair import Pair, adam_update, zero_points
from qmaps.algebra.quantized import QuantizedTensor
from qmaps.algebra.quantizer import Quantizer, fit_normalized
from qmaps.analyze._updates import LEVELS, Exact, Moment, element_errors
from qmaps.capture import CapturedStates
from qmaps.capture.snapshot import Part
from qmaps.engines import dispatch, reference
from qmaps.engines.native import metrics as native
from qmaps.engines.philox import RoundingKey
from qmaps.errors import BadValueError
from qmaps.maps.base import Map, table
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Normalizer
from qmaps.sweep.chunks import CHUNK, quantizers_of, ranges, step_of, unit_of
from qmaps.sweep.order import OUT, Ranks
from qmaps.sweep.spanning import Elementwise, Scaler, is_local, scaler_of

FIT = 2**24
"""Elements that a map is fitted to, about."""

PIECE = 2**16
"""Elements of each piece of the sample that a map is fitted to, about."""

ELEMENTWISE = Elementwise()


@dataclass
class Looks:
    """What is known of the elements of a state.

    Attributes:
        square: sum of their squares.
        negative: how many are negative.
        first_negative: number of the first of them.
    """

    square: float = 0.0
    negative: int = 0
    first_negative: int = -1

    def add(self, x: Tensor, begin: int) -> None:
        """Look at a chunk."""
        self.square += float(np.square(x.numpy(), dtype=np.float64).sum())
        if x.min() < 0:
            negative = x < 0
            if not self.negative:
                self.first_negative = begin + int(negative.int().argmax())
            self.negative += int(negative.sum())


@dataclass
class State:
    """One state of a parameter, opened.

    Attributes:
        shape: its shape.
        read: reads its elements.
        looks: what is known of them.
        scalers: what finds the scales of each normalizer with scales that are not of blocks alone.
        frozen: quantizers with fitted maps, with the codebooks that were fitted.
    """

    shape: tuple[int, ...]
    read: Part
    looks: Looks
    scalers: dict[Normalizer, Scaler] = field(default_factory=dict)
    frozen: dict[Quantizer, Quantizer] = field(default_factory=dict)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @staticmethod
    def of(states: CapturedStates, parameter: str, name: str) -> State:
        """Open a state and look at all of it."""
        shape, read = states.shape(parameter, name), states.opened(parameter, name)
        looks = Looks()
        for begin, end in ranges(math.prod(shape), CHUNK):
            looks.add(read(begin, end), begin)
        return State(shape, read, looks)

    def bits(self, q: Quantizer | None) -> float:
        """Bits per element under a quantizer, or in 32 bits."""
        if q is None:
            return 32.0
        return 8 * self.frozen.get(q, q).nbytes(self.shape) / self.numel

    def prepare(self, quantizers: Sequence[Quantizer]) -> None:
        """Find the scales of quantizers and fit their maps.

        Raises:
            BadValueError: a map is unsigned, and elements are negative.
        """
        dims = len(self.shape)
        for q in quantizers:
            if self.looks.negative and not q.map.signed:
                raise BadValueError(
                    f"x holds {self.looks.negative} negative elements, the first at flat index "
                    f"{self.looks.first_negative}; {q.map.spec} is unsigned; use a signed map"
                )
        by_step: dict[int, list[Scaler]] = {}
        for q in quantizers:
            if q.normalizer not in self.scalers and not is_local(q.normalizer, dims):
                self.scalers[q.normalizer] = scaler_of(q.normalizer, self.shape)
                by_step.setdefault(step_of([q], dims), []).append(self.scalers[q.normalizer])
        for step, scalers in by_step.items():
            for begin, end in ranges(self.numel, step):
                x = self.read(begin, end)
                for scaler in scalers:
                    scaler.look(x, begin)
            for scaler in scalers:
                scaler.finish()
        groups: dict[Normalizer, list[Quantizer]] = {}
        for q in quantizers:
            if isinstance(q.map, FittedMap):
                groups.setdefault(q.normalizer, []).append(q)
        for chosen in groups.values():
            self.frozen |= dict(zip(chosen, self._fitted(chosen), strict=True))

    def _fitted(self, quantizers: Sequence[Quantizer]) -> list[Quantizer]:
        """Quantizers of one normalizer, fitted to pieces of whole blocks, spread evenly."""
        normalizer = quantizers[0].normalizer
        n, scale = [], []
        for begin, end in pieces(self.numel, unit_of(quantizers[:1], len(self.shape))):
            x = self.read(begin, end)
            scale.append(self._scale(normalizer, x, begin))
            n.append(ELEMENTWISE.normalize(x, (scale[-1],)))
        return fit_normalized(quantizers, torch.cat(n), torch.cat(scale))

    def _scale(self, normalizer: Normalizer, x: Tensor, begin: int) -> Tensor:
        if normalizer in self.scalers:
            return self.scalers[normalizer].expanded(x, begin)
        shape = tuple(x.shape)
        return normalizer.expand(normalizer.scales(x), shape).expand(shape)

    def encoded(self, q: Quantizer, x: Tensor, begin: int) -> tuple[metrics.Sums, Moment]:
        """The sums of a quantizer's errors on a chunk of whole blocks, and what became of it."""
        fitted = self.frozen.get(q, q)
        map_ = fitted.map
        key = RoundingKey(offset=begin) if q.stochastic else None
        normalizer = q.normalizer
        if normalizer not in self.scalers:
            found = dispatch.measure(x, normalizer, map_, key, keep=True)
            if found is not None:
                sums, packed, scales, _ = found
                assert packed is not None
                return sums, QuantizedTensor(fitted, tuple(x.shape), packed, scales)
            codes, scales = reference.quantize(x, normalizer, map_, key)
            decoded = reference.dequantize(codes, scales, normalizer, map_)
            return sums_of(x, decoded, codes, map_), decoded
        given = (self.scalers[normalizer].expanded(x, begin),)
        codes, _ = reference.quantize(x, ELEMENTWISE, map_, key, given)
        decoded = reference.dequantize(codes, given, ELEMENTWISE, map_)
        return sums_of(x, decoded, codes, map_), decoded


def sums_of(x: Tensor, decoded: Tensor, codes: Tensor, map_: Map) -> metrics.Sums:
    """The sums of a chunk."""
    return metrics.Sums.of(x, decoded, codes, table(map_).numel())


def pieces(numel: int, unit: int) -> Iterator[tuple[int, int]]:
    """The ranges of the sample of about `FIT` elements that maps are fitted to.

    Args:
        numel: number of elements of the tensor.
        unit: number of elements that each piece is a multiple of, but for the end of the tensor.
    """
    size = unit * max(1, PIECE // unit)
    count = max(1, FIT // size)
    if count * size >= numel:
        yield from ranges(numel, size)
        return
    for number in range(count):
        begin = number * (numel - size) // max(1, count - 1) // unit * unit
        yield begin, begin + size


@dataclass
class Errors:
    """The errors of the updates under one pair, in two passes over the chunks."""

    ranks: tuple[Ranks, Ranks] = field(default_factory=lambda: (Ranks(), Ranks()))
    collapsed: int = 0

    def add(self, found: ChunkErrors) -> None:
        """Add a chunk in the first pass."""
        for ranks, bits, total in zip(self.ranks, found.bits, found.totals, strict=True):
            ranks.add(bits, total)
        self.collapsed += found.collapsed

    def turn(self) -> None:
        """End the first pass."""
        for ranks in self.ranks:
            ranks.turn([*LEVELS.values(), 1.0])

    def add_again(self, found: ChunkErrors) -> None:
        """Add a chunk in the second pass."""
        for ranks, bits in zip(self.ranks, found.bits, strict=True):
            ranks.add_again(bits)

    def columns(self, numel: int) -> dict[str, float]:
        """As `qmaps.analyze._updates.Collector.columns`, of `numel` elements."""
        columns: dict[str, float] = {}
        for kind, ranks in zip(("abs", "rel"), self.ranks, strict=True):
            mean = ranks.total / ranks.count if ranks.count else math.nan
            values = [mean, *ranks.values(len(LEVELS) + 1)]
            names = ("mean", *LEVELS, "max")
            columns |= {f"{n}_{kind}_error": v for n, v in zip(names, values, strict=True)}
        return columns | {"zeroed_share": self.collapsed / numel}


@dataclass(frozen=True)
class ChunkErrors:
    """The errors of the updates of one chunk: absolute ones, and relative ones.

    Attributes:
        pair: the pair.
        bits: both as bits of float32; of relative ones that do not count, `OUT`.
        totals: their sums.
        collapsed: elements whose second moment decodes to 0 under a first one that does not.
    """

    pair: Pair
    bits: tuple[NDArray[np.uint32], NDArray[np.uint32]]
    totals: tuple[float, float]
    collapsed: int

    @staticmethod
    def of(pair: Pair, exact: Exact, first: Moment, second: Moment) -> ChunkErrors:
        """Measure a chunk on the native engine, or as the reference does; all on the CPU."""
        if dispatch.runs_native(exact.update):
            errors = _collectors.errors
            errors.clear()
            errors.add(exact.update, exact.v, _readable(first), _readable(second), exact.eps)
            _, collapsed, (_, total, _), (_, relative, _) = errors.summary([])
            absolute_bits, relative_bits = (b.numpy().view(np.uint32) for b in errors.bits())
            bits = absolute_bits, relative_bits
            return ChunkErrors(pair, bits, (total, relative), collapsed)
        m, v = _values(first), _values(second)
        absolute, kept = element_errors(exact.update, adam_update(m, v, exact.eps))
        relative_bits = np.full(absolute.size, OUT, np.uint32)
        relative_bits[exact.update.numpy() != 0] = kept.view(np.uint32)
        totals = float(absolute.sum(dtype=np.float64)), float(kept.sum(dtype=np.float64))
        collapsed = int(zero_points(m, v, exact.v).sum())
        return ChunkErrors(pair, (absolute.view(np.uint32), relative_bits), totals, collapsed)


class _Collectors(threading.local):
    """A collector for each thread."""

    def __init__(self) -> None:
        self.errors = native.UpdateErrors()


_collectors = _Collectors()


def _readable(moment: Moment) -> Moment:
    if isinstance(moment, QuantizedTensor) and native.supports_tensor(moment):
        return moment
    return _values(moment).contiguous()


def _values(moment: Moment) -> Tensor:
    return (moment if isinstance(moment, Tensor) else moment.dequantize()).cpu()


S = TypeVar("S", Quantizer, Pair)
Totals = dict[tuple[str, Quantizer], metrics.Sums]
"""Sums by state and quantizer."""

Found = tuple[dict[tuple[str, Quantizer], dict[str, float]], dict[Pair, dict[str, float]]]


def measured_in_chunks(
    opened: Mapping[str, State],
    wanted: Mapping[str, Sequence[Quantizer]],
    pairs: Sequence[Pair],
    eps: float,
) -> Found:
    """Measure quantizers on the states of one parameter, and pairs on its moments.

    Args:
        opened: the states by name.
        wanted: the quantizers whose errors are measured on each.
        pairs: pairs of quantizers; if there are any, both moments are among the states.
        eps: Adam's eps.

    Returns:
        Metrics by state and quantizer, and by pair.

    Raises:
        BadValueError: a map is unsigned, and elements are negative.
    """
    for name, state in opened.items():
        of_pairs = [pair.first if name == "exp_avg" else pair.second for pair in pairs]
        moment = name in ("exp_avg", "exp_avg_sq")
        also = [q for q in of_pairs if q is not None] if moment else []
        state.prepare(list(dict.fromkeys([*wanted[name], *also])))
    sums: dict[tuple[str, Quantizer], metrics.Sums] = {}
    errors = {pair: Errors() for pair in pairs}
    if pairs:
        moments = Moments(opened["exp_avg"], opened["exp_avg_sq"], eps)
        for found in moments.errors_of(pairs, sums, wanted):
            errors[found.pair].add(found)
        for collected in errors.values():
            collected.turn()
        for found in moments.errors_of(pairs):
            errors[found.pair].add_again(found)
    for name, state in opened.items():
        _sum_up(name, state, [q for q in wanted[name] if (name, q) not in sums], sums)
    singles = {
        (name, q): {
            "bits_per_element": opened[name].bits(q),
            "mean_square": opened[name].looks.square / opened[name].numel,
            **metrics.measure_sums(total),
        }
        for (name, q), total in sums.items()
    }
    updates = {
        pair: {"bits_per_element": moments.bits(pair), **collected.columns(moments.first.numel)}
        for pair, collected in errors.items()
    }
    return singles, updates


def _sum_up(name: str, state: State, quantizers: Sequence[Quantizer], sums: Totals) -> None:
    """Add the sums of each quantizer over its own chunks."""
    for step, chosen in _by_step(quantizers, len(state.shape)).items():
        for begin, end in ranges(state.numel, step):
            x = state.read(begin, end)

            def measure(q: Quantizer, x: Tensor = x, begin: int = begin) -> metrics.Sums:
                return state.encoded(q, x, begin)[0]

            for q, own in zip(chosen, dispatch.each(measure, chosen, x), strict=True):
                _add(sums, (name, q), own)


def _add(sums: Totals, key: tuple[str, Quantizer], own: metrics.Sums) -> None:
    sums[key] = sums[key] + own if key in sums else own


@dataclass(frozen=True)
class Moments:
    """Both moments of a parameter, opened and prepared, and Adam's eps."""

    first: State
    second: State
    eps: float

    def bits(self, pair: Pair) -> float:
        """Bits per element of both moments under a pair, their mean."""
        return (self.first.bits(pair.first) + self.second.bits(pair.second)) / 2

    def errors_of(
        self,
        pairs: Sequence[Pair],
        sums: Totals | None = None,
        wanted: Mapping[str, Sequence[Quantizer]] | None = None,
    ) -> Iterator[ChunkErrors]:
        """Yield the errors of every chunk under every pair; those of a pair in their order.

        Args:
            pairs: the pairs.
            sums: where the sums of quantizers are added whose own chunks are those of pairs.
            wanted: the quantizers of each state that they are added of.
        """
        dims = len(self.first.shape)
        sides = (("exp_avg", self.first), ("exp_avg_sq", self.second))
        own_chunks: dict[int, set[tuple[str, Quantizer]]] = {}
        for name, chosen in (wanted or {}).items():
            for q in chosen:
                own_chunks.setdefault(step_of([q], dims), set()).add((name, q))
        for step, alike in _by_step(pairs, dims).items():
            quantizers = ([p.first for p in alike], [p.second for p in alike])
            work = [
                (name, state, q)
                for (name, state), own in zip(sides, quantizers, strict=True)
                for q in dict.fromkeys(own)
                if q is not None
            ]
            for begin, end in ranges(self.first.numel, step):
                given = {name: state.read(begin, end) for name, state in sides}
                m, v = given["exp_avg"], given["exp_avg_sq"]
                moments: dict[tuple[str, Quantizer | None], Moment] = {
                    (name, None): x for name, x in given.items()
                }

                def encoded(
                    each: tuple[str, State, Quantizer],
                    given: dict[str, Tensor] = given,
                    begin: int = begin,
                ) -> tuple[metrics.Sums, Moment]:
                    name, state, q = each
                    return state.encoded(q, given[name], begin)

                for (name, _, q), (own, moment) in zip(
                    work, dispatch.each(encoded, work, m), strict=True
                ):
                    moments[name, q] = moment
                    if sums is not None and (name, q) in own_chunks.get(step, ()):
                        _add(sums, (name, q), own)
                exact = Exact.of(m, v, self.eps)

                def of_pair(
                    pair: Pair,
                    exact: Exact = exact,
                    moments: dict[tuple[str, Quantizer | None], Moment] = moments,
                ) -> ChunkErrors:
                    both = moments["exp_avg", pair.first], moments["exp_avg_sq", pair.second]
                    return ChunkErrors.of(pair, exact, *both)

                yield from dispatch.each(of_pair, alike, exact.update)


def _by_step(specs: Sequence[S], dims: int) -> dict[int, list[S]]:
    """Specs by the number of elements of their chunks."""
    found: dict[int, list[S]] = {}
    for spec in specs:
        found.setdefault(step_of(quantizers_of(spec), dims), []).append(spec)
    return found
