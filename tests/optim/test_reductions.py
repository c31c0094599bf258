"""Sums with bits fixed by elements and their order alone."""

from __future__ import annotations

import math

import pytest
import torch

from qmaps.optim.reductions import (
    COLUMN_CHUNK,
    LANES,
    ROW_CHUNK,
    column_means,
    norm,
    rms,
    row_means,
    tree_sum,
)
from tests.optim.ticklish import ticklish


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


def balanced(values: list[float]) -> float:
    while len(values) & (len(values) - 1):
        values = [*values, 0.0]
    while len(values) > 1:
        half = len(values) // 2
        values = [a + b for a, b in zip(values[:half], values[half:], strict=True)]
    return values[0]


def chunked(values: list[float], size: int) -> list[list[float]]:
    return [values[at : at + size] for at in range(0, len(values), size)]


def in_order(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


def of_a_row(values: list[float]) -> float:
    return balanced(
        [
            balanced([in_order(chunk[lane::LANES]) for lane in range(LANES)])
            for chunk in chunked(values, ROW_CHUNK)
        ]
    )


def of_a_column(values: list[float]) -> float:
    return balanced([in_order(chunk) for chunk in chunked(values, COLUMN_CHUNK)])


@pytest.mark.parametrize("shape", [(1, 1), (64, 512), (200, 3), (3, 2000), (2, 3, 65, 513)])
def test_the_documented_orders_of_rows_and_columns(shape: tuple[int, ...]) -> None:
    x = ticklish(shape, seed=1)
    rows = x.reshape(-1, shape[-1]).double().tolist()
    actual = torch.tensor([of_a_row(row) / len(row) for row in rows], dtype=torch.float64)
    assert torch.equal(row_means(x).reshape(-1), actual.float())
    columns = x.transpose(-1, -2).reshape(-1, shape[-2]).double().tolist()
    actual = torch.tensor([of_a_column(c) / len(c) for c in columns], dtype=torch.float64)
    assert torch.equal(column_means(x).reshape(-1), actual.float())


def test_other_orders_have_other_bits() -> None:
    """The engines' tests use these numbers, so wrong orders fail."""
    x = ticklish((512, 2048), seed=2)
    assert not torch.equal(row_means(x.transpose(-1, -2)), column_means(x).transpose(-1, -2))
    assert not torch.equal(column_means(x.transpose(-1, -2)), row_means(x).transpose(-1, -2))
    plain = x.double()
    assert not torch.equal(plain.mean(-1, keepdim=True).float(), row_means(x))
    assert not torch.equal(plain.mean(-2, keepdim=True).float(), column_means(x))


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_along_a_dimension(dim: int) -> None:
    x = torch.randn(5, 6, 7, generator=torch.Generator().manual_seed(1))
    size = x.shape[dim]
    rows = x.movedim(dim, -1).reshape(-1, size).tolist()
    squares = [math.fsum(v * v for v in row) ** 0.5 for row in rows]
    assert torch.equal(norm(x, (dim,)).reshape(-1), torch.tensor(squares))


def test_full_tensors_in_row_major_order_for_any_strides() -> None:
    x = torch.randn(60, 70, generator=torch.Generator().manual_seed(2))
    assert torch.equal(rms(x), rms(x.t().contiguous().t()))
    assert rms(x).item() == pytest.approx(x.double().square().mean().sqrt().item(), rel=1e-7)
    assert rms(torch.full((3,), 1e-30)) == 1e-30  # its square is no float32
    assert rms(torch.full((3,), 1e30)) == torch.tensor(1e30)


def test_nothing_to_add() -> None:
    assert rms(torch.zeros(0, 3)) == 0
    assert torch.equal(column_means(torch.zeros(0, 3)), torch.zeros(1, 3))
    assert torch.equal(row_means(torch.zeros(3, 0)), torch.zeros(3, 1))
