"""Values spaced evenly in their logarithm, and moving averages that are stored in them."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.moving_average import follow
from qmaps.maps.geometric import Geometric
from qmaps.optim.presets import PRESETS, pair_of


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


@pytest.mark.parametrize("gradients", ["fall", "fall to a hundredth", "rise", "one"])
@pytest.mark.parametrize("preset", ["8bit", "4bit", "3bit", "2bit"])
def test_second_moments_of_presets_follow(preset: str, gradients: str) -> None:
    """Geometric mean over the elements, within a factor of 2, or a tenth in 8 bits."""
    second = pair_of(preset).second
    assert second is not None
    ratio = (
        (follow(second.spec, gradients, 2048) / follow(None, gradients, 2048)).log().mean().exp()
    )
    # Of "one", few elements count.
    within = 2.0 if preset != "8bit" else 1.2 if gradients == "one" else 1.1
    assert 1 / within < float(ratio) < within


def test_second_moments_rounded_to_nearest_do_not_follow() -> None:
    assert PRESETS["paper-8bit"].unsigned == "B{block}/DE@8u"
    for spec in ("B256/DE-0@8u", "B256/geometric@8u", "rank1/linear@4u"):
        ratio = (follow(spec, "fall", 2048) / follow(None, "fall", 2048)).log().mean().exp()
        assert float(ratio) > 5
