"""Second moments of presets follow a moving average; some, rounded to nearest, do not."""

from __future__ import annotations

import pytest

from benchmarks.moving_average import follow
from qmaps.optim.presets import PRESETS, pair_of

pytestmark = pytest.mark.slow


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
    factor = 2.0 if preset != "8bit" else 1.2 if gradients == "one" else 1.1
    assert 1 / factor < float(ratio) < factor


def test_second_moments_rounded_to_nearest_do_not_follow() -> None:
    assert PRESETS["paper-8bit"].unsigned == "B{block}/DE@8u"
    for spec in ("B256/DE-0@8u", "B256/geometric@8u", "rank1/linear@4u"):
        ratio = (follow(spec, "fall", 2048) / follow(None, "fall", 2048)).log().mean().exp()
        assert float(ratio) > 5
