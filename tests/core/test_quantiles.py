from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from qmaps import quantiles


@pytest.mark.parametrize("count", [1, 2, 255, 4097, 20_000])
@pytest.mark.parametrize("offset", [None, 0.0, 0.1])
def test_exact_agrees_with_numpy(count: int, offset: float | None) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(0))
    for num in (2, 16, 256):
        trim = 1 / (2 * num) if offset is None else offset
        levels = trim + np.arange(num) * (1 - 2 * trim) / (num - 1)
        expected = np.quantile(x.double().numpy(), levels)
        found = quantiles.exact(x, num, offset)
        assert found.dtype == torch.float32
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-9)


def test_default_levels_are_centres_of_equal_cells() -> None:
    x = torch.arange(1.0, 1001.0)
    expected = np.quantile(x.numpy(), (np.arange(256) + 0.5) / 256)
    assert quantiles.exact(x).tolist() == pytest.approx(expected.tolist())


@pytest.mark.parametrize("count", [100, 4096, 10_000])
def test_sram_averages_the_chunks_by_their_size(count: int) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(0))
    chunks = x.split(4096)
    levels = (np.arange(64) + 0.5) / 64
    expected = sum(np.quantile(c.double().numpy(), levels) * len(c) for c in chunks) / count
    assert quantiles.sram(x, 64).tolist() == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-8)


def test_sram_approaches_exact() -> None:
    x = torch.randn(400_000, generator=torch.Generator().manual_seed(0))
    assert float((quantiles.sram(x, 16) - quantiles.exact(x, 16)).abs().max()) < 0.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantiles.exact(torch.zeros(0)),
         "x of shape (0,) is empty; quantiles need an element"),
        (lambda: quantiles.exact(torch.tensor([1.0, math.nan])),
         "x holds 1 NaN or infinite elements; quantiles need finite ones"),
        (lambda: quantiles.exact(torch.arange(3)),
         "x is torch.int64; a floating-point tensor is needed"),
        (lambda: quantiles.exact(torch.zeros(3), num=1), "num=1 must be at least 2"),
        (lambda: quantiles.exact(torch.zeros(3), offset=0.5), "offset=0.5 is outside [0, 0.5)"),
        (lambda: quantiles.sram(torch.zeros(3), chunk=0), "chunk=0 must be at least 1"),
    ],
)  # fmt: skip
def test_bad_input(call: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()  # type: ignore[operator]
    assert str(caught.value) == message
