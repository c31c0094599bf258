"""Values spaced evenly in their logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from qmaps.errors import BadTypeError, BadValueError
from qmaps.maps.geometric import Geometric


@pytest.mark.parametrize(
    ("bits", "octaves"),
    [(2, 9), (3, 10.5), (4, 15), (5, 15.5), (6, 15.75), (7, 15.875), (8, 31.875)],
)
def test_the_smallest_value_and_the_gaps(bits: int, octaves: float) -> None:
    map_ = Geometric(bits)
    values = map_.codebook().double()
    assert len(values) == 2**bits
    assert float(values[-1]) == 1
    lowest = math.floor(-octaves)
    expected = 2.0**-octaves if bits <= 4 else 2.0**lowest * (1 - octaves - lowest)
    assert float(values[0]) == pytest.approx(expected, rel=1e-6)
    ratios = (values[1:] / values[:-1]).log2()
    assert float(ratios.mean()) == pytest.approx(map_.gap, rel=0.02)
    assert float(ratios.max()) < 1.5 * map_.gap
    assert map_.bend == pytest.approx(math.log(2) * map_.gap / 2)


def test_values_of_4_bits() -> None:
    assert torch.equal(Geometric(4).codebook(), 2.0 ** torch.arange(-15.0, 1.0))


@pytest.mark.parametrize(
    ("bend", "message"),
    [
        (-0.5, "bend=-0.5 of geometric must be between 0 and 2**20"),
        (math.inf, "bend=inf of geometric must be between 0 and 2**20"),
        (math.nan, "bend=nan of geometric must be between 0 and 2**20"),
        ("1", "bend='1' must be a number"),
    ],
)
def test_a_bend_that_engines_cannot_use_is_refused(bend: object, message: str) -> None:
    @dataclass(frozen=True)
    class Bent(Geometric):
        @property
        def bend(self) -> float:
            return bend  # type: ignore[return-value]

    with pytest.raises((BadValueError, BadTypeError)) as error:
        Bent(4)
    assert str(error.value) == message
