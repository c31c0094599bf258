"""Sums whose bits depend on elements and their order alone."""

from __future__ import annotations

import math

import pytest
import torch

from qmaps.optim.reductions import mean, norm, rms, tree_sum


def by_hand(values: list[float]) -> float:
    while len(values) > 1:
        half = (len(values) + 1) // 2
        added = [a + b for a, b in zip(values, values[half:], strict=False)]
        values = added + values[len(values) - half : half]
    return values[0] if values else 0.0


@pytest.mark.parametrize("count", [*range(18), 1000])
def test_the_documented_tree(count: int) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(count)).double() * 1.1
    assert tree_sum(x, 0).tolist() == [by_hand(x.tolist())]


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_along_a_dimension(dim: int) -> None:
    x = torch.randn(5, 6, 7, generator=torch.Generator().manual_seed(1))
    size = x.shape[dim]
    rows = x.movedim(dim, -1).reshape(-1, size).tolist()
    exact = torch.tensor([math.fsum(row) / size for row in rows], dtype=torch.float64)
    found = mean(x, dim)
    assert found.shape[dim] == 1
    assert torch.equal(found.reshape(-1), exact.float())
    squares = [math.fsum(v * v for v in row) ** 0.5 for row in rows]
    assert torch.equal(norm(x, (dim,)).reshape(-1), torch.tensor(squares))


def test_whole_tensors_in_row_major_order_whatever_the_strides() -> None:
    x = torch.randn(60, 70, generator=torch.Generator().manual_seed(2))
    assert torch.equal(rms(x), rms(x.t().contiguous().t()))
    assert rms(x).item() == pytest.approx(x.double().square().mean().sqrt().item(), rel=1e-7)
    assert rms(torch.full((3,), 1e-30)) == 1e-30  # its square is no float32
    assert rms(torch.full((3,), 1e30)) == torch.tensor(1e30)


def test_nothing_to_add() -> None:
    assert rms(torch.zeros(0, 3)) == 0
    assert torch.equal(mean(torch.zeros(0, 3), -2), torch.zeros(1, 3))
    assert torch.equal(mean(torch.zeros(3, 0), -1), torch.zeros(3, 1))
