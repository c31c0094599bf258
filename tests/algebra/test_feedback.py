"""Error feedback: what rounding loses is kept and added before the next encoding."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import qmaps
from qmaps.algebra.feedback import restored
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.algebra.rounding import Rounding
from qmaps.algebra.saved import from_plain, to_plain
from qmaps.errors import BadTypeError, BadValueError
from tests.helpers import examples, sample

# Codes beside 0 stand for 1/7; the residual's map has the same values times its block's largest.
Q4 = qmaps.quantizer("tensor/linear0@4s+ef4")


def stream(q: qmaps.Quantizer, xs: list[Tensor]) -> list[QuantizedTensor]:
    """Encode one tensor after another, each after the one before."""
    made: list[QuantizedTensor] = []
    for x in xs:
        made.append(q.quantize(x, after=made[-1] if made else None))
    return made


def test_golden_values() -> None:
    """By hand, in sevenths: 7, 0.4, -1.25, 0; the residual has 15 values up to its largest."""
    x = torch.tensor([7.0, 0.4, -1.25, 0.0]) / 7
    first, second, third = stream(Q4, [x, x, x])
    assert first.codes().tolist() == [14, 7, 6, 7]
    # 0.4 and -0.25 are left, which is 7 and -4.375 of 0.4 / 7.
    kept = first.beside[0].dequantize() * 7
    torch.testing.assert_close(kept, torch.tensor([0.0, 0.4, -0.4 * 4 / 7, 0.0]), atol=1e-6, rtol=0)
    # 0.8 and -1.25 - 0.2286 become 1 and -1; -0.2 and -0.4786 are left: -2.93 and -7 of the 7th.
    assert second.codes().tolist() == [14, 8, 6, 7]
    kept = second.beside[0].dequantize() * 7
    expected = torch.tensor([0.0, -3 / 7, -1.0, 0.0]) * (0.25 + 1.6 / 7)
    torch.testing.assert_close(kept, expected, atol=1e-6, rtol=0)
    # 0.4 - 0.2051 and -1.25 - 0.4786: the second is past the middle of -1 and -2.
    assert third.codes().tolist() == [14, 7, 5, 7]


def test_without_what_came_before_it_rounds_to_nearest() -> None:
    x = torch.randn(300, generator=torch.Generator().manual_seed(0))
    nearest = qmaps.quantizer("B64/DE@4s").quantize(x)
    t = qmaps.quantizer("B64/DE@4s+ef8").quantize(x)
    assert torch.equal(t.packed, nearest.packed)
    assert torch.equal(t.dequantize(), nearest.dequantize())
    lost = x - nearest.dequantize()
    assert torch.equal(t.beside[0].packed, qmaps.quantizer("B128/linear0@8s").quantize(lost).packed)
    assert torch.equal(restored(t), nearest.dequantize() + t.beside[0].dequantize())
    assert restored(nearest).equal(nearest.dequantize())


NORMALIZERS = ["tensor", "B16", "B128", "row", "rank1", "B32x8", "B16xf16", "B32xe8m0", "B64&col"]
MAPS = ["linear@4s", "linear0@4s", "DE@4s", "DE@3s", "power2@4s", "sqrt@4s", "e2m1@4s", "nf4@4s"]


@pytest.mark.fuzz
@settings(max_examples=examples(40), deadline=None)
@given(
    normalizer=st.sampled_from(NORMALIZERS),
    map_=st.sampled_from(MAPS),
    bits=st.sampled_from([4, 8]),
    seed=st.integers(0, 2**32 - 1),
    drift=st.floats(0, 0.1),
)
def test_the_sum_of_what_is_decoded_follows_that_of_the_exact_values(
    normalizer: str, map_: str, bits: int, seed: int, drift: float
) -> None:
    """The error of the sum stays at one quantization's, besides the rounding of residuals.

    Rounding to nearest the error grows with the steps, which shows in the last line.
    """
    random = torch.Generator().manual_seed(seed)
    x, steps = torch.randn(6, 32, generator=random), 60
    xs = [x + drift * torch.randn(6, 32, generator=random) for _ in range(steps)]
    made = stream(qmaps.quantizer(f"{normalizer}/{map_}+ef{bits}"), xs)
    error = sum((t.dequantize().double() - x for t, x in zip(made, xs, strict=True)), 0 * x)
    # One quantization's error, of the largest that was encoded. A scale may be twice that (e8m0),
    # and a value that is rounded by its root may be 3/4 of a gap away.
    book = made[0].quantizer.map.codebook()
    half = max(float(book.diff().max()) / 2, 1 - float(book[-1]), 1 + float(book[0]))
    once = 2 * 1.5 * half * max(float(restored(t).abs().max()) for t in made)
    assert float(error.abs().max()) < once * (1 + steps / (14 if bits == 4 else 254))
    nearest = qmaps.quantizer(f"{normalizer}/{map_}")
    dropped = sum((nearest.quantize(x).dequantize().double() - x for x in xs), 0 * x)
    assert float(error.abs().mean()) < float(dropped.abs().mean()) / 2 + once / 2


@pytest.mark.parametrize("spec", ["B128/linear0@4u+ef8", "tensor/DE@4u+ef8", "row/linear0@3u+ef8"])
def test_small_values_under_an_unsigned_map_arrive_on_the_whole(spec: str) -> None:
    """A residual may take y below 0; the code is 0 then, and the rest is not lost."""
    q = qmaps.quantizer(spec)
    book = q.map.codebook()
    x = torch.cat([torch.ones(1), torch.linspace(0.03, 0.45, 31) * float(book[1])])[None]
    made = stream(q, [x] * 400)
    mean = sum(t.dequantize() for t in made) / 400
    torch.testing.assert_close(mean, x, rtol=0.12, atol=float(book[1]) / 300)
    assert any(bool((t.beside[0].dequantize() < 0).any()) for t in made)
    assert not qmaps.quantizer(spec[:-4]).quantize(x).dequantize()[:, 1:].any()
    assert all(bool((restored(t) >= 0).all()) for t in made)


def test_what_an_unsigned_map_cannot_express_does_not_add_up() -> None:
    """Unsigned linear has no value below 1/16: the residual stays at half of it."""
    x = torch.tensor([1.0, 0.001])
    made = stream(qmaps.quantizer("tensor/linear@4u+ef8"), [x] * 50)
    assert all(float(t.dequantize()[1]) == 0.0625 for t in made)
    assert float(made[-1].beside[0].dequantize()[1]) == pytest.approx(-1 / 32, rel=0.02)
    # So that it follows at once when the value rises.
    rising = torch.tensor([1.0, 0.2])
    after = stream(qmaps.quantizer("tensor/linear@4u+ef8"), [x] * 50 + [rising] * 8)
    assert float(after[50].dequantize()[1]) == 0.1875
    assert sum(float(t.dequantize()[1]) for t in after[50:]) == pytest.approx(1.6, abs=0.07)


def test_zeros_stay_zeros() -> None:
    x = torch.zeros(256)
    x[3] = 0.37
    made = stream(qmaps.quantizer("B128/linear0@4s+ef4"), [x, x * 0.9, x * 1.3, x * 0.2])
    for t in made:
        assert t.dequantize().nonzero().tolist() in ([[3]], [])
        assert restored(t)[4:].count_nonzero() == 0


def test_in_place() -> None:
    q = qmaps.quantizer("B64/DE@4s+ef4")
    xs = [torch.randn(200, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    expected = stream(q, xs)
    t = q.quantize(xs[0])
    for x, one in zip(xs[1:], expected[1:], strict=True):
        assert q.quantize(x, out=t, after=t) is t
        assert torch.equal(t.packed, one.packed)
        assert torch.equal(t.beside[0].packed, one.beside[0].packed)
    before = restored(t)
    for bad in (torch.inf, torch.nan):
        with pytest.raises(qmaps.QmapsError, match="x holds 1 NaN or infinite elements"):
            q.quantize(torch.ones(200).index_fill(0, torch.tensor(3), bad), out=t, after=t)
    assert torch.equal(restored(t), before)
    # Without `after` it begins anew.
    q.quantize(xs[1], out=t)
    assert torch.equal(restored(t), restored(q.quantize(xs[1])))


def test_what_is_not_finite_stays_so() -> None:
    q = qmaps.quantizer("B16/DE@4s+ef4")
    x = torch.ones(32)
    t = q.quantize(x)
    x[3] = torch.nan
    bad = q.quantize_unchecked(x, after=t)
    assert not bad.dequantize()[:16].isfinite().any()
    again = q.quantize_unchecked(torch.ones(32), after=bad)
    assert not again.dequantize()[:16].isfinite().any()


def test_negative_values_are_refused_whatever_the_residual() -> None:
    q = qmaps.quantizer("tensor/linear0@4u+ef4")
    t = q.quantize(torch.tensor([1.0, 0.1]))
    with pytest.raises(BadValueError) as caught:
        q.quantize(torch.tensor([1.0, -0.01]), after=t)
    assert str(caught.value) == (
        "x holds 1 negative elements, the first at flat index 1; linear0@4u is unsigned; use a "
        "signed map"
    )


@pytest.mark.parametrize("spec", ["B64/DE@4s+ef4", "B64/quantile@4s+ef8", "rank1/linear@4u+ef4"])
def test_files_copies_and_bytes(spec: str, tmp_path: Path) -> None:
    q = qmaps.quantizer(spec)
    x = sample((24, 40), q.map.signed)
    t = q.quantize(x)
    qmaps.save({"tensor": t}, tmp_path / "t.safetensors")
    back = qmaps.load(tmp_path / "t.safetensors")["tensor"]
    for one in (back, t.clone(), t.to("cpu"), from_plain(to_plain(t))):
        assert one.quantizer.spec == spec
        assert torch.equal(restored(one), restored(t))
        assert torch.equal(q.quantize(x, after=one).packed, q.quantize(x, after=t).packed)
    bits = q.rounding.residual_bits
    assert bits is not None
    # 960 residuals in 8 blocks.
    residual = 960 * bits // 8 + 8 * 4
    assert t.beside[0].nbytes == residual
    assert t.nbytes == q.nbytes((24, 40))
    assert t.nbytes == dataclasses.replace(q, rounding=Rounding.NEAREST).nbytes((24, 40)) + residual
    assert t.bits_per_element == 8 * t.nbytes / 960
    assert t.clone().beside[0].packed.data_ptr() != t.beside[0].packed.data_ptr()


def test_a_residual_of_another_kind_is_refused() -> None:
    t = qmaps.quantizer("B64/DE@4s+ef4").quantize(torch.ones(64))
    with pytest.raises(BadValueError) as caught:
        dataclasses.replace(t, beside=())
    assert str(caught.value) == (
        "beside holds nothing; B64/DE@4s+ef4 of shape (64,) needs B128/linear0@4s of shape (64,)"
    )
    other = qmaps.quantizer("B128/linear0@8s").quantize(torch.ones(64))
    with pytest.raises(BadValueError) as caught:
        dataclasses.replace(t, beside=(other,))
    assert str(caught.value) == (
        "beside holds B128/linear0@8s of shape (64,); B64/DE@4s+ef4 of shape (64,) needs "
        "B128/linear0@4s of shape (64,)"
    )
    plain = to_plain(t)
    plain["beside"][0]["packed"] = torch.full_like(t.beside[0].packed, 255)
    with pytest.raises(BadValueError) as caught:
        from_plain(plain)
    assert str(caught.value) == "packed holds the code 15; B128/linear0@4s has 15 codes"


def test_what_comes_before_must_fit() -> None:
    t = Q4.quantize(torch.ones(8))
    with pytest.raises(BadValueError) as caught:
        Q4.quantize(torch.ones(4), after=t)
    assert str(caught.value) == "after must have shape (4,), got (8,)"
    with pytest.raises(BadTypeError) as caught:
        Q4.quantize(torch.ones(4), after=torch.ones(4))
    assert str(caught.value) == "after must be a QuantizedTensor, got Tensor"


@pytest.mark.parametrize(
    ("spec", "beyond"),
    [
        ("unscaled/fp16@16s+ef8", 1e6),
        ("unscaled/e4m3@8s+ef4", 2000.0),
        ("unscaled/linear0@8s+ef8", 3.0),
        ("B16xf16/DE@4s+ef4", 1e6),
        ("B16xf16/DE@4u+ef4", 1e6),
    ],
)
def test_what_is_beyond_the_codes_does_not_add_up(spec: str, beyond: float) -> None:
    q = qmaps.quantizer(spec)
    high = torch.full((16,), 0.01).index_fill(0, torch.tensor(0), beyond)
    *_, last = stream(q, [high] * 50)
    assert float(last.beside[0].dequantize()[0]) <= float(last.dequantize()[0])
    x = torch.full((16,), 0.01)
    for _ in range(2):
        last = q.quantize(x, after=last)
    assert float(last.dequantize()[0]) < 0.1


def test_a_residual_makes_no_finite_value_infinite() -> None:
    q = qmaps.quantizer("B64/DE@4s+ef4")
    x = torch.full((64,), -3.4e38)  # which DE has no code for: 0.8875 times the scale is its lowest
    t = q.quantize(x)
    t = q.quantize(x, after=t, out=t)
    assert bool(restored(t).isfinite().all())


def test_a_saved_tensor_without_its_residual_is_refused() -> None:
    plain = to_plain(qmaps.quantizer("B64/DE@4s+ef4").quantize(torch.ones(64)))
    message = "beside of a saved quantized tensor holds 0 tensors; B64/DE@4s+ef4 needs 1"
    for damaged in ({**plain, "beside": []}, {k: v for k, v in plain.items() if k != "beside"}):
        with pytest.raises(BadValueError) as caught:
            from_plain(damaged)
        assert str(caught.value) == message
