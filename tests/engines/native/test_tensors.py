"""Codes, scales and values have the reference's bits, on every instruction set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import qmaps
from qmaps.algebra.rounding import Rounding
from qmaps.engines.support import NATIVE
from qmaps.maps import Codebook
from qmaps.maps.base import limits as thresholds_of
from qmaps.maps.base import table
from qmaps.ops.backends import use_backend
from tests import helpers
from tests.helpers import about, same_bits

NORMALIZERS = (
    *("tensor", "row", "col", "rank1"),
    *("B1", "B7", "B64", "B256", "B384", "B2048", "B8192", "B9000"),
    *("B64&rank1", "B3x8", "B64x8", "tensorx8", "rank1x8", "rowx8&colx8&B16"),
    *("B16", "B32x8", "col&rank1"),
)
SHAPES = (
    (),
    (0,),
    (1,),
    (9,),
    (300,),
    (65, 130),
    (7, 129),  # rows end in the middle of a byte of 4-bit codes
    (3, 40, 50),
    (8, 6, 3, 3),
    (20000,),
    (300, 1),
    (1, 300),
)
SETTINGS = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def assert_as_reference(
    q: qmaps.Quantizer,
    x: Tensor,
    *,
    unchecked: bool = False,
    each_isa: Callable[[], Iterable[str]] = lambda: [""],
) -> None:
    """Compare the engine with the reference, on the current instruction set or on each."""
    quantize = q.quantize_unchecked if unchecked else q.quantize
    with use_backend("reference"):
        theirs = quantize(x)
        expected = theirs.dequantize()
    for isa in each_isa():
        with about((str(q), isa)):
            ours = quantize(x)
            values = ours.dequantize()
            with use_backend("reference"):
                # One engine decodes the codes of the other.
                assert same_bits(ours.dequantize(), expected)
            assert torch.equal(ours.packed, theirs.packed)
            assert all(same_bits(a, b) for a, b in zip(ours.scales, theirs.scales, strict=True))
            assert same_bits(values, expected)
            for dtype in (torch.float16, torch.bfloat16):
                assert same_bits(ours.dequantize(dtype=dtype), expected.to(dtype))


def wide(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-8, 3, shape, generator=generator).float()
    return torch.randn(shape, generator=generator) * 10**exponents


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("rounding", ["", "+sr"])
def test_every_scale_and_shape(normalizer: str, rounding: str, each_isa, threads: int) -> None:
    for number, shape in enumerate(SHAPES):
        x = wide(shape, number)
        # Every other map, for the next shape and normalizer those between.
        first = (number + NORMALIZERS.index(normalizer)) % 2
        for map_ in ("DE@8s", "DE@5s", "linear@4s", "nf4@4s", "linear0@3s", "power2@6s")[first::2]:
            q = qmaps.quantizer(f"{normalizer}/{map_}{rounding}")
            assert NATIVE.supports(q.normalizer, q.map, shape)
            assert_as_reference(q, x, each_isa=each_isa)


@pytest.mark.parametrize("rounding", ["", "+sr"])
def test_every_map(rounding: str, each_isa) -> None:
    x = wide((5000,), 1)
    for map_ in helpers.formula_maps():
        if map_.log_domain or map_.bits > 8:
            continue
        q = qmaps.normalize.BlockWise(250) / map_
        q = qmaps.quantizer(q.spec, [map_] if isinstance(map_, Codebook) else [])
        q = qmaps.Quantizer(q.normalizer, map_, rounding=Rounding(rounding))
        assert_as_reference(q, x if map_.signed else x.abs(), each_isa=each_isa)


@pytest.mark.parametrize("rounding", ["", "+sr"])
def test_codes_of_two_bytes(rounding: str, each_isa) -> None:
    """Every width above 8 bits, odd sizes, scales of every kind."""
    x = wide((2053,), 2)
    x[7], x[8] = 0.0, -0.0
    for map_ in helpers.formula_maps():
        if map_.bits <= 8:
            continue
        q = qmaps.Quantizer(qmaps.normalize.BlockWise(250), map_, rounding=Rounding(rounding))
        values = x if map_.signed else x.abs()
        assert NATIVE.supports(q.normalizer, map_, tuple(x.shape))
        assert not NATIVE.measures(q.normalizer, map_, tuple(x.shape))
        assert_as_reference(q, values, each_isa=each_isa)
        if map_.bits in (11, 12):
            for count in range(1, 18):
                assert_as_reference(q, values[:count], each_isa=each_isa)
    for normalizer in ("tensor", "rank1", "B8192", "B64x8"):
        q = qmaps.quantizer(f"{normalizer}/linear0@12s{rounding}")
        assert_as_reference(q, wide((65, 130), 3), each_isa=each_isa)
    bad = wide((600,), 4)
    bad[3], bad[300] = math.nan, math.inf
    assert_as_reference(
        qmaps.quantizer(f"B250/linear0@12s{rounding}"), bad, unchecked=True, each_isa=each_isa
    )


@pytest.mark.parametrize("map_", ["linear0@12s", "linear@10u", "linear0@16s"])
def test_two_byte_values_at_and_beside_every_threshold(map_: str, each_isa) -> None:
    q = qmaps.quantizer(f"tensor/{map_}")
    limits = thresholds_of(q.map)[::7]
    infinity = torch.tensor(math.inf)
    x = torch.cat([limits, limits.nextafter(infinity), limits.nextafter(-infinity)])
    x = torch.cat([x, torch.tensor([1.0])]).clamp(-1 if q.map.signed else 0, 1)
    assert_as_reference(q, x, each_isa=each_isa)


@pytest.mark.parametrize("spec", ["logB256/log2@8u", "logB7/log2@4u", "logB64/log2@5u+sr"])
def test_log2_ranges(spec: str, each_isa, threads: int) -> None:
    q = qmaps.quantizer(spec)
    for number, shape in enumerate(SHAPES):
        x = wide(shape, number).abs()
        if x.numel() > 20:
            x.view(-1)[3:9] = 0
        assert_as_reference(q, x, each_isa=each_isa)
    extreme = torch.tensor([3.4028235e38, 1e-45, 0.0, 1.0, 2.0**-126, 2.0**127])
    assert_as_reference(q, extreme, each_isa=each_isa)


@pytest.mark.parametrize(
    "map_",
    [
        *("DE@8s", "DE-0@8u", "linear@8s", "e4m3@8s", "inverse@8s", "quantile-normal@8s"),
        *("mantissa@8s", "DE@6u", "DE@4s", "softsign@8s", "sqrt@8u", "sqrt@5s", "mu-law@8s"),
    ],
)
def test_values_at_and_beside_every_threshold(map_: str, each_isa) -> None:
    """The scale is 1, so values meet thresholds in every bit."""
    q = qmaps.quantizer(f"tensor/{map_}")
    limits = thresholds_of(q.map)
    infinity = torch.tensor(math.inf)
    close = [limits]
    for _ in range(3):
        close += [torch.nextafter(close[-1], infinity)]
    down = limits
    for _ in range(3):
        down = torch.nextafter(down, -infinity)
        close += [down]
    special = torch.tensor([0.0, -0.0, 1.0, 1e-45, -1e-45, 2.0**-31, -(2.0**-31), 2.0**-126])
    x = torch.cat([*close, special, table(q.map)])
    x = x[(x.abs() <= 1) & (torch.tensor(q.map.signed) | (x >= 0))]
    assert_as_reference(q, x, each_isa=each_isa)


@SETTINGS
@given(
    values=st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=256, unique=True),
    seed=st.integers(0, 2**32 - 1),
    rounding=st.sampled_from(["", "+sr"]),
)
def test_any_codebook(values: list[float], seed: int, rounding: str, each_isa) -> None:
    values = sorted(set(np.float32(values) + np.float32(0)))
    if len(values) < 2:
        return
    book = Codebook(values, bits=8, signed=True)
    q = qmaps.Quantizer(qmaps.normalize.PerTensor(), book, rounding=Rounding(rounding))
    generator = torch.Generator().manual_seed(seed)
    near = torch.tensor(values)[torch.randint(len(values), (400,), generator=generator)]
    x = torch.cat([near, (near + near.flip(0)) / 2, torch.rand(99, generator=generator), -near])
    assert_as_reference(q, torch.cat([x.clamp(-1, 1), torch.tensor([1.0])]), each_isa=each_isa)


@SETTINGS
@given(
    x=st.lists(st.floats(width=32), min_size=1, max_size=200),
    spec=st.sampled_from(["B16/DE@8s", "B16/DE@4s+sr", "tensor/linear@3s", "B8x8/DE@8s"]),
)
def test_any_float_even_nan(x: list[float], spec: str, each_isa) -> None:
    assert_as_reference(qmaps.quantizer(spec), torch.tensor(x), unchecked=True, each_isa=each_isa)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_views(dtype: torch.dtype, each_isa) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    every = every[every.isfinite()]
    for spec in ("B64/DE@8s", "rank1/linear@4s+sr"):
        assert_as_reference(qmaps.quantizer(spec), every, each_isa=each_isa)
    x = wide((60, 70), 3).to(dtype)
    for view in (x.t(), x[::2, 3:], x[:, ::3], x.expand(2, 60, 70)):
        assert_as_reference(qmaps.quantizer("B64/DE@8s"), view, each_isa=each_isa)


def test_out_is_written_and_bad_input_leaves_it(isa: str, threads: int) -> None:
    for spec in ("B64/DE@8s", "rank1/linear@5s", "B64x8/DE-0@4u"):
        q = qmaps.quantizer(spec)
        x = wide((40, 50), 5)
        x = x if q.map.signed else x.abs()
        t = q.quantize(torch.zeros_like(x))
        before = t.packed.data_ptr()
        assert q.quantize(x, out=t) is t
        assert t.packed.data_ptr() == before
        assert torch.equal(t.packed, q.quantize(x).packed)
        untouched = t.clone()
        bad = x.clone()
        bad[3, 4] = math.nan
        with pytest.raises(qmaps.errors.NonFiniteError, match="1 NaN or infinite"):
            q.quantize(bad, out=t)
        assert torch.equal(untouched.packed, t.packed)
        assert all(torch.equal(a, b) for a, b in zip(untouched.scales, t.scales, strict=True))
        y = torch.full((50, 40), 7.0).t()
        assert t.dequantize(out=y) is y
        assert torch.equal(y, t.dequantize())


@pytest.mark.parametrize(
    ("spec", "numel"),
    [
        ("B256/DE@8s", 1),
        ("B256/DE@8s", 20_001),
        ("B7/linear@3s", 20_001),
        ("B64xe8m0/DE@4s", 20_001),
        ("B64xf16/DE@4s+sr", 20_001),
        ("logB32/log2@4u", 20_001),
        ("B64/linear0@12s", 20_001),
        ("B128/DE@4s", 2**20 + 777),  # replaced codes are kept past the caches
        ("B256/DE-0@8u", 2**20 + 777),
        # Too many to be kept: the input is looked at first.
        pytest.param("B2048/DE@8s", 2**24 + 8, marks=pytest.mark.slow),
    ],
)
def test_overwritten_codes_are_restored(spec: str, numel: int, each_isa, threads: int) -> None:
    """The engine meets bad elements at the end, after it has replaced most codes."""
    q = qmaps.quantizer(spec)
    x = wide((numel,), 5).abs()
    t = q.quantize(x)
    before = t.clone()
    bad = x.flip(0) * 3
    for value in (math.nan, -math.inf, *(() if q.map.signed else (-1.0,))):
        bad[-1] = value
        for isa in each_isa():
            with pytest.raises(qmaps.QmapsError):
                q.quantize(bad, out=t)
            for a, b in zip((t.packed, *t.scales), (before.packed, *before.scales), strict=True):
                assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), isa
    bad[-1] = 1.0
    for isa in each_isa():
        q.quantize(bad, out=t)
        assert torch.equal(t.packed, q.quantize(bad).packed), isa


@pytest.mark.parametrize(
    "spec", ["B256/DE-0@8u", "B7/linear@3u", "B64xf16/DE@4u", "B64/linear@10u"]
)
@pytest.mark.parametrize("at", [0, 700, 2050])
def test_signs_under_unsigned_maps(spec: str, at: int, each_isa) -> None:
    """-0 is not negative; a negative number, or NaN of either sign, is found in any block."""
    q = qmaps.quantizer(spec)
    x = wide((2051,), 6).abs()
    x[at] = -0.0
    assert_as_reference(q, x, each_isa=each_isa)
    nan = torch.tensor(math.nan)
    for value in (-1e-45, -math.inf, math.inf, nan, nan.copysign(torch.tensor(-1.0))):
        x[at] = value
        with use_backend("reference"), pytest.raises(qmaps.QmapsError) as expected:
            q.quantize(x)
        for isa in each_isa():
            with pytest.raises(qmaps.QmapsError) as actual:
                q.quantize(x)
            assert (type(actual.value), str(actual.value)) == (
                type(expected.value),
                str(expected.value),
            ), isa
            q.quantize_unchecked(x)


@pytest.mark.parametrize(
    "spec",
    [
        "B128/DE@4s",
        "B256x8/DE-0@8u",
        pytest.param("B256/DE@8s", marks=pytest.mark.slow),
        pytest.param("tensor/linear@8s", marks=pytest.mark.slow),
        pytest.param("B100/DE@4s", marks=pytest.mark.slow),
        pytest.param("B24/DE@8s", marks=pytest.mark.slow),
        pytest.param("B256/linear@10s", marks=pytest.mark.slow),
        pytest.param("logB64/log2@4u", marks=pytest.mark.slow),
    ],
)
def test_tensors_larger_than_caches(spec: str, each_isa) -> None:
    """The engine stores them past the caches, in full lines, from any address."""
    x = torch.randn(2**22 + 1000, generator=torch.Generator().manual_seed(0))
    q = qmaps.quantizer(spec)
    x = x if q.map.signed else x.abs()
    with use_backend("reference"):
        expected = q.quantize(x)
        values = expected.dequantize()
    for isa in each_isa():
        t = q.quantize_unchecked(x, out=q.quantize(torch.zeros_like(x)))
        assert torch.equal(t.packed, expected.packed), isa
        for a, b in zip(t.scales, expected.scales, strict=True):
            assert torch.equal(a, b), isa
        for offset in (0, 1):
            y = torch.empty(x.numel() + offset)[offset:]
            assert torch.equal(t.dequantize(out=y), values), isa


@pytest.mark.parametrize("seed", range(12))
def test_codebooks_without_structure(seed: int, each_isa) -> None:
    """Dense and sparse, one-sided, lopsided and tiny: every kind of first guess, and none."""
    generator = torch.Generator().manual_seed(seed)
    size = (256, 200, 100, 40, 17, 5)[seed % 6]
    v = torch.randn(size, generator=generator)
    kinds = (
        v / 3,
        v**3 / 8,
        v.sign() * 10 ** (-4 * torch.rand(size, generator=generator)),
        v.abs() / 4,
        v * 1e-4,
        torch.where(v < 0, v / 50, v / 4),
    )
    values = kinds[(seed + seed // 6) % 6].clamp(-1, 1).unique()
    book = Codebook(values, label="any")
    sign = "s" if book.signed else "u"
    x = torch.cat(
        [
            torch.randn(3000, generator=generator),
            values,
            (values[1:] + values[:-1]) / 2,
            torch.randn(500, generator=generator) * 1e-6,
            torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 1e-42, -1e-42]),
        ]
    )
    x = x if book.signed else x.abs()
    for normalizer, rounding in (("B64", ""), ("tensor", ""), ("B256", "+sr")):
        spec = f"{normalizer}/any@{book.bits}{sign}{rounding}"
        assert_as_reference(qmaps.quantizer(spec, codebooks=[book]), x, each_isa=each_isa)


def test_an_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QMAPS_ISA", "mmx")
    with pytest.raises(ValueError, match=r"QMAPS_ISA='mmx' is not available .* allowed are"):
        qmaps.quantizer("B8/DE@8s").quantize(torch.ones(3))


TIES = {
    "all": [1.0, 1.0, 1.0, 1.0],
    "both ends": [-1.0, -1.0, -0.5, 0.0, 0.0, 0.25, 1.0, 1.0],
    "within": [-0.75, 0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.9],
    "many": [k // 5 / 51 for k in range(256)],
    "subnormal": [0.0, 0.0, 1e-45, 1e-45, 3e-45, 3e-45, 1e-40, 1e-40],
    "two bytes": [k // 3 / 341 for k in range(1024)],
}


@pytest.mark.parametrize("rounding", ["", "+sr"])
@pytest.mark.parametrize("values", TIES.values(), ids=TIES)
def test_of_equal_values_the_lowest_code_is_taken(
    values: list[float], rounding: str, isa: str
) -> None:
    map_ = Codebook(values, label="lloyd@8s", signed=True, per_tensor=True)
    q = qmaps.Quantizer(qmaps.normalize.PerTensor(), map_, rounding=Rounding(rounding))
    book = map_.codebook()
    limits = thresholds_of(map_)
    below, above = (torch.nextafter(limits, torch.tensor(e)) for e in (-math.inf, math.inf))
    near = torch.cat([book, limits, below, above, torch.linspace(-1, 1, 4001), torch.tensor([1.0])])
    x = near[near.abs() <= 1]
    assert_as_reference(q, x)
    codes = q.quantize(x).codes().reshape(-1)
    assert torch.equal(codes, torch.searchsorted(book, book[codes], out_int32=True))
    # And nothing but codes is otherwise than without them.
    distinct = sorted(set(map_.codes))
    if len(distinct) > 1:
        without_duplicates = Codebook(distinct, label="plain", signed=True)
        plain = qmaps.Quantizer(q.normalizer, without_duplicates, rounding=q.rounding)
        assert torch.equal(q.quantize(x).dequantize(), plain.quantize(x).dequantize())


@pytest.mark.parametrize("rounding", ["", "+sr"])
@pytest.mark.parametrize("map_", ["lloyd@2s", "quantile@4u", "quantile@8s", "lloyd@8u"])
def test_codebooks_fitted_to_few_values(map_: str, rounding: str, each_isa) -> None:
    q = qmaps.quantizer(f"tensor/{map_}{rounding}")
    generator = torch.Generator().manual_seed(0)
    repeated = torch.randint(1, 4, (300,), generator=generator).float()
    for x in (torch.ones(8), torch.zeros(70), repeated, torch.rand(9, generator=generator)):
        assert_as_reference(q, x, each_isa=each_isa)


@pytest.mark.parametrize("rounding", ["", "+sr"])
@pytest.mark.parametrize("count", [16, 17, 64, 70])
def test_log2_ranges_of_zeros_and_of_what_is_below(count: int, rounding: str, isa: str) -> None:
    q = qmaps.quantizer(f"logB16/log2@4u{rounding}")
    assert_as_reference(q, -torch.zeros(count))
    zeros = q.quantize(-torch.zeros(count))
    assert not zeros.dequantize().signbit().any()
    assert all(torch.equal(end, torch.full_like(end, -250.0)) for end in zeros.scales)
    x = torch.linspace(0.1, 1, count)
    x[-1] = -0.5
    for negative in (x, -x.abs(), torch.where(torch.arange(count, 0, -1) % 3 == 0, 0.0, x)):
        assert_as_reference(q, negative, unchecked=True)
        decoded = q.quantize_unchecked(negative).dequantize()
        last = slice((count - 1) // 16 * 16, count)
        assert decoded[last].isnan().equal(negative[last] != 0)


FORMATS = ("xf16", "xbf16", "xf16sq", "xe8m0", "xe4m3")


@pytest.mark.parametrize("rounding", ["", "+sr"])
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    "normalizer", ["B1", "B7", "B32", "B64", "B256", "B9000", "tensor", "rank1", "col"]
)
def test_formats_of_scales(
    normalizer: str, suffix: str, rounding: str, each_isa, threads: int
) -> None:
    for map_ in ("DE@8s", "linear@4s", "e2m1@4s", "softsign@5s", "linear0@12s"):
        q = qmaps.quantizer(f"{normalizer}{suffix}/{map_}{rounding}")
        for number, shape in enumerate(((), (9,), (65, 130), (3, 40, 50), (0,))):
            assert NATIVE.supports(q.normalizer, q.map, shape)
            assert_as_reference(q, wide(shape, number), each_isa=each_isa)


@pytest.mark.parametrize("rounding", ["", "+sr"])
@pytest.mark.parametrize("suffix", FORMATS)
def test_formats_of_minima(suffix: str, rounding: str, each_isa, threads: int) -> None:
    for spec in (f"B64{suffix}&rank1/DE@4s", f"B32{suffix}&B16x8/DE@8s", f"col&row{suffix}/DE@8s"):
        q = qmaps.quantizer(spec + rounding)
        assert_as_reference(q, wide((65, 130), 1), each_isa=each_isa)


def test_scales_that_threads_share_out(threads: int, each_isa) -> None:
    """More scales than one thread takes at a time, with the ends in different parts."""
    x = wide((70_001,), 2).clamp(-1e3, 1e3)
    x[1], x[0], x[-1] = 1e4, 0.0, 1e-9
    x[-2] = 0.0
    for suffix in ("x8", "xe4m3"):
        q = qmaps.quantizer(f"B2{suffix}/DE@4s")
        assert_as_reference(q, x, each_isa=each_isa)
        for bad in (math.nan, math.inf):
            for place in (5, 69_990):
                broken = x.clone()
                broken[place] = bad
                assert_as_reference(q, broken, unchecked=True, each_isa=each_isa)


def test_powers_of_blocks_that_are_too_wide_become_zeros_without_a_sign(each_isa) -> None:
    q = qmaps.quantizer("powB64r16/power3@7u")
    assert_as_reference(q, torch.tensor([1e37, 1e-30]), each_isa=each_isa)


@pytest.mark.parametrize("suffix", FORMATS)
def test_scales_at_the_ends_of_their_formats(suffix: str, each_isa) -> None:
    """Every exponent of float32, ties and their neighbours, and elements far above the scale."""
    powers = torch.exp2(torch.arange(-149, 128).double()).float()
    steps = torch.tensor([1.0, 1 + 2**-11, 1 + 2**-9, 1 + 2**-8, 1.5, 1 + 3 * 2**-9, 2 - 2**-23])
    tops = (powers[:, None] * steps).reshape(-1)
    beside = [tops, tops.nextafter(torch.tensor(0.0)), tops.nextafter(torch.tensor(math.inf))]
    tops = torch.cat(beside)
    tops = tops[tops.isfinite() & (tops > 0)]
    x = torch.stack([tops, -tops * 0.7, tops * 0.13, torch.zeros_like(tops)], dim=1)
    for block in ("B4", "row", "B32"):
        for map_ in ("DE@8s", "e4m3@8s", "linear@4s", "softsign@8s", "DE@8u", "e2m1@4s+sr"):
            q = qmaps.quantizer(f"{block}{suffix}/{map_}")
            assert_as_reference(q, x if q.map.signed else x.abs(), each_isa=each_isa)
    for bad in (math.nan, math.inf, -math.inf):
        broken = x.clone()
        broken[3, 2] = broken[90, 0] = bad
        for block in ("B4", "col"):
            q = qmaps.quantizer(f"{block}{suffix}/DE@8s")
            assert_as_reference(q, broken, unchecked=True, each_isa=each_isa)
            # Fits of few different values end with equal ones; NaN takes the last.
            equal = Codebook([-1.0, 0.0, *[1.0] * 6], per_tensor=True)
            q = qmaps.Quantizer(q.normalizer, equal)
            assert_as_reference(q, broken, unchecked=True, each_isa=each_isa)


def around_halves(dtype: torch.dtype) -> Tensor:
    """Every finite number of a 16-bit format, every tie between two, and the floats beside them."""
    halves = torch.arange(1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    halves = halves[halves.isfinite()]
    ties = (halves[1:] + halves[:-1]) / 2
    actual = torch.cat([halves, ties, halves[-1:] * 1.01, torch.tensor([3e38])])
    up, down = torch.tensor(math.inf), torch.tensor(-math.inf)
    actual = torch.cat([actual, actual.nextafter(up), actual.nextafter(down)])
    actual = actual[actual.isfinite()]
    return torch.cat([actual, -actual])


@pytest.mark.parametrize("rounding", ["", "+sr"])
@pytest.mark.parametrize("map_", ["bf16@16", "fp16@16", "e4m3@8", "DE@8", "linear@12", "e2m1@4"])
def test_no_scales(map_: str, rounding: str, each_isa, threads: int) -> None:
    for sign in "su":
        q = qmaps.quantizer(f"unscaled/{map_}{sign}{rounding}")
        for number, shape in enumerate(((), (9,), (65, 130), (3, 40, 50), (0,))):
            assert NATIVE.supports(q.normalizer, q.map, shape)
            x = wide(shape, number)
            assert_as_reference(q, x if sign == "s" else x.abs(), each_isa=each_isa)
        for dtype in (torch.bfloat16, torch.float16):
            x = around_halves(dtype)
            assert_as_reference(q, x, unchecked=True, each_isa=each_isa)
            assert_as_reference(q, x[x.abs() < 65504].half(), unchecked=True, each_isa=each_isa)
        assert_as_reference(q, -torch.zeros(100), each_isa=each_isa)
        for bad in (math.nan, math.inf, -math.inf):
            x = wide((65, 130), 1)
            x[3, 2] = bad
            assert_as_reference(q, x, unchecked=True, each_isa=each_isa)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_to_a_format_is_that_of_torch(dtype: torch.dtype, each_isa) -> None:
    q = qmaps.quantizer("bf16" if dtype == torch.bfloat16 else "fp16")
    x = around_halves(dtype)
    x = x[x.to(dtype).isfinite()]
    for isa in each_isa():
        with about(isa):
            assert same_bits(q.quantize(x).dequantize() + 0.0, x.to(dtype).float() + 0.0)


def test_codes_that_a_format_does_not_have(each_isa) -> None:
    """They decode to the last value, as in every codebook."""
    q = qmaps.quantizer("bf16")
    t = q.quantize(torch.ones(65536))
    t.packed.copy_(torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.uint8))
    with use_backend("reference"):
        expected = t.dequantize()
    for isa in each_isa():
        with about(isa):
            assert same_bits(t.dequantize(), expected)


def test_float16_of_every_number(each_isa) -> None:
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    q = qmaps.quantizer("unscaled/DE@8s")
    for isa in each_isa():
        with about(isa):
            finite = halves[halves.isfinite()]
            with use_backend("reference"):
                expected = q.quantize(finite)
            assert torch.equal(q.quantize(finite).packed, expected.packed)
