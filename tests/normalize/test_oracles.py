"""Scales against plain loops in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import qmaps
from qmaps import normalize
from qmaps.normalize.base import Normalizer
from tests.helpers import sample

SHAPES = [(13,), (300,), (9, 30), (3, 5, 7), (2, 3, 4, 5)]


def of(spec: str) -> Normalizer:
    return qmaps.quantizer(f"{spec}/linear@4u").normalizer


def scale(spec: str, x: torch.Tensor) -> np.ndarray:
    normalizer = of(spec)
    expanded = normalizer.expand(normalizer.scales(x), tuple(x.shape))
    return expanded.expand(x.shape).numpy()


def block_oracle(x: np.ndarray, size: int) -> np.ndarray:
    flat, out = np.abs(x).ravel(), np.empty(x.size, np.float32)
    for start in range(0, x.size, size):
        out[start : start + size] = flat[start : start + size].max()
    return out.reshape(x.shape)


def rank1_oracle(x: np.ndarray) -> np.ndarray:
    out = np.empty(x.shape, np.float32)
    for index in itertools.product(*map(range, x.shape)):
        slices = (np.abs(np.take(x, i, axis=axis)).max() for axis, i in enumerate(index))
        out[index] = min(slices)
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_scales_are_those_of_the_oracle(shape: tuple[int, ...]) -> None:
    x = sample(shape, signed=True)
    a = x.numpy()
    assert np.array_equal(scale("tensor", x), np.full(shape, np.abs(a).max()))
    for size in (1, 7, 64, 10_000):
        assert np.array_equal(scale(f"B{size}", x), block_oracle(a, size))
    if len(shape) == 1:
        for spec in ("row", "col", "rank1"):
            assert np.array_equal(scale(spec, x), block_oracle(a, 128))
        return
    rows = np.abs(a).reshape(shape[0], -1).max(1).reshape(-1, *[1] * (len(shape) - 1))
    columns = np.abs(a).reshape(-1, shape[-1]).max(0)
    assert np.array_equal(scale("row", x), np.broadcast_to(rows, shape))
    assert np.array_equal(scale("col", x), np.broadcast_to(columns, shape))
    assert np.array_equal(scale("rank1", x), rank1_oracle(a))
    assert np.array_equal(scale("B7&rank1", x), np.minimum(block_oracle(a, 7), rank1_oracle(a)))


def test_rank1_of_a_matrix_is_the_smaller_of_row_and_column_maximum() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 40.0]])
    assert scale("rank-1", x).tolist() == [[2.0, 2.0], [3.0, 40.0]]


@pytest.mark.parametrize("inner", ["tensor", "B7", "B64", "row", "col", "rank1"])
@pytest.mark.parametrize("shape", SHAPES)
def test_eight_bit_scales_round_up_by_at_most_a_step(inner: str, shape: tuple[int, ...]) -> None:
    x = sample(shape, signed=True)
    exact = of(inner).scales(x)
    *codes, ends = of(f"{inner}x8").scales(x)
    joined = torch.cat([part.reshape(-1) for part in exact])
    low, high = float(joined.min()), float(joined.max())
    assert ends.tolist() == [low, high]
    step = (high / low) ** (1 / 254)
    from qmaps.normalize.eight_bit import _grid

    table = torch.cat([torch.zeros(1), _grid(ends)])
    assert table[1] == low
    assert table[255] == high
    assert bool((table.diff() >= 0).all())
    for part, code in zip(exact, codes, strict=True):
        assert code.dtype == torch.uint8
        stored = table[code.long()]
        assert bool((stored >= part).all())
        assert bool((stored <= part * step * (1 + 1e-5)).all())
    assert bool((np.abs(x.numpy()) <= scale(f"{inner}x8", x)).all())


def test_eight_bit_scale_code_zero_is_scale_zero() -> None:
    x = torch.cat([torch.zeros(7), torch.full((7,), 3.0), torch.full((7,), 0.5)])
    codes, _ = of("B7x8").scales(x)
    assert codes.tolist() == [0, 255, 1]
    assert of("B7x8").scales(torch.zeros(14))[0].tolist() == [0, 0]


def test_eight_bit_scales_of_subnormals_and_huge_values() -> None:
    x = torch.tensor([1e-45, 1e-40, 1e-20, 1.0, 3e38])
    assert bool((torch.from_numpy(scale("B1x8", x)) >= x).all())


def test_b32x8_costs_what_b128_costs() -> None:
    x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    assert qmaps.quantizer("B128/DE@4s").quantize(x).bits_per_element == 4.25
    eight = qmaps.quantizer("B32x8/DE@4s")
    assert eight.quantize(x).bits_per_element == pytest.approx(4.25, abs=1e-4)
    assert eight.error(x)["mse"] < qmaps.quantizer("B128/DE@4s").error(x)["mse"]


def test_log_range_of_each_block() -> None:
    x = torch.tensor([0.0, 4.0, 0.5, 16.0, 0.0, 0.0, 0.0, 0.0, 3.0, 3.0])
    low, high = normalize.LogBlock(4).scales(x)
    assert low[:2].tolist() == [-1.0, 0.0]
    assert high[:2].tolist() == [4.0, 0.0]
    assert low[2] == high[2]
    t = qmaps.quantizer("logB4/log2@4u").quantize(x)
    assert t.codes().tolist() == [0, 9, 1, 15, 0, 0, 0, 0, 15, 15]
    assert t.dequantize()[[0, 2, 3, 4, 5, 6, 7]].tolist() == [0.0, 0.5, 16.0, 0, 0, 0, 0]


def test_log_codes_are_even_in_log2() -> None:
    x = torch.exp2(torch.linspace(-20, 10, 1000))
    t = qmaps.quantizer("logB1000/log2@8u").quantize(x)
    expected = 1 + torch.round((torch.log2(x.double()) + 20) / 30 * 254)
    assert int((t.codes() - expected).abs().max()) <= 1
    assert float((t.codes() == expected).double().mean()) > 0.99
    worst = float((t.dequantize() / x - 1).abs().max())
    assert worst <= 2 ** (30 / 254 / 2) - 1 + 1e-5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: normalize.BlockWise(0), "block size=0 must be at least 1"),
        (lambda: normalize.BlockWise(2.0), "block size=2.0 must be an int"),
        (lambda: normalize.BlockWise(4) & 3,
         "B4 & int: a normalizer must follow '&'"),
        (lambda: normalize.BlockWise(4) / 3, "B4 / int: a map from qmaps.maps must follow '/'"),
        (lambda: normalize.LogBlock(4) & normalize.Rank1(),
         "logB4 does not go with '&'; it stands alone before log2"),
        (lambda: normalize.EightBit(normalize.LogBlock(4)),
         "logB4 does not go with 'x8'; it stands alone before log2"),
        (lambda: normalize.LogBlock(4) / qmaps.maps.Linear(4, False),
         "logB4/linear@4u: logB<n> and log2 go with each other only"),
        (lambda: normalize.PerTensor() / qmaps.maps.Log2(4),
         "tensor/log2@4u: logB<n> and log2 go with each other only"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(make: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value) == message
