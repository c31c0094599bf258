"""SOLO's and COAT's formats against their authors' code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import qmaps
from qmaps.engines import reference
from qmaps.ops.backends import use_backend
from tests.make_solow import BLOCK, CASES, draws, moment
from tests.solow import SOLOW


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("kind", "field", "rounding"),
    [("nearest", "", ""), ("in_log", "(in_log=true)", "+sr"), ("in_value", "", "+sr")],
)
def test_codes_of_solo(
    monkeypatch: pytest.MonkeyPatch, case: tuple[int, float], kind: str, field: str, rounding: str
) -> None:
    bits, quantile = case
    monkeypatch.setattr(reference, "uniform", lambda *_: draws())
    q = qmaps.quantizer(f"logB{BLOCK}q{quantile}/log2-0{field}@{bits}u{rounding}")
    with use_backend("reference"):
        assert q.quantize(moment()).codes().tolist() == SOLOW[case][kind]


@pytest.mark.parametrize("case", CASES)
def test_values_of_solo(case: tuple[int, float]) -> None:
    bits, quantile = case
    q = qmaps.quantizer(f"logB{BLOCK}q{quantile}/log2-0@{bits}u")
    scales = q.normalizer.scales(moment())
    codes = torch.arange(2**bits).repeat_interleave(BLOCK)  # each code for a row of every block
    for block in range(len(scales[0])):
        block_scales = tuple(part[block : block + 1].repeat(2**bits) for part in scales)
        values = reference.dequantize(codes, block_scales, q.normalizer, q.map)[::BLOCK].tolist()
        theirs = SOLOW[case]["levels"][block * 2**bits : (block + 1) * 2**bits]
        assert values == pytest.approx(theirs, rel=2e-6)


def coat(x: Tensor) -> Tensor:
    """Rows of 128 nonzero elements after COAT's expansion, in float32.

    As its kernel fp8_adamw_expand_cuda_kernel.cu computes it, with exponents in steps of 1/16.
    """
    high, low = x.abs().amax(1, keepdim=True), x.abs().amin(1, keepdim=True)
    middle = (high * low).sqrt()
    widest = torch.tensor(448.0 * 448 / 2).log2()
    k = (widest / (high / low).log2() * 16).floor() / 16
    grown = (x.abs() / middle).pow(k).copysign(x)
    scale = (high / middle).pow(k) / 448
    codes = (grown / scale).to(torch.float8_e4m3fn).float()
    return (codes.abs() * scale).pow(1 / k).mul(middle).copysign(codes)


def test_values_of_coat() -> None:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(1024, 128, generator=generator) * torch.exp2(
        4 * torch.randn(1024, 1, generator=generator) - 10
    )
    for moment_, sign in ((x, "s"), (x.square(), "u")):
        theirs = coat(moment_)
        ours = qmaps.quantizer(f"powB128r100352/e4m3@8{sign}").quantize(moment_).dequantize()
        assert torch.allclose(ours, theirs, rtol=2e-6, atol=0)
