"""Which specs measure a large tensor in chunks, and where the chunks end.

A chunk is a range of elements in row-major order. Whether there are chunks, and their boundaries,
follow from the tensor's size and from the spec alone, so a row has the same bits whatever else is
measured, by how many workers, and with how much memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from qmaps import metrics
from qmaps.algebra.pair import Pair
from qmaps.algebra.quantizer import Quantizer
from qmaps.maps.fitted import FittedMap
from qmaps.sweep.spanning import supports

LARGEST = 3 * 2**24
"""Elements of a tensor that is measured as a whole, at most."""

LARGEST_SLOW = 2**24
"""The same under specs that need more memory: Lloyd-Max, and codes wider than 8 bits."""

CHUNK = 2**19
"""Elements of a chunk, unless blocks are larger or do not divide it."""

FIT = 2**24
"""Elements that a map is fitted to, about."""

PIECE = 2**16
"""Elements of each piece of the sample that a map is fitted to, about."""

WIDEST = 8
"""Bits of the widest codes that engines measure in one pass."""


def quantizers_of(spec: Quantizer | Pair) -> list[Quantizer]:
    """The quantizers of a spec, without those of moments that stay in 32 bits."""
    both = [spec] if isinstance(spec, Quantizer) else [spec.first, spec.second]
    return [q for q in both if q is not None]


def is_slow(q: Quantizer) -> bool:
    """Whether measuring a whole tensor needs much memory for each element."""
    return q.map.weighted if isinstance(q.map, FittedMap) else q.map.bits > WIDEST


def in_chunks(spec: Quantizer | Pair, numel: int, dims: int) -> bool:
    """Whether a spec measures a tensor in chunks.

    Args:
        spec: a quantizer or a pair.
        numel: number of elements of the tensor.
        dims: number of its dimensions.

    Returns:
        False for tensors that are small enough, and for all where a normalizer does not say what
        its scales span, or a metric has no form for sums.
    """
    every = quantizers_of(spec)
    largest = LARGEST_SLOW if any(map(is_slow, every)) else LARGEST
    return (
        numel > largest
        and metrics.SUMMED.keys() == metrics.METRICS.keys()
        and all(supports(q.normalizer, dims) for q in every)
    )


def step_of(quantizers: Iterable[Quantizer], dims: int) -> int:
    """Elements of a chunk: whole blocks of every normalizer, `CHUNK` or close to it."""
    unit = unit_of(quantizers, dims)
    return unit * max(1, CHUNK // unit)


def unit_of(quantizers: Iterable[Quantizer], dims: int) -> int:
    """The smallest number of elements that is a whole number of blocks of every normalizer."""
    blocks = [e.block for q in quantizers for e in q.normalizer.extents(dims) or () if e.block]
    return math.lcm(1, *blocks)


def ranges(numel: int, step: int) -> Iterator[tuple[int, int]]:
    """The first element of each chunk and the one after its last."""
    for begin in range(0, numel, step):
        yield begin, min(begin + step, numel)


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
