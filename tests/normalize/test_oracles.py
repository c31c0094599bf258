"""Scales against plain loops in numpy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import qmaps
from qmaps import normalize
from qmaps.algebra.philox import RoundingKey
from qmaps.normalize.base import Normalizer
from tests.helpers import LARGEST, SMALLEST, sample, squares_in_doubt

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
    actual = normalizer.scales(torch.rand(shape))
    assert tuple((part.dtype, tuple(part.shape)) for part in actual) == expected


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


def test_b32x8_has_the_bytes_of_b128() -> None:
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
        positive = flat[start : start + 7][flat[start : start + 7] > 0]
        ends = (
            (np.log2(positive.min()), np.log2(positive.max()))
            if positive.size
            else (-250.0, -250.0)
        )
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
        actual = codes[start : start + 50]
        assert np.all((actual == 0) == (block == 0))
        assert np.nanmax(np.abs(actual - 1 - position)) <= 0.5 + 1e-4
        decoded = np.exp2(low + (actual - 1.0) / steps * (high - low))
        positive = block > 0
        assert y[start : start + 50][positive] == pytest.approx(decoded[positive], rel=1e-5)
        assert not y[start : start + 50][~positive].any()


def tree_sum(values: list[float]) -> float:
    """The first half added to the second, filled up with zeros to a power of two."""
    values = values + [0.0] * ((1 << (len(values) - 1).bit_length()) - len(values))
    while len(values) > 1:
        half = len(values) // 2
        values = [a + b for a, b in zip(values[:half], values[half:], strict=True)]
    return values[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("factor", "size"), [(1, 7), (2.5, 64), (4, 10_000), (0.125, 1)])
def test_root_mean_squares_of_blocks(shape: tuple[int, ...], factor: float, size: int) -> None:
    x = sample(shape, signed=True)
    x.view(-1)[::5] = 0
    flat = x.reshape(-1).double().tolist()
    length = min(size, len(flat))
    expected = []
    for start in range(0, len(flat), length):
        block = flat[start : start + length]
        filled = block + [0.0] * (length - len(block))
        root = math.sqrt(tree_sum([value * value for value in filled]) / len(block))
        assert root == pytest.approx(math.sqrt(math.fsum(v * v for v in block) / len(block)))
        expected += [np.float32(root * factor)] * len(block)
    assert scale(f"rms{factor}B{size}", x).ravel().tolist() == expected


def test_squares_are_added_in_the_order_of_a_balanced_tree() -> None:
    x = squares_in_doubt()
    squares = x.double().square().tolist()
    assert math.sqrt(tree_sum(squares)) <= 1 + 2**-24 < math.sqrt(sum(squares))
    assert normalize.RootMeanSquare(4, 16).scales(x)[0].tolist() == [1.0]


def test_root_mean_squares_at_the_ends_of_float32() -> None:
    for value, factor, expected in (
        (LARGEST, 8, LARGEST), (SMALLEST, 0.125, SMALLEST), (0.0, 4, 0.0), (math.inf, 1, math.inf)
    ):  # fmt: skip
        actual = normalize.RootMeanSquare(factor, 4).scales(torch.full((4,), value))[0]
        assert actual.tolist() == [expected]
    nan = normalize.RootMeanSquare(1, 2).scales(torch.tensor([math.nan, 1.0, 2.0, 2.0]))[0]
    assert nan[0].isnan()
    assert nan[1] == 2


def test_elements_above_a_multiple_of_the_root_mean_square_take_the_end() -> None:
    x = torch.ones(64)
    x[5] = -1000.0
    t = qmaps.quantizer("rms2B64/linear0@4s").quantize(x)
    root = math.sqrt((63 + 1e6) / 64)
    assert t.dequantize()[5] == pytest.approx(-2 * root)
    # Under the smaller of two scales nothing more is cut off.
    pair = of("rms8B64&B64")
    assert pair.expand(pair.scales(x), (64,)).max() == 1000
    assert of("rms8B64").expand(of("rms8B64").scales(x), (64,)).max() == pytest.approx(8 * root)


@pytest.mark.parametrize("shape", [(9, 30), (3, 5, 7), (2, 3, 4, 5), (1, 40), (40, 1)])
@pytest.mark.parametrize("tile", [(4, 8), (1, 7), (3, 3), (5, 1), (100, 1000)])
def test_rank1_of_tiles(shape: tuple[int, ...], tile: tuple[int, int]) -> None:
    x = sample(shape, signed=True)
    a = np.abs(x.numpy().reshape(shape[0], -1))
    expected = np.empty_like(a)
    rows, columns = tile
    for i in range(0, a.shape[0], rows):
        for j in range(0, a.shape[1], columns):
            expected[i : i + rows, j : j + columns] = rank1_oracle(a[i : i + rows, j : j + columns])
    spec = f"rank1B{rows}x{columns}"
    assert np.array_equal(scale(spec, x), expected.reshape(shape))
    stored = [tuple(part.shape) for part in of(spec).scales(x)]
    across, down = -(-a.shape[1] // columns), -(-a.shape[0] // rows)
    assert stored == [(a.shape[0], across), (down, a.shape[1])]
    if rows >= a.shape[0] and columns >= a.shape[1] and len(shape) == 2:
        assert np.array_equal(scale(spec, x), scale("rank1", x))


def test_rank1_of_tiles_of_vectors_is_that_of_blocks() -> None:
    for shape in ((), (300,), (0,), (0, 4), (5, 0)):
        x = sample(shape, signed=True)
        if len(shape) < 2:
            assert np.array_equal(scale("rank1B8x8", x), scale("B128", x))
        else:
            assert scale("rank1B8x8", x).shape == shape


@pytest.mark.parametrize("size", [7, 50, 1000])
@pytest.mark.parametrize("ratio", [1, 10, 100352, 10**30])
def test_exponents_expand_each_blocks_range(size: int, ratio: int) -> None:
    x = sample((30, 40), signed=True) ** 3
    x.view(-1)[::11] = 0
    normalizer = of(f"powB{size}r{ratio}")
    high, steps = normalizer.scales(x)
    assert steps.dtype == torch.uint8
    n = normalizer.normalize(x, (high, steps)).reshape(-1).double().numpy()
    back = normalizer.denormalize(torch.from_numpy(n).float().view(30, 40), (high, steps))
    assert torch.allclose(back, x, rtol=2e-5 * 16, atol=0)
    flat = x.reshape(-1).double().numpy()
    for b, start in enumerate(range(0, flat.size, size)):
        block = np.abs(flat[start : start + size])
        positive = block[block > 0]
        assert high[b] == positive.max()
        spread = np.log2(positive.max() / positive.min())
        wanted = 16 * math.log2(ratio) / spread
        assert abs(int(steps[b]) - np.clip(np.floor(wanted), 1, 255)) <= (
            abs(wanted - round(wanted)) < 1e-3
        )
        k = int(steps[b]) / 16
        expected = (block / positive.max()) ** k * np.sign(flat[start : start + size])
        assert n[start : start + size] == pytest.approx(expected, rel=2e-4, abs=1e-44)
        if 1 <= wanted < 256:
            smallest = np.abs(n[start : start + size][block > 0]).min()
            assert 1 / ratio * (1 - 1e-3) <= smallest


def test_range_expansion_of_blocks_without_a_range() -> None:
    x = torch.tensor([[3.0, -3.0, 3.0, 0.0], [0.0] * 4, [1e-38, -1e38, 1e-38, 5.0]])
    normalizer = of("powB4r1000")
    assert normalizer.scales(x)[1].tolist() == [255, 255, 1]
    for sr in ("", "+sr"):
        y = qmaps.quantizer(f"powB4r1000/DE@8s{sr}").quantize(x).dequantize()
        assert y[0, [0, 2, 3]].tolist() == [3.0, 3.0, 0.0]
        assert not y[1].any()
        assert y.isfinite().all()


def test_range_expansion_rounds_stochastically_without_bias_in_the_value() -> None:
    x = torch.exp2(torch.linspace(-14, 0, 2000))
    q = qmaps.quantizer("powB2000r16/linear@3u+sr")
    runs = torch.stack(
        [q.quantize(x, key=RoundingKey(step=step)).dequantize() for step in range(300)]
    ).double()
    levels = runs.unique()
    inside = x >= float(levels[0])
    above = torch.searchsorted(levels, x.double()).clamp(1, len(levels) - 1)
    error = (runs.mean(0) - x.double()) / (levels[above] - levels[above - 1])
    assert float(error[inside].abs().max()) < 5 * 0.5 / math.sqrt(300)


@pytest.mark.parametrize("quantile", [0.0, 1e-7, 0.1, 0.25, 0.5, 0.973, 1.0])
@pytest.mark.parametrize("size", [1, 7, 128, 5000])
def test_quantiles_of_log_ranges(size: int, quantile: float) -> None:
    x = sample((30, 40), signed=False)
    x.view(-1)[::3] = 0
    x.view(-1)[100:400] = 0
    low, high = normalize.LogBlock(size, quantile).scales(x)
    flat = x.reshape(-1).double().numpy()
    for index, start in enumerate(range(0, flat.size, size)):
        positive = flat[start : start + size][flat[start : start + size] > 0]
        ends = (-250.0, -250.0)
        if positive.size:
            ends = (np.log2(np.quantile(positive, quantile)), np.log2(positive.max()))
        assert (float(low[index]), float(high[index])) == pytest.approx(ends, rel=1e-5, abs=1e-5)


def test_below_the_lower_end_of_a_log_range() -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0])
    t = qmaps.quantizer("logB12q0.5/log2-0@2u").quantize(x)
    assert t.scales[0].tolist() == [5.0]
    assert t.codes().tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3]
    assert (t.dequantize()[:6] == 32).all()
    t = qmaps.quantizer("logB12q0.5/log2@2u").quantize(x)
    assert t.codes()[:6].tolist() == [0, 0, 0, 0, 0, 1] or t.codes()[0] == 0
    zeros = qmaps.quantizer("logB4/log2-0@4u").quantize(torch.zeros(9))
    assert not zeros.dequantize().any()


@pytest.mark.parametrize("spec", ["logB64/log2-0(in_log=true)@2u+sr", "logB64/log2-0@2u+sr"])
def test_stochastic_rounding_in_log_ranges_is_unbiased_in_what_is_said(spec: str) -> None:
    x = torch.exp2(torch.linspace(-6, 0, 64))
    q = qmaps.quantizer(spec)
    runs = torch.stack(
        [q.quantize(x, key=RoundingKey(step=step)).dequantize() for step in range(1000)]
    ).double()
    in_log = (runs.log2().mean(0) - x.double().log2()) / 2  # of a step of 2
    gap = torch.exp2(x.double().log2().div(2).floor() * 2) * 3
    in_value = (runs.mean(0) - x.double()) / gap
    unbiased, biased = (in_log, in_value) if "in_log" in spec else (in_value, in_log)
    assert float(unbiased.abs().max()) < 5 * 0.5 / math.sqrt(1000)
    assert float(biased.abs().max()) > 0.1


def test_log_ends_of_float32_stay_finite() -> None:
    """log2 of the largest float32 rounds to 128, and 2**128 would be infinite."""
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
        (lambda: normalize.BlockWise(0), "block_size=0 must be at least 1"),
        (lambda: normalize.BlockWise(2.0), "block_size=2.0 must be an int"),
        (lambda: normalize.BlockWise(True), "block_size=True must be an int"),
        (lambda: normalize.BlockWise(-1), "block_size=-1 must be at least 1"),
        (lambda: normalize.LogBlock("4"), "block_size='4' must be an int"),
        (lambda: normalize.RootMeanSquare("4", 8), "factor='4' must be a float"),
        (lambda: normalize.RootMeanSquare(True, 8), "factor=True must be a float"),
        (lambda: normalize.RootMeanSquare(0, 8), "factor=0 must be finite and above 0"),
        (lambda: normalize.RootMeanSquare(math.inf, 8), "factor=inf must be finite and above 0"),
        (lambda: normalize.RootMeanSquare(1, 0), "block_size=0 must be at least 1"),
        (lambda: normalize.Rank1Tiles(8, 0), "block_size=0 must be at least 1"),
        (lambda: normalize.Rank1Tiles(2.0, 8), "block_size=2.0 must be an int"),
        (lambda: normalize.LogBlock(4, 1.5), "quantile=1.5 must be between 0 and 1"),
        (lambda: normalize.LogBlock(4, math.nan), "quantile=nan must be between 0 and 1"),
        (lambda: normalize.LogBlock(4, "1"), "quantile='1' must be a float"),
        (lambda: normalize.RangeExpansion(4, 0), "ratio=0 must be between 1 and 2**127"),
        (lambda: normalize.RangeExpansion(4, 2**127 + 1),
         f"ratio={2**127 + 1} must be between 1 and 2**127"),
        (lambda: normalize.RangeExpansion(4, 2.0), "ratio=2.0 must be an int"),
        (lambda: normalize.RangeExpansion(0, 4), "block_size=0 must be at least 1"),
        (lambda: normalize.RangeExpansion(4, 9) & normalize.BlockWise(4),
         "powB4r9 cannot be combined with '&'; it works alone"),
        (lambda: normalize.EightBit(normalize.RangeExpansion(4, 9)),
         "powB4r9 cannot be combined with 'x8'; it works alone"),
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
def test_incompatible_parts_are_refused(make: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        make()  # type: ignore[operator]
    assert isinstance(caught.value, qmaps.QmapsError)
    assert str(caught.value) == message
