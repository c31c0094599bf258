"""Every formula map at every width against its definition, in exact fractions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from qmaps.maps.base import Map
from tests.helpers import formula_maps

TENTH, ONE = Fraction(1, 10), Fraction(1)


def cells(count: int) -> list[Fraction]:
    """The midpoints of `count` equal cells of [0.1, 1]."""
    edges = [TENTH + (ONE - TENTH) * i / count for i in range(count + 1)]
    return [(low + high) / 2 for low, high in pairwise(edges)]


def bisect_leaves(low: Fraction, high: Fraction, levels: int, first: bool = True) -> list[Fraction]:
    """The middles of the leaf intervals: each level halves, but the first cuts at 0.45."""
    if levels == 0:
        return [(low + high) / 2]
    cut = Fraction(45, 100) if first else (low + high) / 2
    return bisect_leaves(low, cut, levels - 1, False) + bisect_leaves(cut, high, levels - 1, False)


def both_signs(magnitudes: list[Fraction], signed: bool) -> set[Fraction]:
    return {*magnitudes} | ({-m for m in magnitudes} if signed else set())


def dynamic(bits: int, signed: bool) -> set[Fraction]:
    free = bits - signed  # all bits except the sign
    results = [TENTH**zeros * m for zeros in range(bits - 1) for m in cells(_cells(free, zeros))]
    return both_signs(results, signed) | {Fraction(0), ONE}


def _cells(free: int, zeros: int) -> Fraction | int:
    """2**F with F = free - 1 - zeros; F = -1 of the last signed decade leaves no bit."""
    return 2 ** (free - 1 - zeros) if free - 1 - zeros >= 0 else 0


def table(bits: int, signed: bool) -> set[Fraction]:
    """The dynamic values nearest to 65536 points; of two equally near, the lower."""
    values = sorted(dynamic(bits, signed))
    points = [Fraction(2 * i, 65535) - 1 for i in range(65536)]
    middles = [(low + high) / 2 for low, high in pairwise(values)]
    return {values[bisect_left(middles, point)] for point in points if signed or point > 0}


def inverse(bits: int, signed: bool) -> set[Fraction]:
    free = bits - signed
    longest = max(zeros for zeros in range(bits - 1) if _cells(free, zeros))
    results = [TENTH ** (longest - zeros) * m for zeros in range(longest + 1)
             for m in cells(_cells(free, zeros))]  # fmt: skip
    return both_signs(results, signed) | {Fraction(0), ONE}


def tree(bits: int, signed: bool) -> set[Fraction]:
    free = bits - signed
    results = [TENTH**zeros * m for zeros in range(free - 1)
             for m in bisect_leaves(TENTH, ONE, free - 1 - zeros)]  # fmt: skip
    return both_signs([*results, ONE], signed) | {Fraction(0)}


def static_tree(bits: int, signed: bool) -> set[Fraction]:
    leaves = bisect_leaves(TENTH, ONE, 3)
    results = [TENTH**e * m for e in range(2 ** (bits - signed - 3)) for m in leaves]
    return both_signs(results, signed)


def mantissa(bits: int, signed: bool) -> set[Fraction]:
    results = [m * TENTH ** (e + 1) for m in range(2 ** (bits - signed - 3)) for e in range(8)]
    return both_signs(results, signed)


def linear(bits: int, signed: bool) -> set[Fraction]:
    if signed:
        return {-1 + Fraction(2 * i, 2**bits - 1) for i in range(2**bits)}
    return {Fraction(i + 1, 2**bits) for i in range(2**bits)}


def linear0(bits: int, signed: bool) -> set[Fraction]:
    top = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    return {Fraction(k, top) for k in range(-top if signed else 0, top + 1)}


def power(exponent: int) -> Callable[[int, bool], set[Fraction]]:
    return lambda bits, signed: {
        (1 if v > 0 else -1) * abs(v) ** exponent for v in linear(bits, signed)
    }


def log2(bits: int, signed: bool) -> set[Fraction]:
    return {Fraction(-1), *(Fraction(i, 2**bits - 2) for i in range(2**bits - 1))}


FORMULAS: dict[str, Callable[[int, bool], set[Fraction]]] = {
    "DE": dynamic,
    "DE-0": lambda bits, signed: dynamic(bits, signed) - {Fraction(0)},
    "DE-table": table,
    "inverse": inverse,
    "linear": linear,
    "linear0": linear0,
    "log2": log2,
    "mantissa": mantissa,
    "power2": power(2),
    "power3": power(3),
    "static-tree": static_tree,
    "tree": tree,
}


@pytest.mark.parametrize("map_", [m for m in formula_maps() if m.spec_name in FORMULAS], ids=str)
def test_every_value_is_that_of_the_formula(map_: Map) -> None:
    expected = sorted(FORMULAS[map_.spec_name](map_.bits, map_.signed))
    actual = map_.codebook().numpy()
    assert actual.size == len(expected)
    # One rounding to float64 and one to float32 apart from the fraction.
    assert np.all(
        np.abs(actual - np.array([float(v) for v in expected])) <= np.spacing(np.abs(actual))
    )
    exact_float32 = np.array([float(v) for v in expected], dtype=np.float64).astype(np.float32)
    assert np.mean(actual == exact_float32) > 0.95


@pytest.mark.parametrize("map_", formula_maps(), ids=str)
def test_zero_has_no_sign(map_: Map) -> None:
    values = map_.codebook().numpy()
    assert not np.signbit(values[values == 0]).any()
