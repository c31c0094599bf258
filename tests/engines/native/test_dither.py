"""Subtractive dither has the reference's bits in every composition, and decodes by the last key."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import qmaps
from qmaps.algebra.quantized import QuantizedTensor
from qmaps.engines import native
from qmaps.engines.backends import use_backend
from qmaps.engines.native import tensors
from qmaps.engines.philox import RoundingKey
from qmaps.maps import Codebook
from qmaps.optim import Adafactor, AdamW
from tests.helpers import about, examples
from tests.optim.dithered_states import (
    SPECS,
    Change,
    another_key,
    another_tensor_of_these_codes,
    encoded_in_place,
    runs,
)
from tests.optim.families import same_bits

FEW = Codebook([-0.75, -0.25, 0.25, 0.75], label="few")
BEYOND = Codebook([-3.0, 0.0, 3.0], label="beyond")
TINY = Codebook([2.0**-149, 2.0**-148, 3 * 2.0**-149], label="tiny")
BOOKS = [FEW, BEYOND, TINY]
NORMALIZERS = (
    "tensor", "B16", "B7", "B64", "B100", "B256", "row", "col", "rank1", "B16x8", "B16xf16",
    "B64xf16sq", "B32xe8m0", "B16xe4m3", "rank1xbf16", "B16&row", "rms2B16", "rms0.5B64",
    "unscaled",
)  # fmt: skip
MAPS = (
    "linear@2s", "linear@4s", "linear@5s", "linear@8s", "linear@11s", "linear@16s", "linear0@3s",
    "linear0@8s", "few@2s", "beyond@2s", "linear@2u", "linear@4u", "linear@8u",
    "linear@16u", "linear0@4u", "linear0@6u", "tiny@2u",
)  # fmt: skip
NOT_FINITE = {"": None, "NaN": float("nan"), "infinite": float("inf"), "-infinite": -float("inf")}


def outcome(q: qmaps.Quantizer, x: Tensor, key: RoundingKey) -> list[Tensor]:
    """Codes, scales, and what they decode to, into new and into given memory."""
    t = q.quantize_unchecked(x, key=key)
    again = q.quantize_unchecked(-x if q.map.signed else x + 1, key=RoundingKey())
    q.quantize_unchecked(x, key=key, out=again)
    assert again.key == t.key == key
    half = t.dequantize(dtype=torch.bfloat16)
    return [t.packed, *t.scales, t.dequantize(), half, again.packed, again.dequantize()]


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert same_bits(a, b) if a.is_floating_point() else torch.equal(a, b)


@settings(max_examples=examples(200), deadline=None)
@given(
    spec=st.tuples(st.sampled_from(NORMALIZERS), st.sampled_from(MAPS)).map("/".join),
    shape=st.sampled_from([(0,), (), (1,), (700,), (9, 40), (40, 33), (5, 4, 100), (3, 1024)]),
    size=st.sampled_from([1.0, 1e-30, 1e-41, 1e30]),
    bad=st.sampled_from(sorted(NOT_FINITE)),
    step=st.integers(0, 2**53 - 1),
    offset=st.one_of(st.integers(0, 9), st.sampled_from([2**35 - 64, 2**35 - 61, 2**41 + 3])),
)
@pytest.mark.fuzz
def test_codes_and_values(
    spec: str, shape: tuple[int, ...], size: float, bad: str, step: int, offset: int
) -> None:
    q = qmaps.quantizer(f"{spec}+dither", codebooks=BOOKS)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(step % 100)) * size
    x = x if q.map.signed else x.abs()
    if x.numel() > 300:
        x.view(-1)[130:270] = 0
    value = NOT_FINITE[bad]
    if x.numel() and value is not None and (q.map.signed or not value < 0):
        x.view(-1)[-1] = value
    key = RoundingKey(seed=step % 2**32, step=step, tensor=5, state=1, offset=offset)
    with use_backend("reference"):
        theirs = outcome(q, x, key)
    patch = pytest.MonkeyPatch()
    with patch.context() as setting, use_backend("native"):
        assert tensors.supports(q.normalizer, q.map, shape)
        for isa in native.isas():
            setting.setenv("QMAPS_ISA", isa)
            with about(isa):
                assert_same(outcome(q, x, key), theirs)


def test_it_is_the_native_engine_that_dithers(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    """The reference is not asked; a key whose elements are not consecutive needs it."""
    q, x = qmaps.quantizer("B64/linear@4s+dither"), torch.ones(256)
    expected = q.quantize(x).dequantize()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the reference was asked")

    monkeypatch.setattr("qmaps.engines.reference.quantize", refuse)
    monkeypatch.setattr("qmaps.engines.reference.dequantize", refuse)
    t = q.quantize(x)
    assert torch.equal(t.dequantize(), expected)
    key = RoundingKey(runs=(8, 32))
    with pytest.raises(AssertionError, match="the reference was asked"):
        q.quantize(x, key=key)
    with pytest.raises(AssertionError, match="the reference was asked"):
        replace(t, key=key).dequantize()


def test_bad_values_leave_codes_and_key_as_they_were(isa: str) -> None:
    q = qmaps.quantizer("B64/linear@4u+dither")
    t = q.quantize(torch.rand(256, generator=torch.Generator().manual_seed(0)))
    before = t.dequantize()
    x = torch.ones(256)
    x[77] = -1
    with pytest.raises(qmaps.QmapsError, match="x holds 1 negative elements"):
        q.quantize(x, out=t, key=RoundingKey(step=9))
    assert t.key == RoundingKey()
    assert torch.equal(t.dequantize(), before)


@pytest.mark.parametrize(
    ("change", "left"),
    [(encoded_in_place, 0), (another_key, 0), (another_tensor_of_these_codes, 0), (runs, 1)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_step_decodes_by_the_key_of_that_moment(change: Change, left: int, isa: str) -> None:
    def run(backend: str) -> AdamW:
        generator = torch.Generator().manual_seed(0)
        param = torch.nn.Parameter(torch.randn(48, 40, generator=generator))
        optimizer = AdamW([param], state_quantizers=SPECS, min_quantized_size=0, seed=3)
        with use_backend(backend):
            for number in range(5):
                if number == 3:
                    change(optimizer, param)
                param.grad = torch.randn(48, 40, generator=generator)
                optimizer.step()
                if backend == "native":
                    assert optimizer._stepper.reference_count == (left if number == 3 else 0)
        return optimizer

    ours, theirs = run("native"), run("reference")
    for one, other in zip(ours.state.items(), theirs.state.items(), strict=True):
        assert torch.equal(one[0], other[0])
        for name in ("exp_avg", "exp_avg_sq"):
            a, b = one[1][name], other[1][name]
            assert torch.equal(a.packed, b.packed)
            assert a.key == b.key


def test_factored_statistics(isa: str) -> None:
    """Rows and columns that are dithered, beside a first moment that is."""
    specs = {"exp_avg": "B64/linear@4s+dither", "row_var": "B128/linear@8u+dither",
             "col_var": "tensor/linear0@8u+dither"}  # fmt: skip

    def run(backend: str) -> Adafactor:
        generator = torch.Generator().manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(70, 300, generator=generator)) for _ in range(2)]
        optimizer = Adafactor(params, beta1=0.9, state_quantizers=specs, min_quantized_size=0)
        with use_backend(backend):
            for _ in range(4):
                for param in params:
                    param.grad = torch.randn(70, 300, generator=generator)
                optimizer.step()
        assert optimizer._stepper.reference_count == (2 if backend == "reference" else 0)
        return optimizer

    ours, theirs = run("native"), run("reference")
    for one, other in zip(ours.state.items(), theirs.state.items(), strict=True):
        assert torch.equal(one[0], other[0])
        dithered = [name for name, t in one[1].items() if isinstance(t, QuantizedTensor)]
        assert sorted(dithered) == sorted(specs)
        for name in dithered:
            a, b = one[1][name], other[1][name]
            assert torch.equal(a.packed, b.packed)
            assert all(map(torch.equal, a.scales, b.scales))
            assert a.key == b.key
