"""Measuring quantizers on a large parameter, of which some chunks are in memory at a time.

There are three passes over the parameter, and a sample of it is read for maps that are fitted:

1. for the scales that span it (`qmaps.sweep.spanning`), and for what is known of its elements,
2. chunk by chunk, for the sums of all errors and the upper halves of the quantiles of updates,
3. for their lower halves (`qmaps.sweep.order`), if there are pairs.

Maxima, counts and quantiles are those of the whole tensor. Float64 sums are added chunk by chunk in
the order of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from qmaps import metrics
from qmaps.algebra.pair import Pair
from qmaps.algebra.quantizer import Quantizer
from qmaps.analyze._updates import Exact, Moment
from qmaps.engines import dispatch
from qmaps.sweep.chunks import quantizers_of, ranges, step_of
from qmaps.sweep.state import State
from qmaps.sweep.updates import ChunkErrors, Errors

S = TypeVar("S", Quantizer, Pair)

Place = tuple[str, Quantizer | None]
"""A state, and the quantizer that it is stored with; None for 32 bits."""

Found = tuple[dict[tuple[str, Quantizer], dict[str, float]], dict[Pair, dict[str, float]]]
"""Metrics by state and quantizer, and by pair."""


def measured_in_chunks(
    opened: Mapping[str, State],
    wanted: Mapping[str, Sequence[Quantizer]],
    pairs: Sequence[Pair],
    eps: float,
) -> Found:
    """Measure quantizers on the states of one parameter, and pairs on its moments.

    Args:
        opened: the states by name, after the first pass for all of these quantizers.
        wanted: the quantizers whose errors are measured on each.
        pairs: pairs of quantizers; if there are any, both moments are among the states.
        eps: Adam's eps.

    Raises:
        BadValueError: a map is unsigned, and elements are negative.
    """
    of_pairs = dict.fromkeys(place for pair in pairs for place in places(pair))
    for name, state in opened.items():
        also = [q for where, q in of_pairs if where == name and q is not None]
        state.fit(list(dict.fromkeys([*wanted[name], *also])))
    sums = Sums(opened, wanted)
    errors = {pair: Errors() for pair in pairs}
    for chunk in encoded_chunks(opened, pairs, eps):
        sums.add(chunk)
        for pair, found in chunk.errors():
            errors[pair].add(found)
    for collected in errors.values():
        collected.turn()
    for chunk in encoded_chunks(opened, pairs, eps):
        for pair, found in chunk.errors():
            errors[pair].add_again(found)
    sums.complete()
    updates = {}
    for pair, collected in errors.items():
        bits = sum(opened[name].bits(q) for name, q in places(pair)) / 2
        columns = collected.columns(opened["exp_avg"].numel)
        updates[pair] = {"bits_per_element": bits, **columns}
    return sums.columns(), updates


def places(pair: Pair) -> tuple[Place, Place]:
    """The moments that the quantizers of a pair are for."""
    return ("exp_avg", pair.first), ("exp_avg_sq", pair.second)


class Sums:
    """The sums of errors of quantizers alone, over the chunks of each.

    Args:
        opened: the states by name.
        wanted: the quantizers that are measured on each.
    """

    def __init__(
        self, opened: Mapping[str, State], wanted: Mapping[str, Sequence[Quantizer]]
    ) -> None:
        self._opened = opened
        self._wanted = {(name, q): None for name, chosen in wanted.items() for q in chosen}
        self._found: dict[tuple[str, Quantizer], metrics.Sums] = {}

    def add(self, chunk: EncodedChunk) -> None:
        """Add what was encoded for pairs, if its chunks are those of a quantizer alone."""
        for (name, q), own in chunk.sums.items():
            if (name, q) in self._wanted and step_of([q], chunk.dims) == chunk.step:
                self._add((name, q), own)

    def complete(self) -> None:
        """Encode all chunks with the quantizers that nothing was added of."""
        missing = [key for key in self._wanted if key not in self._found]
        for name, state in self._opened.items():
            own = [q for where, q in missing if where == name]
            for step, chosen in _by_step(own, len(state.shape)).items():
                for begin, end in ranges(state.numel, step):
                    x = state.read(begin, end)

                    def measure(
                        q: Quantizer, state: State = state, x: Tensor = x, begin: int = begin
                    ) -> metrics.Sums:
                        return state.encoded(q, x, begin)[0]

                    for q, sums in zip(chosen, dispatch.each(measure, chosen, x), strict=True):
                        self._add((name, q), sums)

    def _add(self, key: tuple[str, Quantizer], own: metrics.Sums) -> None:
        self._found[key] = self._found[key] + own if key in self._found else own

    def columns(self) -> dict[tuple[str, Quantizer], dict[str, float]]:
        """The metrics of each state and quantizer."""
        columns = {}
        for (name, q), total in self._found.items():
            state = self._opened[name]
            columns[name, q] = {
                "bits_per_element": state.bits(q),
                "mean_square": state.looks.square / state.numel,
                **metrics.measure_sums(total),
            }
        return columns


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk of both moments, as the quantizers of some pairs encode it.

    Attributes:
        pairs: pairs with chunks of one size.
        dims: number of dimensions of the parameter.
        step: elements of every chunk but the last.
        exact: the update in 32 bits.
        moments: each moment in 32 bits and under each quantizer.
        sums: the errors of each quantizer.
    """

    pairs: Sequence[Pair]
    dims: int
    step: int
    exact: Exact
    moments: Mapping[Place, Moment]
    sums: Mapping[tuple[str, Quantizer], metrics.Sums]

    def errors(self) -> Iterator[tuple[Pair, ChunkErrors]]:
        """Yield each pair with its errors, few of which are in memory at a time."""

        def of_pair(pair: Pair) -> ChunkErrors:
            first, second = places(pair)
            return ChunkErrors.of(self.exact, self.moments[first], self.moments[second])

        yield from zip(
            self.pairs, dispatch.each(of_pair, self.pairs, self.exact.update), strict=True
        )


def encoded_chunks(
    opened: Mapping[str, State], pairs: Sequence[Pair], eps: float
) -> Iterator[EncodedChunk]:
    """Yield every chunk of both moments, encoded; the chunks of a pair in their order.

    Args:
        opened: the states by name, with fitted maps; both moments if there are pairs.
        pairs: pairs of quantizers.
        eps: Adam's eps.
    """
    moments = {name: opened[name] for name in ("exp_avg", "exp_avg_sq")} if pairs else {}
    dims = len(moments["exp_avg"].shape) if pairs else 0
    for step, alike in _by_step(pairs, dims).items():
        every = dict.fromkeys(place for pair in alike for place in places(pair))
        work = [(name, q) for name, q in every if q is not None]
        for begin, end in ranges(moments["exp_avg"].numel, step):
            given = {name: state.read(begin, end) for name, state in moments.items()}

            def encode(
                place: tuple[str, Quantizer], given: dict[str, Tensor] = given, begin: int = begin
            ) -> tuple[metrics.Sums, Moment]:
                name, q = place
                return moments[name].encoded(q, given[name], begin)

            m, v = given.values()
            found = dict(zip(work, dispatch.each(encode, work, m), strict=True))
            kept: dict[Place, Moment] = {(name, None): x for name, x in given.items()}
            kept |= {place: moment for place, (_, moment) in found.items()}
            sums = {place: own for place, (own, _) in found.items()}
            yield EncodedChunk(alike, dims, step, Exact.of(m, v, eps), kept, sums)


def _by_step(specs: Sequence[S], dims: int) -> dict[int, list[S]]:
    """Specs by the number of elements of their chunks."""
    found: dict[int, list[S]] = {}
    for spec in specs:
        found.setdefault(step_of(quantizers_of(spec), dims), []).append(spec)
    return found
