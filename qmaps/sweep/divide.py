"""Dividing the specs of a large parameter among items.

Each item reads the whole parameter and measures some of the specs, so a row is computed in one
place and has the same bits however the specs are divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from qmaps.algebra.quantizer import Quantizer
from qmaps.errors import BadValueError
from qmaps.maps.fitted import FittedMap
from qmaps.sweep.measure import MOMENTS, Specs

WORK = 2**30
"""Elements times specs of an item, at most, unless it has one spec: some ten seconds of a core."""

BASE = 24
"""Bytes per element that an item needs whatever it measures: states and temporary float64."""

SLOW = 49
"""Bytes per element beside `BASE` for Lloyd-Max fits, and codes wider than 8 bits on the reference.
"""
QUANTILES = 6
"""Bytes per element beside `BASE` for fits of quantiles."""

WIDEST = 8
"""Bits of the widest codes that engines measure in one pass."""

GIB = 2**30

Part = tuple[int, int]


def divided(
    parameter: str,
    shapes: Mapping[str, tuple[int, ...]],
    specs: Specs,
    memory: int | None = None,
) -> list[Part | None]:
    """The parts of the specs that items of one parameter measure.

    Args:
        parameter: its name.
        shapes: the shape of each of its states.
        specs: what is measured, singles first. A part has as many as the others, or one less.
        memory: bytes that one item may use; None sets no limit.

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
        needed = max(_bytes(shapes, specs, part) for part in found) if memory is not None else 0
        if memory is None or needed <= memory:
            return [None] if parts == 1 else [*found]
    assert memory is not None
    raise BadValueError(
        f"memory={memory / GIB:.3g} GiB is not enough for {parameter!r}, which has {numel} "
        f"elements and needs {math.ceil(100 * needed / GIB) / 100:.2f} GiB"
    )


def _bytes(shapes: Mapping[str, tuple[int, ...]], specs: Specs, part: Part) -> int:
    """An estimate of the memory for the specs of a part, measured on large tensors."""
    singles, pairs = specs
    begin, end = part
    chosen = pairs[max(0, begin - len(singles)) : max(0, end - len(singles))]
    kept: dict[str, set[Quantizer | None]] = {
        "exp_avg": {pair.first for pair in chosen},
        "exp_avg_sq": {pair.second for pair in chosen},
    }
    numel = max(map(math.prod, shapes.values()))
    total = BASE * numel + 4 * numel * max(0, len(shapes) - 2)
    for name, shape in shapes.items():
        total += sum(q.nbytes(shape) for q in kept.get(name, ()) if q is not None)
    every = {*singles[begin:end], *kept["exp_avg"], *kept["exp_avg_sq"]}
    return total + numel * max(_temporary(q) for q in every)


def _temporary(q: Quantizer | None) -> int:
    """Bytes per element that measuring a quantizer needs beside `BASE`."""
    if q is None:
        return 0
    if isinstance(q.map, FittedMap):
        return SLOW if q.map.weighted else QUANTILES
    return SLOW if q.map.bits > WIDEST else 0
