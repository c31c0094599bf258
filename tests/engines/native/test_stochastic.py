"""Stochastic rounding has the reference's bits for any beginning of a shard, and at extremes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import qmaps
from qmaps.algebra.philox import RoundingKey
from qmaps.maps import Codebook
from qmaps.ops.backends import use_backend

SPECS = ("B64/DE@8s", "B256/DE-0@8u", "B100/DE@4s", "logB64/log2@4u", "rank1/linear@4u",
         "B64/linear@10s", "B32/quantile@3s", "B256/geometric@8u", "B64xbf16/geometric@4u",
         "B100/geometric@5u", "tensor/geometric@2u", "B64xbf16/mu-law10:linear0@4s")  # fmt: skip
AT_2_TO_35 = [2**35 - 64, 2**35 - 61]
"""Offsets of elements with block numbers beyond 2**32 inside the tensor."""

generator = torch.Generator().manual_seed(3)
BOOKS = [
    Codebook((torch.randn(256, generator=generator) / 3).clamp(-0.9, 0.9), label="all-codes"),
    Codebook(torch.rand(32, generator=generator) * 0.5, label="half"),
    Codebook(torch.tensor([0, 1e-45, 3e-45, 1e-40, 1.5e-40, 0.5, 1.0]), label="tiny-gaps"),
    Codebook(torch.linspace(-0.7, 0.6, 16), label="few"),
    Codebook(torch.linspace(-1, 1, 1024), label="wide"),
    Codebook(2.0 ** torch.arange(-15, 1), label="powers-of-two"),
    Codebook(1 + torch.arange(-128, 128) * 2.0**-9, label="above-1"),
]


def assert_as_reference(q: qmaps.Quantizer, x: Tensor, key: RoundingKey) -> None:
    with use_backend("reference"):
        expected = q.quantize_unchecked(x, key=key)
    assert torch.equal(q.quantize_unchecked(x, key=key).packed, expected.packed)


@pytest.mark.parametrize("rounding", ["+sr", "+qsr"])
@pytest.mark.parametrize("spec", SPECS)
def test_every_beginning_of_a_shard(spec: str, rounding: str, isa: str) -> None:
    q = qmaps.quantizer(spec + rounding)
    x = torch.randn(37, 131, generator=torch.Generator().manual_seed(1))
    x = x if q.map.signed else x.abs()
    x.view(-1)[700:1300] *= 1e-36
    for offset in (*range(9), *AT_2_TO_35):
        assert_as_reference(q, x, RoundingKey(seed=5, step=2**32 + 7, offset=offset))


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.label)
@pytest.mark.parametrize("normalizer", ["B64", "B100", "tensor", "B32x8"])
def test_codes_clipping_nan_and_infinity(normalizer: str, book: Codebook, isa: str) -> None:
    values = book.codebook()
    signed = bool(values[0] < 0)
    spec = f"{normalizer}/{book.label}@{book.bits}{'s' if signed else 'u'}+sr"
    q = qmaps.quantizer(spec, codebooks=BOOKS)
    x = torch.randn(24, 200, generator=torch.Generator().manual_seed(1))
    x = x if signed else x.abs()
    x[0] *= 1e-39
    x[5] = values[torch.arange(200) % values.numel()]
    key = RoundingKey(seed=1, step=2, offset=5)
    for value in (0.0, float("nan"), float("inf")):
        x[3, 3] = value
        assert_as_reference(q, x, key)
    # Scales too small: half of all values lie outside the codebook.
    x[3, 3] = 0.0
    scales = q.normalizer.scales(x * 0.5)
    ours = q.quantize_scaled(x, scales, key=key)
    with use_backend("reference"):
        theirs = q.quantize_scaled(x, scales, key=key)
    assert torch.equal(ours.packed, theirs.packed)


def test_values_that_are_all_equal(isa: str) -> None:
    x = torch.full((40, 50), 0.5)
    for spec in ("tensor/quantile@4u+sr", "B64/quantile@2u+qsr"):
        assert_as_reference(qmaps.quantizer(spec), x, RoundingKey(seed=1))


@pytest.mark.parametrize("spec", ["tensor/DE@8s+sr", "tensor/DE@4s+sr", "tensor/linear@10s+sr",
                                  "tensor/geometric@8u+sr", "tensor/geometric@3u+qsr"])  # fmt: skip
def test_values_of_the_codebook_never_move(spec: str, isa: str) -> None:
    q = qmaps.quantizer(spec)
    values = q.map.codebook()
    for step in range(20):
        t = q.quantize(values.repeat(5), key=RoundingKey(step=step))
        assert torch.equal(t.codes(), torch.arange(values.numel(), dtype=torch.int32).repeat(5))
