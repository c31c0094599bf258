"""The search of the 2015 paper's program."""

from __future__ import annotations

import pytest
import torch

from benchmarks import halving
from qmaps.maps import Linear0
from qmaps.maps.tree import DynamicTree

pytestmark = pytest.mark.slow


def plain(x: float, among: list[float]) -> float:
    """One number at a time, as the search is described."""
    if x < halving.ZERO:
        return 0.0
    if x > halving.ONE:
        return 1.0
    pivot, below = 63, 0.0
    for step in (32, 16, 8, 4, 2, 1):
        if x > among[pivot]:
            below = among[pivot]
            pivot += step
        else:
            pivot -= step
        pivot = min(pivot, len(among) - 1)
    return min(among[pivot], below, key=lambda value: abs(value - x))


@pytest.mark.parametrize("map_", [DynamicTree(bits=8, signed=True), Linear0(bits=8, signed=True)])
def test_search_number_by_number(map_: DynamicTree | Linear0) -> None:
    among = halving.magnitudes(map_)
    assert len(among) == 126
    x = torch.cat([torch.rand(2000), torch.rand(500) * 1e-5, torch.tensor([0.0, 1.0, 0.999])])
    found = halving.rounded(x, among)
    expected = [plain(value, among.tolist()) for value in x.double().tolist()]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_every_second_gap_is_cut_off() -> None:
    among = halving.magnitudes(Linear0(bits=8, signed=True))
    late = among[:-2] + 0.9 * among.diff()[:-1]  # nearest to the value above, in every gap
    up = halving.rounded(late, among) > among[:-2]
    assert up.sum().item() in (62, 63)
    assert (up[1:] != up[:-1]).all()


def test_errors_of_uniform_numbers_are_the_papers() -> None:
    x = torch.rand(400_000, generator=torch.Generator().manual_seed(0))
    _, relative = halving.errors(x, DynamicTree(bits=8, signed=True))
    assert 100 * relative == pytest.approx(1.39, abs=0.02)
    absolute, _ = halving.errors(torch.tensor([0.0, -3.0, 3.0]), Linear0(bits=8, signed=True))
    assert absolute == 0.0
