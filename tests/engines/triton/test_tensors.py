"""Quantized tensors in Triton's interpreter: ties, NaN and infinity."""

from __future__ import annotations

import pytest
import torch

import qmaps
from qmaps.algebra.philox import RoundingKey
from qmaps.errors import NonFiniteError
from qmaps.maps.base import limits
from qmaps.ops.backends import use_backend
from qmaps.ops.proof import differing

pytestmark = pytest.mark.usefixtures("interpreter")

SPECS = ("B256/DE-sym@8s", "B64xbf16/linear@4u", "B64/DE@3s+sr", "B64xbf16/geometric@4u+qsr")


@pytest.mark.parametrize("spec", SPECS)
def test_ties_and_their_neighbours(spec: str) -> None:
    q = qmaps.quantizer(spec)
    ties = limits(q.map)
    block = [torch.ones(1), ties, q.map.codebook()]
    block += [torch.nextafter(ties, torch.tensor(end)) for end in (-2.0, 2.0)]
    x = torch.cat(block)
    x = torch.cat(
        [torch.ones(1), *[part for value in x.split(60) for part in (value, torch.ones(1))]]
    )
    x = x.clamp(min=-1 if q.map.signed else 0)
    key = RoundingKey(seed=7, step=123)
    quantized = q.quantize(x, key=key)
    decoded = quantized.dequantize()
    with use_backend("reference"):
        expected = q.quantize(x, key=key)
        assert differing(quantized.packed, expected.packed) == 0
        assert differing(decoded, expected.dequantize()) == 0


def test_not_a_number_is_refused_and_out_is_unchanged() -> None:
    q = qmaps.quantizer("B64/linear@4s")
    out = q.quantize(torch.ones(70))
    before = out.packed.clone()
    with pytest.raises(NonFiniteError):
        q.quantize(torch.tensor([1.0, torch.nan]).repeat(35), out=out)
    assert torch.equal(out.packed, before)


def test_numbers_that_are_not_finite_take_the_codes_of_the_reference() -> None:
    x = torch.ones(256)
    x[[3, 70]] = torch.nan
    x[130], x[131] = torch.inf, -torch.inf
    x[200] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)  # NaN with a sign
    for spec in ("B64xbf16/DE@4s", "B64/DE@8s+sr", "B64xf16/linear@4s", "B64xe8m0/linear@4s"):
        q = qmaps.quantizer(spec)
        quantized = q.quantize_unchecked(x)
        with use_backend("reference"):
            expected = q.quantize_unchecked(x)
        assert differing(quantized.packed, expected.packed) == 0, spec
        assert differing(quantized.scales[0], expected.scales[0]) == 0, spec
