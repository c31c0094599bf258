"""Dividing the specs of a large parameter among items.

Each item measures some of the specs on the whole parameter or on the same sample of it
(`qmaps.sweep.sample`), so a row is computed in one place and has the same bits however the specs
are divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from qmaps.algebra.quantizer import Quantizer
from qmaps.errors import BadValueError
from qmaps.maps.fitted import FittedMap
from qmaps.sweep.measure import FIT, MOMENTS, Specs, quantizers_of
from qmaps.sweep.units import SLAB, count_of, unit_of

WORK = 2**30
"""Elements times specs of an item, at most, unless it has one spec: some ten seconds of a core."""

BASE = 24
"""Bytes per element that an item needs whatever it measures: states and temporary float64."""

SLOW = 49
"""Bytes per element beside `BASE` for Lloyd-Max fits, and codes wider than 8 bits on the reference.
"""
QUANTILES = 6
"""Bytes per element beside `BASE` for fits of quantiles."""

SAMPLED = 120
"""Bytes per element of a slab or of a sample for its moments and temporary numbers."""

WIDEST = 8
"""Bits of the widest codes that engines measure in one pass."""

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
    share: float | None = None,
) -> list[Range | None]:
    """Divide the specs of one parameter among items.

    Args:
        parameter: its name.
        shapes: the shape of each of its states.
        specs: the specs, singles first. A part has as many as the others, or one less.
        memory: limit of bytes for one item; None sets no limit.
        in_parts: whether rows of the states can be read without the whole.
        share: measured share of the parameter; None for all of it.

    Returns:
        Numbers of the first spec and of the one after the last; [None] where one item measures all.

    Raises:
        BadValueError: a spec alone needs more than `memory`, or a normalizer does not go with a
            sample.
    """
    singles, pairs = specs
    # Without both moments nothing is measured for pairs, which all go to the last item.
    count = len(singles) + (len(pairs) if shapes.keys() >= MOMENTS else 0)
    numel = max(map(math.prod, shapes.values()))
    sampled = None if share is None else _sampled(shapes, specs, share)
    fewest = 1 if share is not None else max(1, min(count, -(-numel * count // WORK)))
    for parts in range(fewest, max(1, count) + 1):
        ends = [number * count // parts for number in range(parts + 1)]
        ranges = list(zip(ends[:-1], [*ends[1:-1], len(singles) + len(pairs)], strict=True))
        if memory is None:
            return [None] if parts == 1 else [*ranges]
        needed = 0 if in_parts or not sampled else 4 * sum(map(math.prod, shapes.values()))
        needed += max(_bytes(shapes, _some(specs, part), sampled) for part in ranges)
        if needed <= memory:
            return [None] if parts == 1 else [*ranges]
    assert memory is not None
    raise BadValueError(
        f"memory={memory / GIB:.3g} GiB is not enough for {parameter!r}, which has {numel} "
        f"elements and needs {math.ceil(100 * needed / GIB) / 100:.2f} GiB"
    )


def _some(specs: Specs, part: Range) -> Specs:
    singles, pairs = specs
    begin, end = (max(0, place - len(singles)) for place in part)
    return singles[slice(*part)], pairs[begin:end]


def _sampled(shapes: Mapping[str, tuple[int, ...]], specs: Specs, share: float) -> int | None:
    """Elements of the sample of a parameter, as `sampled_rows` chooses them; None for all."""
    if len(set(shapes.values())) > 1 or not (shape := next(iter(shapes.values()))):
        return None
    unit = unit_of(shape, {q.normalizer for q in quantizers_of(*specs)})
    count = count_of(math.prod(shape), unit, share)
    return None if count is None else unit * count


def _bytes(shapes: Mapping[str, tuple[int, ...]], specs: Specs, sampled: int | None) -> int:
    """An estimate of the memory for some specs, measured on large tensors."""
    singles, pairs = specs
    numel = max(map(math.prod, shapes.values()))
    every = quantizers_of(singles, pairs)
    if sampled:
        fitted_numel = min(numel, FIT)
        fits = [
            BASE * fitted_numel + _temporary(q, fitted_numel)
            for q in every
            if isinstance(q.map, FittedMap)
        ]
        return max(SAMPLED * SLAB, sampled * (SAMPLED + 4 * len(every)), *fits)
    total = BASE * numel + 4 * numel * max(0, len(shapes) - 2)
    stored = {
        "exp_avg": {pair.first for pair in pairs},
        "exp_avg_sq": {pair.second for pair in pairs},
    }
    for name, shape in shapes.items():
        total += sum(q.nbytes(shape) for q in stored.get(name, ()) if q is not None)
    return total + max((_temporary(q, numel) for q in every), default=0)


def _temporary(q: Quantizer, numel: int) -> int:
    """Bytes for measuring a quantizer beside `BASE`."""
    if isinstance(q.map, FittedMap):
        return max(SLOW * min(numel, FIT) if q.map.weighted else 0, QUANTILES * numel)
    return SLOW * numel if q.map.bits > WIDEST else 0
