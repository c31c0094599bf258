"""Checks of every normalizer with every map, nearest and stochastic."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from qmaps import metrics
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import Quantizer
from qmaps.algebra.quantizer import quantizer as named
from qmaps.algebra.rounding import Rounding
from qmaps.algebra.saved import load, save
from qmaps.engines.addresses import address
from qmaps.errors import BadValueError, NonFiniteError
from qmaps.maps.base import Map
from qmaps.maps.codebook import Codebook
from qmaps.normalize.base import Normalizer
from qmaps.testing._data import LARGEST, SMALLEST, about, checks_in, codes_of, refused, sample

Check = Callable[[Quantizer, torch.device], None]
DENSE = ("DE@4u", "linear0@3u", "log2@4u")
"""Maps with enough values between their codes for the check that rounding is unbiased."""
SHAPES = [
    (),
    (1,),
    (13,),
    (300,),
    (9, 30),
    (3, 5, 7),
    (2, 3, 4, 5),
    (0,),
    (0, 5),
    (5, 0),
    (2, 0, 3),
]


def spec_round_trips(q: Quantizer, device: torch.device) -> None:
    assert named(str(q), [q.map] if isinstance(q.map, Codebook) else []) == q
    stochastic = dataclasses.replace(q, rounding=Rounding.STOCHASTIC)
    assert str(stochastic) == f"{q}+sr"
    assert repr(stochastic) == f"quantizer('{q}+sr')"
    if not isinstance(q.map, Codebook):
        assert named(str(q).upper()) == q
        assert named(str(stochastic).lower()) == stochastic


def every_shape_keeps_its_shape_layout_and_size(q: Quantizer, device: torch.device) -> None:
    for shape in SHAPES:
        with about((str(q), shape)):
            x = sample(shape, q.map.signed).to(device)
            t = q.quantize(x)
            y = t.dequantize()
            assert t.device.type == y.device.type == device.type
            assert y.shape == x.shape == t.codes().shape
            assert y.dtype == torch.float32
            assert bool(y.isfinite().all())
            layout = tuple((part.dtype, tuple(part.shape)) for part in t.scales)
            assert layout == q.normalizer.layout(shape)
            codebook = 4 * t.quantizer.map.codebook().numel() if q.map.counted else 0
            scales = sum(part.numel() * part.element_size() for part in t.scales)
            assert t.nbytes == math.ceil(x.numel() * q.map.bits / 8) + scales + codebook
            if x.numel():
                assert t.bits_per_element == 8 * t.nbytes / x.numel()
            else:
                assert math.isnan(t.bits_per_element)


def one_division_the_nearest_code_one_product(q: Quantizer, device: torch.device) -> None:
    x = sample((9, 30), q.map.signed)
    x[2, 3:9] = 0
    t = q.quantize(x.to(device)).to("cpu")
    codebook = t.quantizer.map.codebook()
    if not q.normalizer.linear:
        n = q.normalizer.normalize(x, t.scales)
        assert t.codes().reshape(-1).tolist() == codes_of(n, t.quantizer.map)
        return
    scale = q.normalizer.expand(t.scales, (9, 30)).expand(9, 30).numpy()
    n = torch.from_numpy(x.numpy() / scale)
    unbounded = q.normalizer.clips or q.normalizer.ones
    assert unbounded or bool((n.abs() <= 1).all())
    assert t.codes().reshape(-1).tolist() == codes_of(n, t.quantizer.map)
    decoded = codebook.numpy()[t.codes().numpy()] * scale
    assert np.array_equal(t.dequantize().numpy(), decoded)


def zeros_stay_zeros(q: Quantizer, device: torch.device) -> None:
    for rounding in (q, dataclasses.replace(q, rounding=Rounding.STOCHASTIC)):
        with about(rounding):
            x = torch.zeros(20, 16, dtype=torch.float32, device=device)
            assert not rounding.quantize(x).dequantize().any()
            # Whole blocks, rows and columns of zeros beside others.
            x[:8, :8] = (sample((8, 8), q.map.signed).abs() + 0.1).to(device)
            t = rounding.quantize(x)
            if q.normalizer.log_domain and float(rounding.map.codebook()[0]) < 0:
                silent = x == 0  # for which the map has a code
            else:
                silent = (q.normalizer.expand(t.scales, (20, 16)) == 0).expand(20, 16)
            assert not t.dequantize()[silent].any()


def strides_dtypes_and_gradients_do_not_matter(q: Quantizer, device: torch.device) -> None:
    x = sample((30, 18), q.map.signed).to(device)
    for view in (x.t(), x[::2, 1::3], x[:, 4], x[:3].expand(2, 3, 18)):
        expected, quantized = q.quantize(view.contiguous()), q.quantize(view)
        assert torch.equal(expected.packed, quantized.packed)
        assert torch.equal(expected.dequantize(), quantized.dequantize())
    for dtype in (torch.float16, torch.bfloat16):
        low = x[:9].clamp(-6e4, 6e4).to(dtype)
        expected, quantized = q.quantize(low.float()), q.quantize(low.requires_grad_())
        assert torch.equal(expected.packed, quantized.packed)
        half = quantized.dequantize(dtype=dtype)
        assert half.dtype == dtype
        assert not half.requires_grad
        assert torch.equal(half, expected.dequantize().to(dtype))


def non_finite_is_refused(q: Quantizer, device: torch.device) -> None:
    message = (
        "x holds 2 NaN or infinite elements, the first at flat index 94; "
        "only finite values can be quantized"
    )
    for bad in (math.nan, math.inf, -math.inf):
        with about((str(q), bad)):
            x = sample((9, 30), q.map.signed).to(device)
            x[3, 4] = x[5, 6] = bad
            for refuse in (q.quantize, q.fit, q.error):
                with refused(NonFiniteError, message):
                    refuse(x)


def non_finite_never_becomes_finite(q: Quantizer, device: torch.device) -> None:
    x = sample((9, 30), q.map.signed).to(device)
    frozen = q.fit(x)
    for quantizer in (q, frozen, dataclasses.replace(frozen, rounding=Rounding.STOCHASTIC)):
        for bad in (math.nan, math.inf, -math.inf):
            with about((str(quantizer), bad)):
                broken = x.clone()
                broken[3, 4] = bad
                broken[5, 6] = bad
                y = quantizer.quantize_unchecked(broken).dequantize()
                assert not bool(y[3, 4].isfinite())
                assert not bool(y[5, 6].isfinite())


def negative_values_are_refused_by_unsigned_maps(q: Quantizer, device: torch.device) -> None:
    x = sample((300,), True).abs().to(device)
    x[[7, 11]] *= -1
    if q.map.signed:
        assert q.quantize(x).dequantize().shape == (300,)
        return
    message = (
        f"x holds 2 negative elements, the first at flat index 7; {q.map.spec} is "
        "unsigned; use a signed map"
    )
    with refused(BadValueError, message):
        q.quantize(x)
    x = torch.tensor([-0.0, 1.0], dtype=torch.float32, device=device)
    assert q.quantize(x).shape == (2,)


def stochastic_rounding_takes_a_neighbour_and_follows_the_key(
    q: Quantizer, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(3)
    x = (torch.rand(20, 64, generator=generator, dtype=torch.float32) + 0.01).to(device)
    sr = dataclasses.replace(q, rounding=Rounding.STOCHASTIC).fit(x)
    first = sr.quantize(x, key=RoundingKey(step=5))
    assert torch.equal(first.packed, sr.quantize(x, key=RoundingKey(step=5)).packed)
    n = q.normalizer.normalize(x, first.scales).cpu()
    codebook, codes = sr.map.codebook(), first.codes().cpu().long()
    last = codebook.numel() - 1
    # Two codes stand around n: the value of one is at most n, of the next at least n.
    below, above = codebook[(codes - 1).clamp(min=0)], codebook[(codes + 1).clamp(max=last)]
    inside = (n >= codebook[0]) & (n <= codebook[-1])
    assert bool(((below <= n) & (n <= above))[inside & (codes > 0) & (codes < last)].all())
    assert bool((n <= above)[inside & (codes == 0)].all())
    assert bool((below <= n)[inside & (codes == last)].all())
    held = torch.isin(n, codebook)
    assert bool((codebook[codes] == n)[held].all())
    # Zero has the first code in a log2 range; what is below the range rounds to it or up.
    largest_code = 1 if q.normalizer.log_domain and float(codebook[0]) < 0 else 0
    assert bool((codes[n < codebook[0]] <= largest_code).all())
    assert bool((codebook[codes[n > codebook[-1]]] == codebook[-1]).all())
    if int((inside & ~held).sum()) > 500:
        for key in (RoundingKey(step=6), RoundingKey(step=5, tensor=1)):
            assert not torch.equal(first.packed, sr.quantize(x, key=key).packed)


def stochastic_rounding_is_unbiased_in_value(q: Quantizer, device: torch.device) -> None:
    """The summed error of 32 draws of 2560 values, in gaps, against its standard deviation.

    |z| < 7 refuses a correct composition once in 4e11 runs; about 3,000 of them: once in 1e8.
    The keys are fixed, so the outcome does not change from run to run.
    """
    if q.map.bend:
        return  # biased on purpose; see the checks of maps
    generator = torch.Generator().manual_seed(8)
    x = (torch.rand(40, 64, generator=generator, dtype=torch.float32) + 0.05).to(device)
    sr = dataclasses.replace(q, rounding=Rounding.STOCHASTIC).fit(x)
    draws = [sr.quantize(x, key=RoundingKey(step=step)).dequantize() for step in range(32)]
    values = torch.stack(draws).double()
    low, high = values.amin(0), values.amax(0)
    saw_both = (high > low) & (x > low) & (x < high)  # both neighbours were drawn
    share = ((x.double() - low) / (high - low))[saw_both].clamp(0, 1)
    is_inner = (share > 0.25) & (share < 0.75)  # elsewhere having seen both is informative
    error = ((values.mean(0) - x) / (high - low))[saw_both][is_inner]
    share = share[is_inner]
    assert share.numel() > 300 or q.map.spec not in DENSE
    if share.numel() > 300:  # few values lie between the codes of some maps
        deviation = float((share * (1 - share) / 32).sum().sqrt())
        assert abs(float(error.sum())) < 7 * deviation


def out_writes_in_place(q: Quantizer, device: torch.device) -> None:
    x, second = (sample((9, 30), q.map.signed, seed=seed).to(device) for seed in (1, 2))
    frozen = q.fit(x)
    t = frozen.quantize(x)
    places = [address(t.packed), *(address(part) for part in t.scales)]
    # A fitted map keeps the codebook of `out`.
    assert q.quantize(second, out=t) is t
    assert places == [address(t.packed), *(address(part) for part in t.scales)]
    expected = frozen.quantize(second)
    assert torch.equal(t.packed, expected.packed)
    assert torch.equal(t.dequantize(), expected.dequantize())
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(9, 30, dtype=dtype, device=device)
        place = address(out)
        assert frozen.dequantize(t, out=out) is out
        assert address(out) == place
        assert torch.equal(out, t.dequantize(dtype=dtype))


def save_and_load(q: Quantizer, device: torch.device) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.safetensors"
        for quantizer in (q, dataclasses.replace(q, rounding=Rounding.STOCHASTIC)):
            with about(quantizer):
                t = quantizer.quantize(sample((9, 30), q.map.signed))
                save({"tensor": t}, path)
                back = load(path)["tensor"]
                assert back.quantizer == t.quantizer
                assert str(back.quantizer) == str(quantizer)
                assert back.shape == t.shape
                assert torch.equal(back.packed, t.packed)
                for ours, theirs in zip(t.scales, back.scales, strict=True):
                    assert ours.dtype == theirs.dtype
                    assert torch.equal(ours, theirs)
                assert torch.equal(back.dequantize(), t.dequantize())
                assert back.nbytes == t.nbytes


def largest_magnitude_is_exact_where_the_codebook_holds_it(
    q: Quantizer, device: torch.device
) -> None:
    if q.normalizer.log_domain or any(d != torch.float32 for d, _ in q.normalizer.layout((9,))):
        return  # promised for float32 scales that divide
    if q.normalizer.ones or q.normalizer.clips:
        return  # whatever the largest magnitude is
    if q.map.fitted:
        return
    held = q.map.codebook().tolist()
    for end in (-1.0, 1.0):
        if end not in held:
            continue
        with about((str(q), end)):
            x = end * sample((64, 9), q.map.signed).abs()
            t = q.quantize(x)
            scale = q.normalizer.expand(t.scales, (64, 9)).expand(64, 9)
            at_scale = x.abs() == scale
            assert bool(at_scale.any())
            assert torch.equal(t.dequantize()[at_scale], x[at_scale])


def the_ends_of_float32_stay_finite(q: Quantizer, device: torch.device) -> None:
    x = torch.tensor(
        [[LARGEST, -LARGEST / 1.5, 1.0, SMALLEST], [1e-40, -3e-39, 0, 1e20], [0, 0, 0, -SMALLEST]],
        dtype=torch.float32,
        device=device,
    )
    if not q.map.fitted and float(q.map.codebook().abs().max()) > 1:
        return  # values above 1 are the user's own, and decode beyond the scale
    values = x if q.map.signed else x.abs()
    for quantizer in (q, dataclasses.replace(q, rounding=Rounding.STOCHASTIC)):
        with about(quantizer):
            y = quantizer.quantize(values).dequantize()
            assert bool(y.isfinite().all())
            assert bool((y.abs() <= LARGEST).all())


def error_returns_the_metrics_of_what_decodes(q: Quantizer, device: torch.device) -> None:
    x = sample((9, 30), q.map.signed)
    measured = q.error(x)
    t = q.quantize(x)
    assert set(measured) == {"bits_per_element", *metrics.METRICS}
    assert measured["bits_per_element"] == t.bits_per_element
    a, b = x.double().numpy(), t.dequantize().double().numpy()
    assert math.isclose(measured["mse"], ((a - b) ** 2).mean(), rel_tol=1e-12)
    assert measured["max_abs_error"] == np.abs(a - b).max()
    relative = (np.abs(a - b) / np.abs(a)).mean()
    assert math.isclose(measured["mean_rel_error"], relative, rel_tol=1e-6)
    used = torch.unique(t.codes()).numel()
    assert measured["codes_used"] == used / t.quantizer.map.codebook().numel()


CHECKS: tuple[Check, ...] = checks_in(globals())
"""Every check, given a quantizer and the device to work on."""


def composed(normalizer: Normalizer, maps: Iterable[Map]) -> Iterator[Quantizer]:
    """`normalizer` with every map for it."""
    return (normalizer / map_ for map_ in maps if normalizer.log_domain == map_.log_domain)


def run(check: Check, normalizer: Normalizer, maps: Iterable[Map], device: torch.device) -> None:
    """Check a normalizer with every map for it; a failure names the quantizer."""
    for q in composed(normalizer, maps):
        with about(q):
            check(q, device)
