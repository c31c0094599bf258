"""Norms of tensors, in an order fixed by the number of elements alone."""

from __future__ import annotations

import math

import pytest
import torch

from qmaps.optim import norms as _norms
from qmaps.optim.norms import CHUNK, norm, square_sum


def tree(values: list[float]) -> float:
    """The documented order, one sum after another."""
    values = values + [0.0] * ((1 << (len(values) - 1).bit_length()) - len(values))
    while len(values) > 1:
        half = len(values) // 2
        values = [a + b for a, b in zip(values[:half], values[half:], strict=True)]
    return values[0]


def in_order(x: torch.Tensor) -> float:
    squares = [v * v for v in x.double().reshape(-1).tolist()]
    squares += [0.0] * (-len(squares) % CHUNK)
    return tree([tree(squares[i : i + CHUNK]) for i in range(0, len(squares), CHUNK)])


@pytest.mark.parametrize(
    "shape", [(), (1,), (7, 5), (4095,), (CHUNK,), (4097,), (5 * CHUNK + 3,), (9, 8, CHUNK)]
)
def test_the_order_of_sums(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator) * torch.exp(
        9 * torch.randn(shape, generator=generator)
    )
    expected = in_order(x)
    assert float(square_sum(x)) == expected
    assert float(norm(x)) == math.sqrt(expected)
    monkeypatch.setattr(_norms, "_PIECE", 2 * CHUNK)
    assert float(square_sum(x)) == expected
    if x.dim() > 1:
        # Row-major order counts, not the order in memory.
        assert float(square_sum(x.transpose(0, -1).contiguous().transpose(0, -1))) == expected


def test_squares_neither_overflow_nor_vanish() -> None:
    for value in (3e38, 1e-45):
        x = torch.full((10_000,), value)
        assert float(norm(x)) == pytest.approx(100 * float(x[0]), rel=1e-15)


def test_odd_values_and_no_values() -> None:
    assert float(norm(torch.zeros(3, 0))) == 0
    assert math.isnan(float(norm(torch.tensor([1.0, float("nan")]))))
    assert float(norm(torch.tensor([1.0, -float("inf")]))) == math.inf
    assert norm(torch.ones(3)).dtype == torch.float64


def test_threads_do_not_matter() -> None:
    x = torch.randn(300_000, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    actual = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        actual.add(float(square_sum(x)))
    torch.set_num_threads(before)
    assert len(actual) == 1
