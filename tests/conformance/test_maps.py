"""What holds for every map."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from qmaps import reference
from qmaps.maps.base import Map
from qmaps.philox import RoundingKey
from tests.helpers import fitted_maps, formula_maps

MAPS = formula_maps()
FITTED = [m.fit(torch.randn(5000, generator=torch.Generator().manual_seed(1)) ** (2 - m.signed))
          for bits in (2, 3, 8) for m in fitted_maps(bits)]  # fmt: skip
by_spec = pytest.mark.parametrize("map_", [*MAPS, *FITTED], ids=str)


def brute_force(n: torch.Tensor, codebook: torch.Tensor) -> list[int]:
    """The nearest code in exact arithmetic, ties to the lower one."""
    exact = [Fraction(value) for value in codebook.tolist()]
    codes = []
    for value in map(Fraction, n.tolist()):
        distances = [abs(value - candidate) for candidate in exact]
        codes.append(distances.index(min(distances)))
    return codes


def nearby(codebook: torch.Tensor) -> torch.Tensor:
    """Values around every threshold and codebook value, between them, and outside."""
    thresholds = reference.thresholds(codebook)
    points = torch.cat([codebook, thresholds])
    if points.numel() > 60:
        points = points[torch.linspace(0, points.numel() - 1, 60).long()]
    inf = torch.tensor(torch.inf)
    around = [points, torch.nextafter(points, inf), torch.nextafter(points, -inf)]
    outside = torch.stack([codebook[0] - 1, codebook[-1] + 1, codebook[0] * 3, codebook[-1] * 3])
    between = codebook[:-1] + torch.rand(codebook.numel() - 1) * codebook.diff()
    return torch.cat([*around, outside, between[:60], torch.zeros(1)])


@by_spec
def test_codebook_is_sorted_finite_float32_and_fits_the_width(map_: Map) -> None:
    codebook = map_.codebook()
    assert codebook.dtype == torch.float32
    assert codebook.dim() == 1
    assert bool(codebook.isfinite().all())
    assert 2 <= codebook.numel() <= 2**map_.bits
    assert bool((codebook.diff() > 0).all())
    if not map_.signed and not map_.log_domain:
        assert float(codebook[0]) >= 0


@by_spec
def test_codebook_is_pure(map_: Map) -> None:
    first = map_.codebook()
    kept = first.clone()
    first.fill_(7.0)
    assert torch.equal(map_.codebook(), kept)


@by_spec
def test_every_value_encodes_to_its_own_code_and_decodes_to_itself(map_: Map) -> None:
    codebook = map_.codebook()
    codes = reference.encode(codebook, map_)
    assert torch.equal(codes, torch.arange(codebook.numel(), dtype=torch.int32))
    assert torch.equal(reference.decode(codes, map_), codebook)


@by_spec
def test_nearest_code_is_exact(map_: Map) -> None:
    codebook = map_.codebook()
    if codebook.numel() > 4096:
        pytest.skip("brute force over 65536 values is left to the linear oracle below")
    n = nearby(codebook)
    assert reference.encode(n, map_).tolist() == brute_force(n, codebook)


@pytest.mark.parametrize("map_", [m for m in MAPS if m.codebook().numel() > 4096], ids=str)
def test_nearest_code_of_large_codebooks_is_exact(map_: Map) -> None:
    codebook = map_.codebook().double().numpy()
    n = torch.rand(20_000, generator=torch.Generator().manual_seed(2)) * 2.2 - 1.1
    codes = reference.encode(n, map_).numpy()
    # Two float32 in [-2, 2] have an exact float64 distance, so comparing neighbours is exact.
    distance = np.abs(n.double().numpy() - codebook[codes])
    below = np.abs(n.double().numpy() - codebook[np.maximum(codes - 1, 0)])
    above = np.abs(n.double().numpy() - codebook[np.minimum(codes + 1, codebook.size - 1)])
    assert np.all((distance < below) | (codes == 0))
    assert np.all((distance <= above) | (codes == codebook.size - 1))


@by_spec
def test_error_is_at_most_half_a_gap_and_outside_values_clip(map_: Map) -> None:
    codebook = map_.codebook()
    n = codebook[0] + torch.rand(4000) * (codebook[-1] - codebook[0])
    codes = reference.encode(n, map_).long()
    exact = codebook.double()
    error = (n.double() - exact[codes]).abs()
    left = exact[codes] - exact[(codes - 1).clamp(min=0)]
    right = exact[(codes + 1).clamp(max=codebook.numel() - 1)] - exact[codes]
    assert bool((error <= torch.maximum(left, right) / 2).all())
    ends = torch.tensor([float(codebook[0]) * 2 - 1, float(codebook[-1]) * 2 + 1])
    assert reference.encode(ends, map_).tolist() == [0, codebook.numel() - 1]


@by_spec
def test_stochastic_rounding_takes_neighbours_and_keeps_codebook_values(map_: Map) -> None:
    codebook = map_.codebook()
    assert torch.equal(
        reference.encode_stochastic(codebook, map_, RoundingKey(seed=3)),
        torch.arange(codebook.numel(), dtype=torch.int32),
    )
    n = codebook[0] + torch.rand(4000) * (codebook[-1] - codebook[0])
    codes = reference.encode_stochastic(n, map_, RoundingKey(seed=4)).long()
    lower = (torch.bucketize(n, codebook, right=True) - 1).clamp(0, codebook.numel() - 2)
    assert bool(((codes == lower) | (codes == lower + 1)).all())
    ends = torch.tensor([float(codebook[0]) * 2 - 1, float(codebook[-1]) * 2 + 1])
    assert reference.encode_stochastic(ends, map_, RoundingKey()).tolist() == [
        0,
        codebook.numel() - 1,
    ]


@by_spec
def test_stochastic_rounding_is_unbiased(map_: Map) -> None:
    """Z-tests of the share rounded up, at 32 points a map, and of all points together.

    A correct map exceeds |z| = 6 at one point with probability 2e-9. With 33 tests a map and
    about 280 maps, a correct package is refused once in 5e4 choices of the seed, which is fixed.
    """
    codebook = map_.codebook()
    draws, points = 4096, 32
    fraction = (torch.arange(points) + 0.5) / points
    cell = torch.linspace(0, codebook.numel() - 2, points).long()
    low, high = codebook[cell], codebook[cell + 1]
    n = low + fraction * (high - low)
    repeated = n.repeat(draws)
    codes = reference.encode_stochastic(repeated, map_, RoundingKey(seed=11))
    upper = (codes.view(draws, points) == cell + 1).double().mean(0)
    # The share that the float32 value n really stands for, not the one it was made from.
    share = (n.double() - low.double()) / (high.double() - low.double())
    spread = (share * (1 - share) / draws).clamp_min(1e-12).sqrt()
    z = ((upper - share) / spread)[(share > 0.05) & (share < 0.95)]
    if z.numel() == 0:
        pytest.skip("neighbours so close that no float32 lies between them")
    assert float(z.abs().max()) < 6
    assert abs(float(z.sum()) / z.numel() ** 0.5) < 6
