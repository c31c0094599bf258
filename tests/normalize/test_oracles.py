"""Scales against plain loops in numpy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import qmaps
from qmaps import normalize
from qmaps.normalize.base import Normalizer
from tests.helpers import LARGEST, SMALLEST, sample

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


@pytest.mark.parametrize("low", [SMALLEST, 1e-38, 1e-6, 0.5, 1.0, 3e38])
@pytest.mark.parametrize("ratio", [1.0, 1 + 2**-23, 2.0, 1e5, 1e40])
def test_eight_bit_grid_is_even_in_log2_with_exact_ends(low: float, ratio: float) -> None:
    low = float(np.float32(low))
    high = float(np.float32(min(low * ratio, LARGEST)))
    # Scales from one end to the other in random order, one to a block.
    g = torch.Generator().manual_seed(0)
    x = torch.exp2(
        math.log2(low) + torch.rand(500, generator=g).double() * math.log2(high / low)
    ).float()
    x = torch.cat([x, torch.tensor([low, high, 0.0])]).clamp(max=high)
    x = torch.where(x == 0, x, x.clamp(min=low))
    codes, ends = of("B1x8").scales(x)
    stored = torch.from_numpy(scale("B1x8", x).copy())
    assert ends.tolist() == [low, high]
    assert bool((stored >= x).all())
    assert bool(((codes == 0) == (x == 0)).all())
    assert stored[-3:].tolist() == [low, high, 0.0]
    assert int(codes[-3]) == 1
    assert low == high or int(codes[-2]) in range(2, 256)
    order = x.argsort()
    assert bool((codes[order].int().diff() >= 0).all())
    assert bool((stored[order].diff() >= 0).all())
    grid = low * (high / low) ** ((codes[:-1].double() - 1) / 254)
    spacing = (stored[:-1].double() * 2**-23).clamp_min(SMALLEST)
    assert bool(((stored[:-1] - grid).abs() <= 3e-5 * grid + 2 * spacing).all())


def test_outliers_of_a_block_stay_in_it() -> None:
    x = torch.ones(256)
    x[5] = 1000
    assert scale("B64", x).tolist() == [1000.0] * 64 + [1.0] * 192
    y = torch.ones(4, 4)
    y[1, 2] = 1000
    assert int((scale("rank1", y) == 1000).sum()) == 1
    assert int((scale("row", y) == 1000).sum()) == 4


FLOAT, BYTE = torch.float32, torch.uint8
LAYOUTS = {
    ("tensor", (3, 5)): ((FLOAT, ()),),
    ("tensor", ()): ((FLOAT, ()),),
    ("tensor", (0,)): ((FLOAT, ()),),
    ("tensorx8", (3, 5)): ((BYTE, ()), (FLOAT, (2,))),
    ("B7", ()): ((FLOAT, (1,)),),
    ("B7", (7,)): ((FLOAT, (1,)),),
    ("B7", (8,)): ((FLOAT, (2,)),),
    ("B7", (3, 5)): ((FLOAT, (3,)),),
    ("B7", (0, 5)): ((FLOAT, (0,)),),
    ("B1000000", (3, 5)): ((FLOAT, (1,)),),
    ("B7x8", (3, 5)): ((BYTE, (3,)), (FLOAT, (2,))),
    ("row", ()): ((FLOAT, (1,)),),
    ("row", (300,)): ((FLOAT, (3,)),),
    ("row", (3, 5)): ((FLOAT, (3,)),),
    ("row", (0, 5)): ((FLOAT, (0,)),),
    ("row", (5, 0)): ((FLOAT, (5,)),),
    ("row", (2, 3, 4)): ((FLOAT, (2,)),),
    ("col", (3, 5)): ((FLOAT, (5,)),),
    ("col", (0, 5)): ((FLOAT, (5,)),),
    ("col", (2, 3, 4)): ((FLOAT, (4,)),),
    ("rank1", (300,)): ((FLOAT, (3,)),),
    ("rank1", (3, 5)): ((FLOAT, (3,)), (FLOAT, (5,))),
    ("rank1", (2, 3, 4)): ((FLOAT, (2,)), (FLOAT, (3,)), (FLOAT, (4,))),
    ("rank1", (5, 0)): ((FLOAT, (5,)), (FLOAT, (0,))),
    ("rank1x8", (3, 5)): ((BYTE, (3,)), (BYTE, (5,)), (FLOAT, (2,))),
    ("B7x8&rank1", (3, 5)): ((BYTE, (3,)), (FLOAT, (2,)), (FLOAT, (3,)), (FLOAT, (5,))),
    ("logB7", (3, 5)): ((FLOAT, (3,)), (FLOAT, (3,))),
    ("logB7", ()): ((FLOAT, (1,)), (FLOAT, (1,))),
}


@pytest.mark.parametrize(("spec", "shape"), LAYOUTS)
def test_layout_by_hand(spec: str, shape: tuple[int, ...]) -> None:
    map_ = "log2@4u" if spec.startswith("log") else "linear@4u"
    normalizer = qmaps.quantizer(f"{spec}/{map_}").normalizer
    expected = LAYOUTS[spec, shape]
    assert normalizer.layout(shape) == expected
    found = normalizer.scales(torch.rand(shape))
    assert tuple((part.dtype, tuple(part.shape)) for part in found) == expected


@pytest.mark.parametrize("spec", ["tensor", "B4", "row", "col", "rank1", "B4&rank1", "B1"])
@pytest.mark.parametrize("factor", [SMALLEST, 2.0**-140, 1.0, 2.0**125])
def test_the_largest_magnitude_survives_at_every_order(spec: str, factor: float) -> None:
    """Subnormals are kept and nothing overflows."""
    x = torch.tensor([[4.0, -6.0], [2.0, 5.0]]) * factor
    t = qmaps.quantizer(f"{spec}/linear@4s").quantize(x)
    y = t.dequantize()
    at_scale = torch.from_numpy(scale(spec, x).copy()) == x.abs()
    assert bool(at_scale.any())
    assert torch.equal(y[at_scale], x[at_scale])
    assert bool(y.isfinite().all())


def test_b32x8_costs_what_b128_costs() -> None:
    x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    assert qmaps.quantizer("B128/DE@4s").quantize(x).bits_per_element == 4.25
    eight = qmaps.quantizer("B32x8/DE@4s")
    assert eight.quantize(x).bits_per_element == pytest.approx(4.25, abs=1e-4)
    assert eight.error(x)["mse"] < qmaps.quantizer("B128/DE@4s").error(x)["mse"]


def test_log_range_of_each_block() -> None:
    x = torch.tensor([0.0, 4.0, 0.5, 16.0, 0.0, 0.0, 0.0, 0.0, 3.0, 3.0])
    low, high = normalize.LogBlock(4).scales(x)
    assert low[:2].tolist() == [-1.0, -250.0]
    assert high[:2].tolist() == [4.0, -250.0]
    assert low[2] == high[2]
    t = qmaps.quantizer("logB4/log2@4u").quantize(x)
    assert t.codes().tolist() == [0, 9, 1, 15, 0, 0, 0, 0, 15, 15]
    assert t.dequantize()[[0, 2, 3, 4, 5, 6, 7]].tolist() == [0.0, 0.5, 16.0, 0, 0, 0, 0]


@pytest.mark.parametrize("shape", SHAPES)
def test_log_ends_are_those_of_the_oracle(shape: tuple[int, ...]) -> None:
    x = sample(shape, signed=False)
    x.view(-1)[::3] = 0
    low, high = normalize.LogBlock(7).scales(x)
    flat = x.double().reshape(-1).numpy()
    for index, start in enumerate(range(0, flat.size, 7)):
        kept = flat[start : start + 7][flat[start : start + 7] > 0]
        ends = (np.log2(kept.min()), np.log2(kept.max())) if kept.size else (-250.0, -250.0)
        assert (float(low[index]), float(high[index])) == pytest.approx(ends, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("bits", range(2, 9))
def test_log_codes_against_float64(bits: int) -> None:
    """Zero is code 0; the others are nearest in log2, up to float32 rounding of the position."""
    x = sample((300,), signed=False)
    x[::7] = 0
    t = qmaps.quantizer(f"logB50/log2@{bits}u").quantize(x)
    codes, y = t.codes().numpy(), t.dequantize().double().numpy()
    steps = 2**bits - 2
    for start in range(0, 300, 50):
        block = x[start : start + 50].double().numpy()
        logs = np.log2(block, where=block > 0, out=np.full(50, np.nan))
        low, high = np.nanmin(logs), np.nanmax(logs)
        position = (logs - low) / (high - low) * steps
        found = codes[start : start + 50]
        assert np.all((found == 0) == (block == 0))
        assert np.nanmax(np.abs(found - 1 - position)) <= 0.5 + 1e-4
        decoded = np.exp2(low + (found - 1.0) / steps * (high - low))
        kept = block > 0
        assert y[start : start + 50][kept] == pytest.approx(decoded[kept], rel=1e-5)
        assert not y[start : start + 50][~kept].any()


def test_log_ends_of_float32_stay_finite() -> None:
    """log2 of the largest float32 rounds to 128, whose power of two would be infinite."""
    x = torch.tensor([LARGEST, LARGEST / 2, 1.0, SMALLEST])
    for sr in ("", "+sr"):
        y = qmaps.quantizer(f"logB4/log2@8u{sr}").quantize(x).dequantize()
        assert y[0] == LARGEST
        assert y[3] == SMALLEST
        assert bool(y.isfinite().all())


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
        (lambda: normalize.BlockWise(True), "block size=True must be an int"),
        (lambda: normalize.BlockWise(-1), "block size=-1 must be at least 1"),
        (lambda: normalize.LogBlock("4"), "block size='4' must be an int"),
        (lambda: normalize.EightBit(normalize.EightBit(normalize.BlockWise(4))),
         "B4x8 cannot be followed by 'x8'; 'x8' follows the name of one normalizer"),
        (lambda: normalize.EightBit(normalize.BlockWise(4) & normalize.Rank1()),
         "B4&rank1 cannot be followed by 'x8'; 'x8' follows the name of one normalizer"),
        (lambda: normalize.BlockWise(4) / normalize.Rank1(),
         "B4 / Rank1: '/' needs a map on its right, such as one of qmaps.maps"),
        (lambda: normalize.Rank1() & "B4", "rank1 & str: '&' needs a normalizer on its right"),
        (lambda: normalize.BlockWise(4) & normalize.LogBlock(4),
         "logB4 cannot be combined with '&'; it works alone, with the maps log2 and log2-0"),
        (lambda: normalize.BlockWise(4) & 3,
         "B4 & int: '&' needs a normalizer on its right"),
        (lambda: normalize.BlockWise(4) / 3, (
            "B4 / int: '/' needs a map on its right, such as one of qmaps.maps"
        )),
        (lambda: normalize.LogBlock(4) & normalize.Rank1(),
         "logB4 cannot be combined with '&'; it works alone, with the maps log2 and log2-0"),
        (lambda: normalize.EightBit(normalize.LogBlock(4)),
         "logB4 cannot be combined with 'x8'; it works alone, with the maps log2 and log2-0"),
        (lambda: normalize.LogBlock(4) / qmaps.maps.Linear(4, False),
         "logB4/linear@4u: the normalizer logB<n> and the maps log2 and log2-0 only work with each "
         "other"),
        (lambda: normalize.PerTensor() / qmaps.maps.Log2(4),
         "tensor/log2@4u: the normalizer logB<n> and the maps log2 and log2-0 only work with each "
         "other"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(make: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        make()  # type: ignore[operator]
    assert isinstance(caught.value, qmaps.QmapsError)
    assert str(caught.value) == message
