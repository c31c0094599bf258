"""Checks of every map: every function here is one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from qmaps.algebra.philox import RoundingKey, uniform
from qmaps.engines import reference
from qmaps.maps.base import Map
from qmaps.testing._data import (
    checks_in,
    codes_of,
    inside,
    outside,
    rounds_to_nearest,
    upper_is_nearer,
)

Check = Callable[[Map, torch.device], None]


def codebook_is_sorted_finite_float32_and_fits_the_width(map_: Map, device: torch.device) -> None:
    codebook = map_.codebook()
    assert codebook.dtype == torch.float32
    assert codebook.dim() == 1
    assert bool(codebook.isfinite().all())
    assert 2 <= codebook.numel() <= 2**map_.bits
    assert bool((codebook.diff() > 0).all())
    if not map_.signed and not map_.log_domain:
        assert float(codebook[0]) >= 0


def codebook_is_pure(map_: Map, device: torch.device) -> None:
    first = map_.codebook()
    copy = first.clone()
    first.fill_(7.0)
    assert torch.equal(map_.codebook(), copy)


def every_value_encodes_to_its_own_code_and_decodes_to_itself(
    map_: Map, device: torch.device
) -> None:
    codebook = map_.codebook().to(device)
    codes = reference.encode(codebook, map_)
    assert codes.dtype == torch.int32
    assert codes.tolist() == list(range(codebook.numel()))
    assert torch.equal(reference.decode(codes, map_), codebook)


def every_threshold_is_exact(map_: Map, device: torch.device) -> None:
    """Each is the last float32 not nearer to the upper code, and the next one takes that code.

    With the codebook ascending this decides the code of every float32 there is. The thresholds of
    the map's own lie between their neighbours.
    """
    codebook = map_.codebook()
    limits = map_.thresholds()
    assert limits.dtype == torch.float32
    assert limits.shape == (codebook.numel() - 1,)
    after = torch.nextafter(limits, limits.new_tensor(torch.inf))
    gaps = zip(limits.tolist(), after.tolist(), pairwise(codebook.tolist()), strict=True)
    nearest = rounds_to_nearest(map_)
    for last, first, (low, high) in gaps:
        assert low <= last < high
        assert not (nearest and upper_is_nearer(last, low, high))
        assert not nearest or upper_is_nearer(first, low, high)
    lower = list(range(codebook.numel() - 1))
    assert reference.encode(limits.to(device), map_).tolist() == lower
    assert reference.encode(after.to(device), map_).tolist() == [code + 1 for code in lower]


def nearest_code_is_exact(map_: Map, device: torch.device) -> None:
    """Against exact arithmetic: inside, outside, and on both sides of codes and thresholds."""
    codebook = map_.codebook()
    points = torch.cat([codebook, map_.thresholds()])
    points = points[torch.linspace(0, points.numel() - 1, 100, dtype=torch.float32).long()]
    inf = points.new_tensor(torch.inf)
    around = [points, torch.nextafter(points, inf), torch.nextafter(points, -inf)]
    zeros = codebook.new_tensor([0.0, -0.0])
    n = torch.cat([*around, inside(codebook, 300), outside(codebook), zeros])
    expected = codes_of(n, map_)
    assert reference.encode(n.to(device), map_).tolist() == expected
    if codebook.numel() <= 256 and rounds_to_nearest(map_):
        # In float64 the distance to the nearest differs from the least by rounding only.
        distance = (n.double()[:, None] - codebook.double()).abs()
        chosen = distance.gather(1, torch.tensor(expected, dtype=torch.int64)[:, None])[:, 0]
        assert bool((chosen <= distance.amin(1) * (1 + 2**-50)).all())


def error_is_at_most_half_a_gap_and_outside_values_clip(map_: Map, device: torch.device) -> None:
    codebook = map_.codebook()
    n = inside(codebook, 4000)
    codes = reference.encode(n, map_).long()
    exact = codebook.double()
    error = (n.double() - exact[codes]).abs()
    gap_below = exact[codes] - exact[(codes - 1).clamp(min=0)]
    gap_above = exact[(codes + 1).clamp(max=codebook.numel() - 1)] - exact[codes]
    gap = torch.where(n < codebook[codes], gap_below, gap_above)
    assert bool((error <= (gap / 2 if rounds_to_nearest(map_) else gap)).all())
    last = codebook.numel() - 1
    assert reference.encode(outside(codebook), map_).tolist() == [0, 0, last, last]
    sr = reference.encode_stochastic(outside(codebook), map_, RoundingKey())
    assert sr.tolist() == [0, 0, last, last]


def stochastic_rounding_is_one_comparison(map_: Map, device: torch.device) -> None:
    """The upper neighbour exactly where r * (high - low + b) < n - low + b, in float32.

    b is the map's bend times n - low.
    """
    codebook = map_.codebook()
    n = torch.cat([inside(codebook, 2000), codebook[:500]])
    key = RoundingKey(seed=4)
    values, noise = codebook.numpy(), uniform(n.numel(), key).numpy()
    lower = np.searchsorted(values, n.numpy(), side="right") - 1
    low, high = values[lower], np.append(values, values[-1])[lower + 1]
    over = n.numpy() - low
    bent = over * np.float32(map_.bend)
    expected = lower + (noise * ((high - low) + bent) < over + bent)
    codes = reference.encode_stochastic(n.to(device), map_, key).cpu().numpy()
    assert np.array_equal(codes, expected)
    assert np.array_equal(values[codes[2000:]], codebook[:500].numpy())


def stochastic_rounding_never_moves_a_value_of_the_codebook(
    map_: Map, device: torch.device
) -> None:
    codebook = map_.codebook()
    for extreme in (2**-17, 1 - 2**-17):  # the least and the largest number that can be drawn

        def drawn(count: int, *_: object, u: float = extreme) -> Tensor:
            return torch.full((count,), u, dtype=torch.float32)

        with mock.patch.object(reference, "uniform", drawn):
            codes = reference.encode_stochastic(codebook, map_, RoundingKey())
        assert codes.tolist() == list(range(codebook.numel()))


def stochastic_rounding_is_unbiased(map_: Map, device: torch.device) -> None:
    """Two z-tests per map, of the worst of 32 points and of their sum, each with |z| < 7.

    A map with a bend has a bias, which is taken into account. The binomial's tails included, a
    correct map is refused once in 1e9 runs; 300 maps, 3e-7.
    The key is fixed, so the outcome does not change from run to run.
    """
    codebook = map_.codebook()
    draws, points = 4096, 32
    fraction = (torch.arange(points, dtype=torch.float32) + 0.5) / points
    cell = torch.linspace(0, codebook.numel() - 2, points, dtype=torch.float32).long()
    low, high = codebook[cell], codebook[cell + 1]
    n = low + fraction * (high - low)
    repeated = n.repeat(draws)
    codes = reference.encode_stochastic(repeated, map_, RoundingKey(seed=11))
    upper = (codes.view(draws, points) == cell + 1).double().mean(0)
    # The share that the float32 value n really stands for, not the one it was made from.
    share = (n.double() - low.double()) / (high.double() - low.double())
    share = (1 + map_.bend) * share / (1 + map_.bend * share)
    deviation = (share * (1 - share) / draws).clamp_min(1e-12).sqrt()
    z = ((upper - share) / deviation)[(share > 0.1) & (share < 0.9)]
    if z.numel() == 0:
        return  # neighbours so close that no float32 lies between them
    assert float(z.abs().max()) < 7
    assert abs(float(z.sum()) / z.numel() ** 0.5) < 7


CHECKS: tuple[Check, ...] = checks_in(globals())
"""Every check, given a map with a codebook and the device to work on."""
