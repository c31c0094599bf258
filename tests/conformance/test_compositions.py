"""What holds for every normalizer with every map."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import qmaps
from qmaps import QuantizedTensor, Quantizer, reference
from qmaps.errors import BadValueError, NonFiniteError
from qmaps.philox import RoundingKey
from tests.helpers import compositions, sample

ALL = compositions()
SOME = ALL[::7]
by_spec = pytest.mark.parametrize("q", ALL, ids=str)
SHAPES = [(), (1,), (13,), (300,), (9, 30), (3, 5, 7), (2, 3, 4, 5), (0,), (0, 5), (5, 0)]


def plain(q: Quantizer) -> bool:
    """Whether the quantizer's spec alone says what it is (no codebook of a user's)."""
    try:
        return qmaps.quantizer(str(q)) == q
    except qmaps.QmapsError:
        return False


@by_spec
def test_spec_round_trips(q: Quantizer) -> None:
    assert qmaps.quantizer(str(q), [q.map] if isinstance(q.map, qmaps.Codebook) else []) == q
    stochastic = dataclasses.replace(q, stochastic=True)
    assert str(stochastic) == f"{q}+sr"
    if plain(q):
        assert qmaps.quantizer(str(q).upper()) == q
        assert qmaps.quantizer(str(stochastic).lower()) == stochastic


@by_spec
def test_every_shape_keeps_its_shape_layout_and_size(q: Quantizer) -> None:
    for shape in SHAPES:
        x = sample(shape, q.map.signed)
        t = q.quantize(x)
        y = t.dequantize()
        assert y.shape == x.shape
        assert y.dtype == torch.float32
        assert bool(y.isfinite().all())
        found = tuple((part.dtype, tuple(part.shape)) for part in t.scales)
        assert found == q.normalizer.layout(shape), shape
        codebook = 4 * t.quantizer.map.codebook().numel() if q.map.counted else 0
        scales = sum(part.numel() * part.element_size() for part in t.scales)
        assert t.nbytes == math.ceil(x.numel() * q.map.bits / 8) + scales + codebook
        if x.numel():
            assert t.bits_per_element == 8 * t.nbytes / x.numel()
        else:
            assert math.isnan(t.bits_per_element)


@by_spec
def test_codes_are_the_nearest_of_the_normalized_values(q: Quantizer) -> None:
    x = sample((9, 30), q.map.signed)
    t = q.quantize(x)
    n = q.normalizer.normalize(x, t.scales)
    assert torch.equal(t.codes(), reference.encode(n, t.quantizer.map))
    if not q.normalizer.log_domain:
        scale = q.normalizer.expand(t.scales, (9, 30)).expand(9, 30)
        assert torch.equal(n, torch.where(scale == 0, 0.0, x / scale))
        assert bool((n.abs() <= 1).all())
        values = t.quantizer.map.codebook()[t.codes()]
        assert torch.equal(t.dequantize(), values * scale)


@by_spec
def test_zeros_stay_zeros(q: Quantizer) -> None:
    x = torch.zeros(20, 16)
    assert not q.quantize(x).dequantize().any()
    # Whole blocks, rows and columns of zeros beside others.
    x[:8, :8] = sample((8, 8), q.map.signed).abs() + 0.1
    t = q.quantize(x)
    y = t.dequantize()
    if q.normalizer.log_domain:
        silent = x == 0
    else:
        silent = (q.normalizer.expand(t.scales, (20, 16)) == 0).expand(20, 16)
    assert not y[silent].any()


@by_spec
def test_strides_and_dtypes_do_not_matter(q: Quantizer) -> None:
    x = sample((30, 18), q.map.signed)
    for view in (x.t(), x[::2, 1::3], x[:, 4], x.expand(2, 30, 18)):
        expected, found = q.quantize(view.contiguous()), q.quantize(view)
        assert torch.equal(expected.packed, found.packed)
        assert torch.equal(expected.dequantize(), found.dequantize())
    for dtype in (torch.float16, torch.bfloat16):
        low = x.clamp(-6e4, 6e4).to(dtype)
        expected, found = q.quantize(low.float()), q.quantize(low)
        assert torch.equal(expected.packed, found.packed)
        half = found.dequantize(dtype=dtype)
        assert half.dtype == dtype
        assert torch.equal(half, expected.dequantize().to(dtype))


@by_spec
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_is_refused_and_never_becomes_finite(q: Quantizer, bad: float) -> None:
    x = sample((9, 30), q.map.signed)
    x[3, 4] = bad
    x[5, 6] = bad
    message = (
        "x holds 2 NaN or infinite elements, the first at flat index 94; "
        "only finite values can be quantized"
    )
    with pytest.raises(NonFiniteError) as caught:
        q.quantize(x)
    assert str(caught.value) == message
    if bad < 0 and not q.map.signed:
        return  # a negative infinity is no unsigned value either
    y = q.quantize_unchecked(x).dequantize()
    assert not y[3, 4].isfinite()
    assert not y[5, 6].isfinite()


@by_spec
def test_negative_values_are_refused_by_unsigned_maps(q: Quantizer) -> None:
    x = sample((300,), True).abs()
    x[[7, 11]] *= -1
    if q.map.signed:
        assert q.quantize(x).dequantize().shape == (300,)
        return
    with pytest.raises(BadValueError) as caught:
        q.quantize(x)
    assert str(caught.value) == (
        f"x holds 2 negative elements, the first at flat index 7; {q.map.spec} is unsigned; "
        "use a signed map"
    )


@by_spec
def test_stochastic_rounding_is_reproducible_and_brackets_the_value(q: Quantizer) -> None:
    sr = dataclasses.replace(q, stochastic=True)
    x = torch.rand(40, 64, generator=torch.Generator().manual_seed(3)) + 0.01
    frozen = sr.fit(x)
    first = frozen.quantize(x, key=RoundingKey(step=5))
    assert torch.equal(first.packed, frozen.quantize(x, key=RoundingKey(step=5)).packed)
    n, codebook = q.normalizer.normalize(x, first.scales), frozen.map.codebook()
    if int(((n > codebook[0]) & (n < codebook[-1])).sum()) > 1000:
        other = frozen.quantize(x, key=RoundingKey(step=6))
        assert not torch.equal(first.packed, other.packed)
    nearest = dataclasses.replace(frozen, stochastic=False).quantize(x)
    assert int((first.codes() - nearest.codes()).abs().max()) <= 1


@pytest.mark.parametrize("q", SOME, ids=str)
def test_out_writes_in_place(q: Quantizer) -> None:
    x, other = (sample((9, 30), q.map.signed, seed=seed) for seed in (1, 2))
    frozen = q.fit(x)
    t = frozen.quantize(x)
    places = [t.packed.data_ptr(), *(part.data_ptr() for part in t.scales)]
    assert frozen.quantize(other, out=t) is t
    assert places == [t.packed.data_ptr(), *(part.data_ptr() for part in t.scales)]
    assert torch.equal(t.dequantize(), frozen.quantize(other).dequantize())
    out = torch.empty(9, 30)
    assert frozen.dequantize(t, out=out) is out
    assert torch.equal(out, t.dequantize())


@by_spec
def test_save_and_load(q: Quantizer, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("save") / "t.safetensors"
    t = q.quantize(sample((9, 30), q.map.signed))
    t.save(path)
    back = QuantizedTensor.load(path)
    assert back.quantizer == t.quantizer
    assert back.shape == t.shape
    assert torch.equal(back.packed, t.packed)
    assert torch.equal(back.dequantize(), t.dequantize())
    assert back.nbytes == t.nbytes


@by_spec
def test_largest_magnitude_is_exact_where_the_codebook_holds_it(q: Quantizer) -> None:
    eight = "x8" in q.normalizer.spec
    if q.normalizer.log_domain or q.map.fitted or eight or 1.0 not in q.map.codebook().tolist():
        return
    x = sample((64, 9), q.map.signed).abs()
    t = q.quantize(x)
    scale = q.normalizer.expand(t.scales, (64, 9)).expand(64, 9)
    at_scale = x == scale
    assert bool(at_scale.any())
    assert torch.equal(t.dequantize()[at_scale], x[at_scale])


@pytest.mark.gpu
@by_spec
def test_cuda_gives_the_same_bits(q: Quantizer) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    x = sample((40, 64), q.map.signed)
    for quantizer in (q.fit(x), dataclasses.replace(q.fit(x), stochastic=True)):
        here = quantizer.quantize(x)
        there = quantizer.quantize(x.cuda())
        assert torch.equal(here.packed, there.packed.cpu())
        assert torch.equal(here.dequantize(), there.dequantize().cpu())
