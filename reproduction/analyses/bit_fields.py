"""The bits of numbers in the data types of 2015."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch
from itertools import product

import pandas as pd
import torch

from qmaps.errors import BadValueError
from qmaps.maps.base import Map
from qmaps.maps.linear0 import Linear0
from qmaps.maps.mantissa import Mantissa
from qmaps.maps.static_tree import StaticTree
from qmaps.maps.tree import DynamicTree
from qmaps.normalize.tensor import PerTensor

Bits = tuple[int, ...]
Pattern = tuple[tuple[tuple[str, Bits], ...], float]
"""Fields as (name, bits), in the order of the bits, and their magnitude."""


def bit_fields(maps: Iterable[Map], values: Sequence[float]) -> pd.DataFrame:
    """The bits of numbers in data types with fields of bits.

    A code of `qmaps` is a place in the sorted codebook. The bits here are those of the paper's data
    types: a sign, followed by

    - `tree`: one zero for each power of ten of the exponent, a flag bit, and the path through the
      bisection of [0.1, 1] (a bit of 0 takes the lower half). A pattern without the flag decodes to
      0; a pattern with the flag as its last bit decodes to 1;
    - `static-tree`: an exponent of fixed width, and the same bisection;
    - `mantissa`: an exponent of fixed width, and an integer;
    - `linear0`: an integer.

    Args:
        maps: signed maps of those types.
        values: numbers in [-1, 1].

    Returns:
        One row per map, number and bit: `map` (such as ``tree@8s``), `value`, `decoded` (the
        codebook value nearest to the number), `bit` (place, from 0), `set` (0 or 1), `field` (name
        of the bit's field).

    Raises:
        BadValueError: a map is of another type or unsigned, or a value is out of range.

    Source: 8-bit approximations for parallelism, section 3.1 and figure 1. The paper does not state
    the order of the fields in the types with fixed fields; the order here is a choice.
    """
    for value in values:
        if not -1 <= value <= 1:
            raise BadValueError(f"values holds {value!r}; every value must be between -1 and 1")
    rows = []
    for map_ in maps:
        if not map_.signed:
            raise BadValueError(
                f"maps holds {map_.spec}, which is unsigned; every map must be signed"
            )
        by_magnitude = fields_of(map_)
        # The appended 1 makes the scale 1.
        exact = torch.tensor([*values, 1.0], dtype=torch.float32)
        decoded = (PerTensor() / map_).quantize(exact).dequantize()[:-1]
        for value, number in zip(values, decoded.tolist(), strict=True):
            fields = [("sign", (int(number < 0),)), *by_magnitude[abs(number)]]
            bits = [(name, bit) for name, pattern in fields for bit in pattern]
            rows += [
                {
                    "map": map_.spec,
                    "value": value,
                    "decoded": number,
                    "bit": place,
                    "set": bit,
                    "field": name,
                }
                for place, (name, bit) in enumerate(bits)
            ]
    return pd.DataFrame(rows)


def fields_of(map_: Map) -> dict[float, tuple[tuple[str, Bits], ...]]:
    """The fields after the sign by magnitude; of several patterns of one magnitude the first."""
    codebook = map_.codebook()
    by_magnitude: dict[float, tuple[tuple[str, Bits], ...]] = {}
    for fields, magnitude in patterns(map_):
        # A magnitude computed from its bits may differ from the codebook's in the last place.
        nearest = float(codebook[(codebook - magnitude).abs().argmin()])
        by_magnitude.setdefault(nearest, fields)
    return by_magnitude


@singledispatch
def patterns(map_: Map) -> Iterator[Pattern]:
    """Every pattern of the bits after the sign, and its magnitude, computed from the bits alone.

    Raises:
        BadValueError: the map has no fields of bits.
    """
    raise BadValueError(
        f"maps holds {map_.spec}; allowed are tree, static-tree, mantissa and linear0"
    )


@patterns.register
def _(map_: DynamicTree) -> Iterator[Pattern]:
    width = map_.bits - 1
    for zeros in range(width + 1):
        path_bits = width - zeros - 1
        lead = (("zeros", (0,) * zeros),) if zeros else ()
        if path_bits < 0:
            yield lead, 0.0
            continue
        for way in product((0, 1), repeat=path_bits):
            tree = (("tree", way),) if way else ()
            yield (*lead, ("flag", (1,)), *tree), 10.0**-zeros * bisect(way) if way else 1.0


@patterns.register
def _(map_: StaticTree) -> Iterator[Pattern]:
    width = map_.bits - 1 - map_.tree_bits
    for exponent in product((0, 1), repeat=width):
        for way in product((0, 1), repeat=map_.tree_bits):
            size = 10.0 ** (map_.offset - integer(exponent)) * bisect(way)
            yield (("exponent", exponent), ("tree", way)), size


@patterns.register
def _(map_: Mantissa) -> Iterator[Pattern]:
    width = map_.bits - 1 - map_.exponent_bits
    for exponent in product((0, 1), repeat=map_.exponent_bits):
        for mantissa in product((0, 1), repeat=width):
            size = integer(mantissa) * 10.0 ** (map_.offset - 1 - integer(exponent))
            yield (("exponent", exponent), ("mantissa", mantissa)), size


@patterns.register
def _(map_: Linear0) -> Iterator[Pattern]:
    if map_.full:
        raise BadValueError(f"maps holds {map_.spec}, whose codes are no integers")
    width = map_.bits - 1
    for number in product((0, 1), repeat=width):
        yield (("integer", number),), integer(number) / (2**width - 1)


def bisect(way: Bits) -> float:
    """The middle of the last interval of a path through the bisection of [0.1, 1].

    The first bit splits at 0.45, and every further one in the middle; 0 takes the lower part.
    """
    low, high, middle = 0.1, 1.0, 0.45
    for upper in way:
        low, high = (middle, high) if upper else (low, middle)
        middle = (low + high) / 2
    return middle


def integer(bits: Bits) -> int:
    """The number with these binary digits."""
    return int("".join(map(str, bits)), 2)
