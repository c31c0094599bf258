"""Dividing the specs of a large parameter among items.

Each item reads the whole parameter, at once or in chunks (`qmaps.sweep.chunks`), and measures some
of the specs, so a row is computed in one place and has the same bits however the specs are divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from qmaps.algebra.pair import Pair
from qmaps.algebra.quantizer import Quantizer
from qmaps.errors import BadValueError
from qmaps.maps.fitted import FittedMap
from qmaps.sweep.chunks import FIT, is_slow, quantizers_of, step_of
from qmaps.sweep.measure import MOMENTS, Specs, specs_in_chunks
from qmaps.sweep.spanning import bytes_of_scales

WORK = 2**30
"""Elements times specs of an item, at most, unless it has one spec: some ten seconds of a core."""

BASE = 24
"""Bytes per element that an item needs whatever it measures: states and temporary float64."""

SLOW = 49
"""Bytes per element beside `BASE` for Lloyd-Max fits, and codes wider than 8 bits on the reference.
"""
QUANTILES = 6
"""Bytes per element beside `BASE` for fits of quantiles."""

IN_CHUNKS = 120
"""Bytes per element of a chunk for its moments and temporary numbers."""

COUNTERS = 5 * 2**20
"""Bytes in which the errors of a pair are counted, where a tensor is read in chunks."""

GIB = 2**30
MEMORY = 2 * GIB
"""Bytes that an item may use, by default."""

Range = tuple[int, int]


def divided(
    parameter: str,
    shapes: Mapping[str, tuple[int, ...]],
    specs: Specs,
    memory: int | None = MEMORY,
    in_parts: bool = True,
) -> list[Range | None]:
    """The parts of the specs that items of one parameter measure.

    Args:
        parameter: its name.
        shapes: the shape of each of its states.
        specs: what is measured, singles first. A part has as many as the others, or one less.
        memory: bytes that one item may use; None sets no limit.
        in_parts: whether chunks of the states can be read without the whole.

    Returns:
        Numbers of the first spec and of the one after the last; [None] where one item measures all.

    Raises:
        BadValueError: a spec alone needs more than `memory`.
    """
    singles, pairs = specs
    # Without both moments nothing is measured for pairs, which all go to the last item.
    count = len(singles) + (len(pairs) if shapes.keys() >= MOMENTS else 0)
    numel = max(map(math.prod, shapes.values()))
    for parts in range(max(1, min(count, -(-numel * count // WORK))), max(1, count) + 1):
        ends = [number * count // parts for number in range(parts + 1)]
        found = list(zip(ends[:-1], [*ends[1:-1], len(singles) + len(pairs)], strict=True))
        needed = (
            max(_bytes(shapes, specs, part, in_parts) for part in found)
            if memory is not None
            else 0
        )
        if memory is None or needed <= memory:
            return [None] if parts == 1 else [*found]
    assert memory is not None
    raise BadValueError(
        f"memory={memory / GIB:.3g} GiB is not enough for {parameter!r}, which has {numel} "
        f"elements and needs {math.ceil(100 * needed / GIB) / 100:.2f} GiB"
    )


def _bytes(shapes: Mapping[str, tuple[int, ...]], specs: Specs, part: Range, in_parts: bool) -> int:
    """An estimate of the memory for the specs of a part, measured on large tensors."""
    singles, pairs = specs
    begin, end = part
    chosen = (
        singles[begin:end],
        pairs[max(0, begin - len(singles)) : max(0, end - len(singles))],
    )
    chunked = specs_in_chunks(shapes, chosen)
    needed = max(_bytes_whole(shapes, chosen, chunked), _bytes_in_chunks(shapes, chunked))
    if chunked and not in_parts:
        needed += 4 * sum(map(math.prod, shapes.values()))
    return needed


def _bytes_whole(
    shapes: Mapping[str, tuple[int, ...]], specs: Specs, chunked: AbstractSet[Quantizer | Pair]
) -> int:
    """The memory for specs that measure whole tensors: all but `chunked`."""
    singles, pairs = specs
    own = [pair for pair in pairs if pair not in chunked]
    kept = {
        "exp_avg": {pair.first for pair in own},
        "exp_avg_sq": {pair.second for pair in own},
    }
    every = {*singles, *(q for pair in pairs for q in quantizers_of(pair))} - chunked
    if not every and not own:
        return 0
    numel = max(map(math.prod, shapes.values()))
    total = BASE * numel + 4 * numel * max(0, len(shapes) - 2)
    for name, shape in shapes.items():
        total += sum(q.nbytes(shape) for q in kept.get(name, ()) if q is not None)
    return total + numel * max(map(_temporary, every), default=0)


def _bytes_in_chunks(
    shapes: Mapping[str, tuple[int, ...]], chunked: AbstractSet[Quantizer | Pair]
) -> int:
    """The memory for specs that measure chunks."""
    if not chunked:
        return 0
    shape = max(shapes.values(), key=math.prod)
    dims = len(shape)
    every = {q for spec in chunked for q in quantizers_of(spec)}
    scales = sum(bytes_of_scales(normalizer, shape) for normalizer in {q.normalizer for q in every})
    scales *= len(shapes)
    counters = COUNTERS * sum(isinstance(spec, Pair) for spec in chunked)
    step = max(step_of(quantizers_of(spec), dims) for spec in chunked)
    passes = min(step, math.prod(shape)) * (IN_CHUNKS + 4 * len(every))
    fits = [FIT * (BASE + _temporary(q)) for q in every if isinstance(q.map, FittedMap)]
    return scales + max(counters + passes, *fits, 0)


def _temporary(q: Quantizer) -> int:
    """Bytes per element that measuring a quantizer needs beside `BASE`."""
    if is_slow(q):
        return SLOW
    return QUANTILES if isinstance(q.map, FittedMap) else 0
