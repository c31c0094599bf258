"""Scales in other formats than float32."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import qmaps
from qmaps.engines.reference import encode
from qmaps.errors import shown
from qmaps.normalize import BlockWise, Float16, PowerOfTwo, Rank1
from qmaps.normalize.base import Normalizer
from qmaps.ops.backends import use_backend
from tests.flashoptim import FIRST_CODES, FIRST_SCALES, SECOND_CODES, SECOND_SCALES, moments
from tests.helpers import LARGEST, SMALLEST, sample

ODD = [0.0, SMALLEST, 1e-40, 2.0**-126, 1e-30, 2.0**-25, 3e-8, 2.0**-24, 0.1, 1.0, 1.0004883, 3.7,
       65504.0, 65519.0, 65520.0, 1e9, 1e20, 2.0**127, 3.39e38, LARGEST]  # fmt: skip


def of(spec: str) -> Normalizer:
    return qmaps.quantizer(f"{spec}/linear@4s").normalizer


def scales(spec: str, amax: list[float]) -> list[float]:
    """The divisors of these maxima."""
    x = torch.tensor(amax)
    normalizer = of(f"B1{spec}")
    return normalizer.expand(normalizer.scales(x), tuple(x.shape)).tolist()


def half(value: float) -> float:
    """The nearest float16 by numpy: finite, and 0 only for 0."""
    with np.errstate(over="ignore"):
        actual = float(np.float16(np.float32(value)))
    return min(max(actual, 2.0**-24 if value else 0.0), 65504.0)


def test_float16() -> None:
    assert scales("xf16", ODD) == [half(value) for value in ODD]
    roots = [half(float(np.sqrt(np.float32(value)))) for value in ODD]
    assert scales("xf16sq", ODD) == [root * root for root in roots]


def test_bfloat16() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(2)).abs().tolist()
    actual = scales("xbf16", x)
    for value, scale in zip(x, actual, strict=True):
        gap = 2.0 ** (math.frexp(value)[1] - 8)
        assert scale % gap == 0
        assert abs(scale - value) <= gap / 2
    largest = float(torch.finfo(torch.bfloat16).max)
    assert scales("xbf16", [0.0, SMALLEST, LARGEST]) == [0.0, 2.0**-133, largest]
    assert scales("xbf16", [1 + 2.0**-8, 1 + 3 * 2.0**-8]) == [1.0, 1 + 2.0**-6]  # ties


def test_powers_of_two() -> None:
    expected = [
        0.0 if value == 0 else 2.0 ** min(max(math.frexp(value)[1], -126), 127) for value in ODD
    ]
    assert scales("xe8m0", ODD) == expected
    (codes,) = of("B1xe8m0").scales(torch.tensor([0.0, 0.75, 1.0, -6.0, math.inf, math.nan]))
    assert codes.tolist() == [0, 127, 128, 130, 255, 255]


def test_two_levels() -> None:
    """Against the nearest of all e4m3 numbers, one by one."""
    numbers = sorted({*torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).tolist()})
    x = sample((64, 16), signed=True, seed=4) * 2.0 ** torch.arange(-16, 16).repeat(2)[:, None]
    *codes, level = of("B16xe4m3").scales(x.float())
    amax = x.abs().amax(1)
    assert level.tolist() == [float(np.float32(amax.max()) / np.float32(448))]
    for code, block in zip(codes[0].tolist(), amax.tolist(), strict=True):
        quotient = float(np.float32(block) / np.float32(level.item()))
        best = min(numbers[1:], key=lambda number: (abs(number - quotient), number))
        assert torch.tensor(code, dtype=torch.uint8).view(torch.float8_e4m3fn).float() == best


# Of the package gfloat 0.5.2: `quantize_block` with `compute_scale_amax` of blocks of 32 of the
# tensor below. The format's emax, the e8m0 codes, and the decoded elements. Many are ties.
MX = {
    "e2m1@4s": (2, [129, 129], [
        -2, -2, 2, 12, -24, 0, 2, -8, -6, 6, 2, -2, 0, 8, -24, 0, 0, 6, -12, -4, 0, -4, -4,
        4, 24, -2, 0, 4, -16, -12, 0, 4, -6, 0, 16, -2, -2, 2, 12, -16, 0, 2, -8, -6, 8, 2,
        -2, 0, 8, -24, 0, 2, 6, -8, 0, 2, -4, -2, 4, 24, -2, 0, 4, -12,
    ]),
    "e2m3@6s": (2, [129, 129], [
        -2, -1.5, 1, 12, -22, 0, 2, -8, -6.5, 5.5, 1.5, -3, -1, 7.5, -30, -1, 1, 6, -11, -3,
        1, -4, -3, 3, 24, -1.5, -0.5, 4, -15, -12, 0.5, 3, -5, -1, 16, -2, -1.5, 2, 13, -20,
        0, 2, -7, -5, 8, 1.5, -2.5, 0, 9, -28, -0.5, 1, 7, -10, -0.5, 1, -3.5, -2.5, 4.5,
        28, -1, 0, 4.5, -14,
    ]),
    "e3m2@6s": (4, [127, 127], [
        -2, -1.75, 1.25, 12, -24, -0.25, 1.75, -8, -6, 6, 1.5, -3, -0.875, 8, -28, -0.75,
        0.75, 6, -10, -3, 1, -4, -3, 3, 24, -1.25, -0.3125, 4, -16, -12, 0.4375, 3, -5, -1,
        16, -1.75, -1.5, 2, 12, -20, -0.125, 2, -7, -5, 8, 1.75, -2.5, -0.25, 8, -28,
        -0.625, 1, 7, -10, -0.5, 1, -3.5, -2.5, 4, 28, -1.25, 0, 5, -14,
    ]),
    "e4m3@8s": (8, [123, 123], [
        -2, -1.75, 1.25, 12, -22, -0.25, 1.75, -8, -6.5, 5.5, 1.5, -2.75, -0.875, 7.5, -28,
        -0.75, 0.75, 6, -11, -3, 1, -3.75, -3, 3.25, 24, -1.25, -0.3125, 4, -15, -12,
        0.4375, 3.25, -5, -1, 16, -1.875, -1.375, 1.875, 13, -20, -0.09375, 2, -7, -5, 8,
        1.625, -2.5, -0.25, 9, -28, -0.625, 1, 7, -10, -0.5, 1.125, -3.5, -2.5, 4.5, 28,
        -1.125, 0, 4.5, -14,
    ]),
    "e5m2@8s": (15, [116, 116], [
        -2, -1.75, 1.25, 12, -24, -0.25, 1.75, -8, -6, 6, 1.5, -3, -0.875, 8, -28, -0.75,
        0.75, 6, -10, -3, 1, -4, -3, 3, 24, -1.25, -0.3125, 4, -16, -12, 0.4375, 3, -5, -1,
        16, -1.75, -1.5, 2, 12, -20, -0.09375, 2, -7, -5, 8, 1.75, -2.5, -0.25, 8, -28,
        -0.625, 1, 7, -10, -0.5, 1, -3.5, -2.5, 4, 28, -1.25, 0, 5, -14,
    ]),
}  # fmt: skip


def tied() -> Tensor:
    return torch.tensor([(i * 37 % 129 - 64) / 8 * 2.0 ** (i % 5 - 2) for i in range(64)])


@pytest.mark.parametrize("map_", MX)
def test_mx_formats_are_those_of_gfloat(map_: str) -> None:
    emax, codes, values = MX[map_]
    t = qmaps.quantizer(f"B32xe8m0/{map_}").quantize(tied())
    assert t.dequantize().tolist() == values
    assert [int(code) - emax - 1 for code in t.scales[0]] == codes


def test_mx_values_belong_to_the_scales() -> None:
    mx, plain = qmaps.quantizer("B32xe8m0/e2m1@4s"), qmaps.quantizer("B32/e2m1@4s")
    assert (str(mx), str(mx.map)) == ("B32xe8m0/e2m1@4s", "e2m1(mx=true)@4s")
    assert (str(plain), str(plain.map)) == ("B32/e2m1@4s", "e2m1@4s")
    assert mx.map.codebook()[-1] == 0.75
    assert PowerOfTwo(BlockWise(32)) / plain.map == mx
    assert str(qmaps.quantizer("B32xe8m0&rank1/e2m1@4s").map) == "e2m1@4s"
    pair = (PowerOfTwo(BlockWise(32)) & PowerOfTwo(Rank1())) / plain.map
    assert pair.map == mx.map
    assert qmaps.quantizer(str(pair)) == pair
    assert qmaps.quantizer("B8xe8m0/DE@4s").map == qmaps.quantizer("B8/DE@4s").map


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ("unscaled/e4m3@8s", torch.float8_e4m3fn),
        ("unscaled/e5m2@8s", torch.float8_e5m2),
    ],
)
def test_without_scales_a_float_is_that_of_torch(name: str, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = sample((20000,), signed=True).clamp(-largest, largest)
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2).float()
    ties = x.to(dtype).float() * (1 + torch.finfo(dtype).eps / 2)
    small = torch.tensor([SMALLEST, 2.0**-134, 3 * 2.0**-134, 2.0**-25, 1e-40, -(2.0**-133), 0.0])
    x = torch.cat([x, numbers[numbers.isfinite()], ties, small]).clamp(-largest, largest)
    t = qmaps.quantizer(name).quantize(x)
    assert torch.equal(t.dequantize(), x.to(dtype).float())
    assert t.nbytes == dtype.itemsize * x.numel() + 4
    # NaN and infinity stay; larger numbers take the end.
    assert qmaps.quantizer(name).quantize(torch.tensor([LARGEST])).dequantize().item() == min(
        largest, float(torch.finfo(dtype).max)
    )
    bad = qmaps.quantizer(name).quantize_unchecked(torch.tensor([1.0, math.inf]))
    assert not bad.dequantize().isfinite().any()
    assert not qmaps.quantizer(name).quantize(torch.zeros(5)).dequantize().any()


def test_exponents_and_bfloat16_give_bfloat16() -> None:
    x = sample((6400,), signed=True)
    ties = x.bfloat16().float() * (1 + 2.0**-8)
    for values in (x, ties):
        q = qmaps.quantizer("B32xe8m0/bf16@16s")
        t = q.quantize(values)
        scale = q.normalizer.expand(t.scales, tuple(x.shape))
        below = values.abs() < (1 - 2.0**-8) * scale  # larger values saturate
        assert int(below.sum()) > 6300
        assert torch.equal(t.dequantize()[below], values.bfloat16().float()[below])


def test_short_names() -> None:
    assert str(qmaps.quantizer("bf16")) == "unscaled/bf16@16s"
    assert str(qmaps.quantizer(" FP16+SR ")) == "unscaled/fp16@16s+sr"
    assert str(qmaps.algebra.pair.Pair.parse("bf16+sr + 32-bit")) == (
        "unscaled/bf16@16s+sr + 32-bit"
    )
    with pytest.raises(qmaps.errors.SpecError):
        qmaps.quantizer("bf16+x")


def test_nvfp4_is_that_of_torchao() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao", minversion="0.18")
        from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize
    generator = torch.Generator().manual_seed(0)
    spread = torch.exp2(torch.randn(64, 8, generator=generator)).repeat_interleave(16, 1)
    x = torch.randn(64, 128, generator=generator) * spread
    actual, packed = nvfp4_quantize(x, 16, x.abs().max() / (6 * 448))
    t = qmaps.quantizer("B16xe4m3/e2m1@4s").quantize(x)
    assert torch.equal(t.scales[0].view(64, 8), actual.view(torch.uint8))
    # Their codes are the bits of e2m1, sign first, the lower half of a byte before the upper one.
    theirs = torch.stack([packed & 15, packed >> 4], dim=-1).view(64, 128).int()
    magnitude, negative = theirs & 7, theirs >> 3 == 1
    assert torch.equal(t.codes(), 7 + torch.where(negative, -magnitude, magnitude))


def test_flashoptim_states() -> None:
    first, second = moments()
    m = qmaps.quantizer("B32xf16/softsign@8s").quantize(first)
    v = qmaps.quantizer("B32xf16sq/sqrt@8u").quantize(second)
    assert m.scales[0].view(torch.int16).tolist() == FIRST_SCALES
    assert v.scales[0].view(torch.int16).tolist() == SECOND_SCALES
    assert (m.codes() - 127).tolist() == FIRST_CODES
    assert v.codes().tolist() == SECOND_CODES


@pytest.mark.parametrize(
    ("size", "stored", "exact", "share"),
    [
        (1.0, "B32xf16/softsign@8s", "B32/softsign@8s", 0.007),
        (1.0, "B32xf16sq/sqrt@8u", "B32/sqrt@8u", 0.014),
        (1e-6, "B32xf16/softsign@8s", "B32/softsign@8s", 0.26),
        (1e-6, "B32xf16sq/sqrt@8u", "B32/sqrt@8u", 0.44),
    ],
)
def test_codes_that_differ_from_flashoptims(
    size: float, stored: str, exact: str, share: float
) -> None:
    """FlashOptim divides by the unrounded scale, as with scales in float32."""
    x = torch.randn(131072, generator=torch.Generator().manual_seed(0)) * size
    x = x if stored.endswith("s") else x.square()
    ours, theirs = (qmaps.quantizer(spec).quantize(x) for spec in (stored, exact))
    assert float((ours.codes() != theirs.codes()).float().mean()) == pytest.approx(share, rel=0.1)
    theirs = replace(ours, packed=theirs.packed)
    error, error_of_flashoptim = ((t.dequantize() - x).abs().mean() for t in (ours, theirs))
    assert error < error_of_flashoptim


def test_codes_are_of_the_stored_scale() -> None:
    """FlashOptim divides by the unrounded scale; results differ with the rounding of the scale."""
    x = sample((4096,), signed=True)
    stored, unrounded = (
        qmaps.quantizer(spec).quantize(x) for spec in ("B32xf16/softsign@8s", "B32/softsign@8s")
    )
    n = x.view(-1, 32) / stored.scales[0].float()[:, None]
    assert torch.equal(stored.codes().view(-1, 32), encode(n, stored.quantizer.map))
    apart = (stored.codes() - unrounded.codes()).abs()
    assert (int(apart.max()), 0 < int(apart.sum()) < 0.02 * x.numel()) == (1, True)


@pytest.mark.parametrize(
    ("spec", "nbytes"),
    [
        ("B32xf16/softsign@8s", 1024 + 64),
        ("B32xf16sq/sqrt@8u", 1024 + 64),
        ("B32xbf16/e4m3@8s", 1024 + 64),
        ("B32xe8m0/e2m1@4s", 512 + 32),
        ("B32xe8m0/e2m3@6s", 768 + 32),
        ("B16xe4m3/e2m1@4s", 512 + 64 + 4),
        ("rank1xf16/linear@4u", 512 + 2 * 64),
    ],
)
def test_bytes(spec: str, nbytes: int) -> None:
    q = qmaps.quantizer(spec)
    x = sample((32, 32), q.map.signed)
    t = q.quantize(x)
    assert t.nbytes == q.nbytes((32, 32)) == nbytes
    assert t.bits_per_element == 8 * nbytes / 1024


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: of("B4xf16x8"),
         "spec='B4xf16x8/linear@4s': B4xf16 cannot be followed by 'x8'; 'x8' follows the name of "
         "one normalizer"),
        (lambda: Float16(BlockWise(4) & Rank1()),
         "B4&rank1 cannot be followed by 'xf16'; 'xf16' follows the name of one normalizer"),
        (lambda: of("unscaled&B4"),
         "spec='unscaled&B4/linear@4s': unscaled cannot be combined with '&'; it works alone"),
        (lambda: of("unscaledx8"),
         "spec='unscaledx8/linear@4s': unscaled cannot be combined with 'x8'; it works alone"),
        (lambda: qmaps.quantizer("tensor/e4m3(mx=true,raw=true)@8s"),
         "spec='tensor/e4m3(mx=true,raw=true)@8s': mx=True of e4m3 does not go with raw=True"),
        (lambda: qmaps.quantizer("logB4xe8m0/log2@4u"),
         "spec='logB4xe8m0/log2@4u': logB4 cannot be combined with 'xe8m0'; it works alone, with "
         "the maps log2 and log2-0"),
        (lambda: of("B4" + 100 * "xf16"),
         f"spec={shown('B4' + 100 * 'xf16' + '/linear@4s')}: B4xf16 cannot be followed by 'xf16'; "
         "'xf16' follows the name of one normalizer"),
    ],
)  # fmt: skip
def test_incompatible_formats_are_refused(make: object, message: str) -> None:
    with pytest.raises(qmaps.errors.SpecError) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value) == message


@pytest.mark.parametrize("backend", [b.name for b in qmaps.backends() if b.available])
def test_the_second_level_is_a_normal_number(backend: str) -> None:
    """As a subnormal one it would have few bits, and scales would be inexact multiples of it."""
    q = qmaps.quantizer("B16xe4m3/e2m1@4s")
    x = torch.full((64,), 1e-37)
    with use_backend(backend):
        t = q.quantize(x)
    assert t.scales[-1].item() == torch.finfo(torch.float32).tiny
    assert t.dequantize().tolist() == pytest.approx(x.tolist(), rel=1 / 16)
