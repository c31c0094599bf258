"""Subtractive dither: its arithmetic by hand, its error, and what it is refused for."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qmaps
from qmaps.algebra.philox import RoundingKey, draws
from qmaps.errors import SpecError
from qmaps.maps import Codebook
from qmaps.maps.base import spacing

EVEN = Codebook([-0.75, -0.25, 0.25, 0.75], label="even")
NORMALIZERS = (
    "tensor", "B16", "B7", "row", "col", "rank1", "B16x8", "B16xf16", "B16xe8m0", "B16&row",
    "rms2B16", "unscaled",
)  # fmt: skip
MAPS = (
    "linear@2s", "linear@4s", "linear@5s", "linear@8s", "linear@16s", "linear0@3s", "linear0@8s",
    "even@2s", "linear@2u", "linear@4u", "linear@8u", "linear@16u", "linear0@4u",
)  # fmt: skip


def by_hand(q: qmaps.Quantizer, x: np.ndarray, scale: np.ndarray, key: RoundingKey) -> np.ndarray:
    """What `x` decodes to, one IEEE float32 operation after the other."""
    book = q.map.codebook().numpy()
    gap = np.float32((float(book[-1]) - float(book[0])) / (len(book) - 1))
    r = (draws(x.size, key).numpy() + 0.5) / 2**16
    offset = (r - 0.5).astype(np.float32).reshape(x.shape) * gap
    n = np.divide(x, scale, out=np.zeros_like(x), where=scale != 0)
    wanted = (n + offset).astype(np.float64)
    distance = np.abs(wanted[..., None] - book.astype(np.float64))
    values = book[distance.argmin(axis=-1)] - offset  # of a tie the lower code
    if not q.map.signed:
        values = np.maximum(values, np.float32(0))
    return values * scale


@settings(max_examples=100, deadline=None)
@given(
    normalizer=st.sampled_from(NORMALIZERS),
    map_=st.sampled_from(MAPS),
    rows=st.integers(1, 9),
    width=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    step=st.integers(0, 2**53 - 1),
    offset=st.integers(0, 2**40),
)
def test_codes_and_values_by_hand(
    normalizer: str, map_: str, rows: int, width: int, seed: int, step: int, offset: int
) -> None:
    q = qmaps.quantizer(f"{normalizer}/{map_}+dither", codebooks=[EVEN])
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed % 1000))
    x = x if q.map.signed else x.abs()
    x[rows // 2] = 0
    key = RoundingKey(seed=seed, step=step, tensor=5, state=1, offset=offset)
    t = q.quantize(x, key=key)
    scale = q.normalizer.expand(t.scales, tuple(x.shape)).expand(x.shape)
    expected = by_hand(q, x.numpy(), scale.numpy(), key)
    found = t.dequantize()
    assert np.array_equal(found.numpy(), expected)
    assert q.map.signed or float(found.min()) >= 0
    assert not found[scale == 0].any()


@pytest.mark.parametrize("spec", ["B64/linear@4s+dither", "B64/linear0@3s+dither",
                                  "B64/linear@4u+dither"])  # fmt: skip
@pytest.mark.parametrize("place", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_error_is_uniform_and_independent_of_the_value(spec: str, place: float) -> None:
    """Wherever a value lies within the range: at a code, between two, and at both ends."""
    q = qmaps.quantizer(spec)
    book = q.map.codebook()
    gap = spacing(q.map)
    assert gap is not None
    for n in (book[0] + place * gap, book[-1] - place * gap):
        x = n.repeat(2**18).view(-1, 64)
        x[:, 0] = 1.0  # so that every scale is 1
        found = q.quantize(x, key=RoundingKey(seed=7)).dequantize()[:, 1:].double()
        error = (found - n.double()) / gap
        assert float(error.abs().max()) <= 0.5 + 1e-5
        assert abs(float(error.mean())) < 6 / math.sqrt(12 * error.numel())
        # The variance of the squares of uniform numbers in (-1/2, 1/2) is 1/180.
        assert abs(float(error.square().mean()) - 1 / 12) < 6 / math.sqrt(180 * error.numel())
        quarters = torch.histc(error.float(), 4, -0.5, 0.5) / error.numel()
        assert float((quarters - 0.25).abs().max()) < 6 * math.sqrt(0.1875 / error.numel())


def test_stochastic_rounding_has_twice_the_variance() -> None:
    x = torch.rand(2**16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    squares = []
    for end in ("+dither", "+sr"):
        found = qmaps.quantizer(f"B256/linear@4s{end}").quantize(x).dequantize()
        squares.append(float((found - x).double().square().mean()))
    assert squares[1] / squares[0] == pytest.approx(2, rel=0.02)


def test_another_key_decodes_to_other_values() -> None:
    q = qmaps.quantizer("B64/linear@4s+dither")
    x = torch.rand(256, generator=torch.Generator().manual_seed(0)) - 0.5
    t = q.quantize(x, key=RoundingKey(step=1))
    other = dataclasses.replace(t, key=RoundingKey(step=2))
    assert float((t.dequantize() - x).abs().max()) < 0.034  # half a gap of the largest, 0.5
    assert float((other.dequantize() - x).abs().max()) > 0.04


def test_a_part_of_a_tensor_is_dithered_as_in_the_whole() -> None:
    x = torch.rand(1024, generator=torch.Generator().manual_seed(0)) - 0.5
    q = qmaps.quantizer("B64/linear@4s+dither")
    whole = q.quantize(x, key=RoundingKey(seed=3, step=9)).dequantize()
    for start, stop in ((0, 256), (256, 704), (704, 1024)):
        key = RoundingKey(seed=3, step=9, offset=start)
        assert torch.equal(q.quantize(x[start:stop], key=key).dequantize(), whole[start:stop])


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_sixteen_bits_in_and_out(kind: torch.dtype) -> None:
    q = qmaps.quantizer("B64/linear@4s+dither")
    x = torch.randn(256, generator=torch.Generator().manual_seed(0)).to(kind)
    t = q.quantize(x)
    assert torch.equal(t.dequantize(), q.quantize(x.float()).dequantize())
    out = torch.empty(256, dtype=kind)
    assert t.dequantize(out=out) is out
    assert torch.equal(out, t.dequantize().to(kind))
    assert torch.equal(out, t.dequantize(dtype=kind))


def test_what_is_not_finite_stays_so() -> None:
    q = qmaps.quantizer("B16/linear@4s+dither")
    for bad in (math.nan, math.inf, -math.inf):
        x = torch.ones(32)
        x[3] = bad
        found = q.quantize_unchecked(x).dequantize()
        assert not found[:16].isfinite().any()
        assert found[16:].isfinite().all()
        with pytest.raises(qmaps.QmapsError, match="x holds 1 NaN or infinite elements"):
            q.quantize(x)


EVENLY = "+dither needs a map of evenly spaced values, such as linear or linear0"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("B128/DE@4s+dither", f"B128/DE@4s+dither: {EVENLY}"),
        ("B128/sqrt:linear@4u+dither", f"B128/sqrt:linear@4u+dither: {EVENLY}"),
        ("B128/quantile@4s+dither", f"B128/quantile@4s+dither: {EVENLY}"),
        ("bf16+DITHER", f"unscaled/bf16@16s+dither: {EVENLY}"),
        ("logB128/log2@4u+dither", "logB128/log2@4u+dither: +dither needs a normalizer that "
         "divides by a scale; logB128 does not"),
        ("powB128r16/linear@4u+dither", "powB128r16/linear@4u+dither: +dither needs a normalizer "
         "that divides by a scale; powB128r16 does not"),
    ],
)  # fmt: skip
def test_what_cannot_be_dithered_is_refused(spec: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        qmaps.quantizer(spec)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([-1.0, 1.0], 2.0),
        ([0.0, 0.25, 0.5], 0.25),
        ([-1.0, -0.1, 0.8], 0.9),
        ([-1.0, -0.1, 0.81], None),
        ([0.0, 0.25, 0.5, 1.0], None),
    ],
)
def test_spacing(values: list[float], expected: float | None) -> None:
    found = spacing(Codebook(values, label="some"))
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-7))
