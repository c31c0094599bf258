from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from qmaps import QmapsError, quantiles


@pytest.mark.parametrize("count", [1, 2, 255, 4097, 20_000])
@pytest.mark.parametrize("offset", [None, 0.0, 0.1])
def test_exact_agrees_with_numpy(count: int, offset: float | None) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(0))
    for num in (2, 16, 256):
        trim = 1 / (2 * num) if offset is None else offset
        levels = trim + np.arange(num) * (1 - 2 * trim) / (num - 1)
        expected = np.quantile(x.double().numpy(), levels)
        actual = quantiles.exact(x, num, offset)
        assert actual.dtype == torch.float32
        assert actual.tolist() == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-9)


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


@pytest.mark.parametrize("count", [1, 5, 64, 65, 127, 1000])
@pytest.mark.parametrize("chunk", [1, 2, 64, 5000])
@pytest.mark.parametrize("offset", [None, 0.0, 0.2])
def test_sram_for_any_chunk_and_offset(count: int, chunk: int, offset: float | None) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(0))
    trim = 1 / 32 if offset is None else offset
    levels = trim + np.arange(16) * (1 - 2 * trim) / 15
    chunks = [c.double().numpy() for c in x.split(chunk)]
    expected = sum(np.quantile(c, levels) * len(c) for c in chunks) / count
    actual = quantiles.sram(x, 16, chunk, offset)
    assert actual.dtype == torch.float32
    assert actual.tolist() == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-8)


def test_exact_agrees_with_torch() -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    levels = ((torch.arange(256).double() + 0.5) / 256).float()
    assert torch.allclose(quantiles.exact(x), x.quantile(levels), rtol=1e-4, atol=1e-6)
    low, _, high = quantiles.exact(x, 3, offset=0.0).tolist()
    assert (low, high) == (float(x.min()), float(x.max()))


@pytest.mark.parametrize("method", [quantiles.exact, quantiles.sram])
def test_any_shape_stride_and_dtype(method: Callable[..., torch.Tensor]) -> None:
    x = torch.randn(60, 40, generator=torch.Generator().manual_seed(0))
    expected = method(x.t().contiguous(), 16)
    assert torch.equal(method(x.t(), 16), expected)
    assert torch.equal(method(x.t().requires_grad_(), 16), expected)
    assert not method(x.clone().requires_grad_(), 16).requires_grad
    assert torch.equal(method(x.half(), 16), method(x.half().float(), 16))
    assert torch.equal(method(x.bfloat16(), 16), method(x.bfloat16().float(), 16))
    assert method(torch.tensor(2.5), 4).tolist() == pytest.approx([2.5] * 4, rel=2**-9)


def test_more_elements_than_floats_can_count() -> None:
    x = torch.arange(2**24 + 2, dtype=torch.float32).div_(2**24)
    assert quantiles.exact(x, 3, 0.0).tolist() == pytest.approx([0, 0.5, 1], abs=1e-6)


def test_sram_approaches_exact() -> None:
    x = torch.randn(400_000, generator=torch.Generator().manual_seed(0))
    assert float((quantiles.sram(x, 16) - quantiles.exact(x, 16)).abs().max()) < 0.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantiles.exact(torch.zeros(0)),
         "x of shape (0,) is empty; quantiles need at least one element"),
        (lambda: quantiles.exact(torch.tensor([1.0, math.nan])),
         "x holds 1 NaN or infinite elements; all elements must be finite"),
        (lambda: quantiles.exact("x"), "x must be a floating-point tensor, got str"),
        (lambda: quantiles.exact(torch.zeros(3), num=0), "num=0 must be at least 2"),
        (lambda: quantiles.sram(torch.zeros(2, 0)),
         "x of shape (2, 0) is empty; quantiles need at least one element"),
        (lambda: quantiles.sram(torch.tensor([math.inf, -math.inf])),
         "x holds 2 NaN or infinite elements; all elements must be finite"),
        (lambda: quantiles.exact([1.0]), "x must be a floating-point tensor, got list"),
        (lambda: quantiles.sram(torch.zeros(3), offset=-0.1), (
            "offset=-0.1 must be at least 0 and below 0.5"
        )),
        (lambda: quantiles.exact(torch.arange(3)),
         "x must be a floating-point tensor, got torch.int64"),
        (lambda: quantiles.exact(torch.zeros(3), num=1), "num=1 must be at least 2"),
        (lambda: quantiles.exact(torch.zeros(3), offset=0.5), (
            "offset=0.5 must be at least 0 and below 0.5"
        )),
        (lambda: quantiles.sram(torch.zeros(3), chunk=0), "chunk=0 must be at least 1"),
    ],
)  # fmt: skip
def test_bad_input(call: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()  # type: ignore[operator]
    assert isinstance(caught.value, QmapsError)
    assert str(caught.value) == message
