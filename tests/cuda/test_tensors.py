"""Emulated kernels give the codes, scales and values of the reference, bit for bit."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import Tensor

import qmaps
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.rounding import Rounding
from qmaps.cuda import layout
from qmaps.cuda.support import CUDA
from qmaps.engines.search_tables import cells, guesses
from qmaps.errors import BadValueError, NonFiniteError
from qmaps.maps import Codebook
from qmaps.maps.base import limits as thresholds_of
from qmaps.maps.base import table
from qmaps.normalize import PerTensor
from qmaps.ops.backends import use_backend
from tests.cuda.emulation import EmulatedEngine
from tests.helpers import same_bits

pytestmark = pytest.mark.slow

SPECS = (
    "B256/DE@8s", "B2048/DE-0@8u", "B128/linear@4u", "B8/nf4@4s", "B64/linear0@3s", "B512/DE@6s",
    "tensor/linear@8u", "row/DE@5s", "rank1/linear@4u", "B64&rank1/DE@4s", "B100/power2@7s",
    "B32x8/DE@4s", "rank1x8/linear@2s", "tensorx8/DE@8s", "B9000/DE@8s",
    "logB128/log2@8u", "logB2048/log2@4u", "logB64/log2-0@3u", "logB64/log2-0@4u",
    "logB100/log2@8u", "logB3/log2-0@4u", "logB5000/log2@4u",
    "logB64/log2-0(in_log=true)@4u", "logB64/log2(in_log=true)@8u",
    "logB128q0.1/log2-0@4u", "logB8q0.5/log2@8u", "logB2048q0.3/log2@4u", "logB512q1/log2@3u",
    "logB64q0.25/log2-0(in_log=true)@2u", "powB128r100352/e4m3@8s", "powB128r100352/e4m3@8u",
    "powB8r16/linear@4u", "powB2048r1000/DE@4s", "powB256r7/linear0@3s", "powB64r1000/linear@12s",
    "B32xf16/softsign@8s", "B32xf16sq/sqrt@8u", "B32xbf16/DE@8s", "B32xe8m0/e2m1@4s",
    "B16xe4m3/e2m1@4s", "B256xf16/DE@4s", "B2048xe8m0/linear@4u", "B100xf16/DE@8s",
    "rank1xe8m0/linear@4u", "rowxf16sq/linear@8u", "B32xbf16&row/DE@8s", "rank1xe4m3/linear@4u",
    "tensorxe4m3/DE@8s", "B64xf16&colxe4m3&rowx8/DE@4s", "unscaled/e4m3@8s",
    "bf16", "fp16", "B256/bf16@16s", "B32xf16/fp16@16u", "B256/linear@9s", "B128/linear@12u",
    "rank1/linear0@16u",
)  # fmt: skip
ON_ALL_INPUTS = {
    "B256/DE@8s", "B128/linear@4u+sr", "rank1/linear@4u", "row/DE@5s+sr", "B32x8/DE@4s+sr",
    "logB128/log2@8u+sr", "logB128q0.1/log2-0@4u", "powB128r100352/e4m3@8s", "B32xf16/softsign@8s",
    "B64xf16&colxe4m3&rowx8/DE@4s", "bf16+sr",
}  # fmt: skip
FEW = Codebook([-0.75, -0.25, 0.25, 0.75], label="few")
TINY = Codebook([2.0**-149, 2.0**-148, 3 * 2.0**-149], label="tiny")
INPUTS = (
    ((37, 211), torch.float32),
    ((4100,), torch.bfloat16),
    ((5, 3, 7), torch.float16),
    ((), torch.float32),
)
"""Each needs a separate kernel, for its dtype or for a block cut to its size."""


def assert_as_reference(q: qmaps.Quantizer, x: Tensor, key: RoundingKey | None = None) -> None:
    ours = q.quantize_unchecked(x, key=key)
    values = ours.dequantize()
    with use_backend("reference"):
        theirs = q.quantize_unchecked(x, key=key)
        expected = theirs.dequantize()
    assert torch.equal(ours.packed, theirs.packed), q
    assert all(same_bits(a, b) for a, b in zip(ours.scales, theirs.scales, strict=True)), q
    assert same_bits(values, expected), q


def sample(shape: tuple[int, ...], dtype: torch.dtype, *, signed: bool) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    exponents = torch.randint(-6, 3, shape, generator=generator).float()
    x = torch.randn(shape, generator=generator) * 10**exponents
    x = x if signed else x.abs()
    if x.numel() > 600:
        x.view(-1)[256:600] = 0  # whole blocks of zeros
    return x.to(dtype)


@pytest.mark.fuzz
@pytest.mark.parametrize("rounding", ["", "+sr"])
@pytest.mark.parametrize("spec", SPECS)
def test_every_kind_of_scale(spec: str, rounding: str, on_device: EmulatedEngine) -> None:
    """All inputs for one spec of each kind; ``make fuzz`` runs all specs."""
    q = qmaps.quantizer(spec + rounding)
    key = RoundingKey(seed=5, tensor=3, step=7, offset=2) if rounding else None
    everything = "QMAPS_FUZZ" in os.environ or spec + rounding in ON_ALL_INPUTS
    for shape, dtype in INPUTS if everything else INPUTS[:1]:
        assert CUDA.supports(q.normalizer, q.map, shape)
        assert_as_reference(q, sample(shape, dtype, signed=q.map.signed), key)
    assert on_device.launched


@pytest.mark.parametrize("offset", [*range(9), 2**35 - 61])
def test_stochastic_rounding_wherever_a_shard_begins(
    offset: int, on_device: EmulatedEngine
) -> None:
    key = RoundingKey(seed=5, tensor=3, step=7, offset=offset)
    for spec in ("B256/DE@8s+sr", "rank1/linear@4s+sr", "B256/DE@8s+qsr", "rank1/linear@4s+qsr",
                 "B64xbf16/geometric@4u+qsr", "tensor/geometric@2u+sr"):  # fmt: skip
        q = qmaps.quantizer(spec)
        assert_as_reference(q, sample((7, 131), torch.float32, signed=q.map.signed), key)


@pytest.mark.parametrize(
    "spec",
    ["B256/DE@8s", "rank1/linear@4s", "B32x8/DE@4s", "B32xf16/DE@8s", "B32xf16sq/DE@8s",
     "B32xbf16/DE@8s", "B256xe8m0/DE@8s", "rowxe8m0/DE@4s", "B16xe4m3/DE@4s", "unscaled/e4m3@8s",
     "bf16", "fp16", "B256/linear@12s",
     "logB64q0.2/log2@4u", "logB512q0.5/log2-0@4u", "powB64r1000/e4m3@8s",
     "powB512r16/linear@4s"],
)  # fmt: skip
def test_values_that_are_not_finite(spec: str, on_device: EmulatedEngine) -> None:
    q = qmaps.quantizer(spec)
    for value in (float("nan"), float("inf"), -float("inf")):
        x = sample((40, 100), torch.float32, signed=True)
        x[3, 70] = value
        assert_as_reference(q, x)


def test_subnormals_and_the_ends_of_float32(on_device: EmulatedEngine) -> None:
    tiny = torch.tensor([1e-45, -1e-45, 1e-38, 3e-39, 0.0, -0.0, 1e-40, 2.5e-45] * 64)
    huge = torch.tensor([3.4e38, -3.4e38, 1.0, -1.0, 1e-38, 0.0, 2e38, 1e30] * 64)
    for spec in ("B128/DE@8s", "B8/linear@4s", "rank1/DE@8s", "B16x8/linear@8s", "B32xf16/DE@8s",
                 "B32xf16sq/DE@8s", "B32xbf16/DE@8s", "B256xe8m0/DE@8s", "rowxe8m0/DE@4s",
                 "B16xe4m3/DE@4s", "rowxf16/DE@8s", "unscaled/e4m3@8s", "powB64r1000/e4m3@8s",
                 "powB16r1/linear@4s+sr", "bf16", "bf16+sr", "fp16+sr"):  # fmt: skip
        key = RoundingKey(seed=5, tensor=3) if spec.endswith("+sr") else None
        for x in (tiny, huge, tiny * 0):
            assert_as_reference(qmaps.quantizer(spec), x, key)


def test_views_that_begin_anywhere(on_device: EmulatedEngine) -> None:
    # These addresses do not allow wide accesses.
    memory = torch.randn(5000)
    halves = torch.randn(5000).bfloat16()
    for start in (1, 2, 3):
        for x in (memory[start:], halves[start:]):
            assert_as_reference(qmaps.quantizer("B256/DE@8s"), x)
    q = qmaps.quantizer("B256/DE@4s")
    x = memory[:4096]
    expected = q.quantize(x)
    packed = torch.full((4096,), 255, dtype=torch.uint8)[1:2049]
    values = torch.zeros(4097)[1:]
    out = qmaps.QuantizedTensor(q, (4096,), packed, tuple(s.clone() for s in expected.scales))
    assert torch.equal(q.quantize(x, out=out).packed, expected.packed)
    assert torch.equal(out.dequantize(out=values), expected.dequantize())


@pytest.mark.parametrize("size", [2, 16, 256])
def test_codebooks_without_structure(size: int, on_device: EmulatedEngine) -> None:
    generator = np.random.default_rng(size)
    for values in (
        generator.uniform(-1, 1, size),
        np.sort(generator.normal(size=size) * 10.0 ** generator.integers(-30, 0, size)),
        0.5 + np.arange(size) * 2.0**-24,  # neighbours in float32: halvings are needed
        -np.geomspace(1e-38, 1, size),
    ):
        codebook = np.unique((values / np.abs(values).max()).astype(np.float32))
        if codebook.size < 2:
            continue
        map_ = Codebook(codebook.tolist(), bits=8)
        n = np.concatenate([codebook, thresholds_of(map_).numpy()])
        near = [n, np.nextafter(n, np.float32(-2)), np.nextafter(n, np.float32(2))]
        x = torch.from_numpy(np.concatenate([*near, [1, -1]]))
        for rounding in (None, RoundingKey(seed=1)):
            q = qmaps.Quantizer(PerTensor(), map_, rounding=Rounding("+sr" if rounding else ""))
            positive = x.float() if map_.signed else x.float().abs()
            assert_as_reference(q, positive, rounding)


@pytest.mark.parametrize("map_", ["softsign@8s", "sqrt@8u", "sqrt@5s", "mu-law@8s"])
def test_thresholds_that_a_map_gives(map_: str, on_device: EmulatedEngine) -> None:
    q = qmaps.quantizer(f"tensor/{map_}")
    limits = thresholds_of(q.map)
    beside = [limits, limits.nextafter(torch.tensor(2.0)), limits.nextafter(torch.tensor(-2.0))]
    x = torch.cat([*beside, q.map.codebook()])
    assert_as_reference(q, x[x >= (-1 if q.map.signed else 0)])


def test_guesses_are_lower_bounds_that_the_halvings_reach() -> None:
    generator = np.random.default_rng(0)
    for spec in ("DE@8s", "DE-0@8u", "linear@8s", "e4m3@8s", "inverse@8s", "nf4@4s", "tree@8s"):
        limits = thresholds_of(qmaps.quantizer(f"tensor/{spec}").map).numpy()
        actual = guesses(limits)
        assert len(actual.counts) <= layout.MAX_GUESSES
        assert actual.steps <= 1, spec  # one comparison for maps with structure
        x = np.concatenate([limits, -limits, generator.uniform(-1, 1, 5000)]).astype(np.float32)
        bits = x.view(np.uint32)
        negative, sides = bits >> 31 != 0, len(actual.counts) - actual.buckets
        bucket = ((bits & 0x7FFFFFFF) >> actual.shift).astype(np.int64) - actual.first
        bucket = bucket.clip(0, actual.buckets - 1) * ~(negative & (sides == 0))
        missing = np.searchsorted(limits, x) - actual.counts[bucket + negative * sides].astype(int)
        assert missing.min() >= 0
        assert missing.max() < 2**actual.steps


def test_cells_leave_one_comparison() -> None:
    generator = np.random.default_rng(0)
    sizes = {"DE@4s": 513, "DE-0@4u": 129, "linear@8u": 1025, "linear0@6s": 65}
    for spec, size in sizes.items():
        limits = thresholds_of(qmaps.quantizer(f"tensor/{spec}").map).numpy()
        counts = cells(limits)
        assert counts is not None
        assert len(counts) == size
        x = np.concatenate([limits, -limits, generator.uniform(-1, 1, 5000), [-1, 1, 0.0, -0.0]])
        x = x.astype(np.float32)
        x = np.concatenate([np.nextafter(x, np.float32(end)) for end in (-1, 1)] + [x])
        cell = np.rint((x.astype(np.float64) + 1) * (size // 2)).astype(np.int64)
        remaining = np.searchsorted(limits, x) - counts[cell].astype(int)
        assert set(remaining) == {0, 1}
    assert cells(thresholds_of(qmaps.quantizer("tensor/DE@8s").map).numpy()) is None


def test_bad_elements_are_found(on_device: EmulatedEngine) -> None:
    x = torch.randn(3000)
    x[2999] = float("nan")
    for spec in ("B256/DE@8s", "rank1/linear@4s"):
        q = qmaps.quantizer(spec)
        with pytest.raises(NonFiniteError, match="the first at flat index 2999"):
            q.quantize(x)
        before = q.quantize(torch.ones(3000))
        codes = before.packed.clone()
        with pytest.raises(NonFiniteError):
            q.quantize(x, out=before)
        assert torch.equal(before.packed, codes)
    with pytest.raises(BadValueError, match="negative"):
        qmaps.quantizer("B256/DE-0@8u").quantize(torch.randn(3000))


@pytest.mark.parametrize(("normalizer", "stochastic"), [("tensor", False), ("B64", True)])
@pytest.mark.parametrize(
    "values",
    [[1.0] * 4, [-1.0, -1.0, -0.5, 0.0, 0.0, 0.25, 1.0, 1.0], [k // 5 / 51 for k in range(256)]],
    ids=len,
)
def test_of_equal_values_the_lowest_code_is_taken(
    values: list[float], normalizer: str, stochastic: bool, on_device: EmulatedEngine
) -> None:
    map_ = Codebook(values, label="lloyd@8s", signed=True, per_tensor=True)
    actual = qmaps.quantizer(f"{normalizer}/DE@8s").normalizer
    q = qmaps.Quantizer(actual, map_, rounding=Rounding("+sr" if stochastic else ""))
    x = torch.cat([table(map_).repeat(3), torch.linspace(-1, 1, 400)])
    assert_as_reference(q, x)
    codes = q.quantize(x).codes()
    assert torch.equal(codes, torch.searchsorted(table(map_), table(map_)[codes], out_int32=True))
    assert any("quantize" in name or "encode" in name for name in on_device.launched)


@pytest.mark.parametrize(
    "spec", ["logB16/log2@4u", "logB16/log2@4u+sr", "logB20/log2@4u", "logB16q0.3/log2@4u"]
)
def test_log2_ranges_of_zeros_and_negative_numbers(spec: str, on_device: EmulatedEngine) -> None:
    q = qmaps.quantizer(spec)
    x = torch.linspace(0.1, 1, 70)
    x[-1] = -0.5
    for values in (-torch.zeros(70), x, -x.abs(), torch.where(torch.arange(70) % 4 == 0, 0.0, x)):
        assert_as_reference(q, values)


@pytest.mark.parametrize("size", [8, 64, 512, 2048])
def test_quantiles_of_equal_and_neighbouring_values(size: int, on_device: EmulatedEngine) -> None:
    generator = torch.Generator().manual_seed(size)
    repeated = torch.randint(0, 4, (3 * size,), generator=generator).float()
    many = torch.rand(3 * size, generator=generator)
    single = torch.zeros(3 * size)
    single[size + 3] = 0.7
    for quantile in (0.01, 1 / 3, 0.5, 0.999):
        q = qmaps.quantizer(f"logB{size}q{quantile}/log2@8u")
        for x in (repeated, many, single, -0.0 * repeated, many * 1e-39, many[: 2 * size + 5]):
            assert_as_reference(q, x)


def test_quantizers_without_kernels_run_on_the_reference(on_device: EmulatedEngine) -> None:
    for spec in ("rms4B64/DE@8s", "rms4B64x8/DE@8s", "logB100q0.1/log2-0@4u",
                 "powB100r1000/e4m3@8s", "rank1B8x8/DE@4s"):  # fmt: skip
        q = qmaps.quantizer(spec)
        assert not CUDA.supports(q.normalizer, q.map, (64, 64))
        assert_as_reference(q, sample((64, 64), torch.float32, signed=q.map.signed))
    assert not on_device.launched
