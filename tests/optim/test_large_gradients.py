"""Finite gradients never make states infinite: second moments are bounded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import qmaps
from qmaps.ops.backends import use_backend
from qmaps.optim import PRESETS
from qmaps.optim.rule import LARGEST_SQUARE, bounded_
from tests.optim.families import FAMILIES, Family

QUANTIZERS = (
    *PRESETS,
    "bf16 + bf16",
    "tensor/fp16@16s + tensor/fp16@16u",
    "B32xe8m0/e4m3@8s + B128xbf16/DE-0@8u",
)
LARGE = (2e19, 1e37)  # squares of both are infinite in float32


def trained(family: Family, quantizers: str, large: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    param = torch.nn.Parameter(torch.randn(64, 80, generator=generator))
    options = {**family.options[-1], "lr": 1e-3, "maximize": False}
    optimizer = family.full([param], **options, state_quantizers=quantizers, nonfinite="raise")
    for step in range(4):
        param.grad = torch.randn(64, 80, generator=generator)
        if step < 2:
            param.grad[0, 5] = large
        optimizer.step()
    return param.detach()


@pytest.mark.parametrize("large", LARGE)
@pytest.mark.parametrize("quantizers", QUANTIZERS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_parameter_becomes_nan(family: Family, quantizers: str, large: float) -> None:
    stepped = trained(family, quantizers, large)
    assert int((~stepped.isfinite()).sum()) == 0
    with use_backend("reference"):
        assert torch.equal(trained(family, quantizers, large), stepped)


def test_the_bound_is_that_of_the_kernels() -> None:
    header = Path(qmaps.__file__).parent / "engines/kernels/rules/terms.hpp"
    [number] = re.findall(r"kLargestSquare = ([\d.e+]+)f;", header.read_text())
    assert float(number) == LARGEST_SQUARE == 2.0**126


def test_nan_and_ordinary_second_moments_are_as_they_were() -> None:
    v = torch.tensor([0.0, 1e-30, 3.0, 2.0**126, torch.nan])
    assert torch.equal(bounded_(v.clone())[:4], v[:4])
    assert bool(bounded_(v)[4].isnan())
    assert bounded_(torch.tensor([1e38, torch.inf])).tolist() == [2.0**126] * 2


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_an_infinite_gradient_is_seen_in_the_parameter(family: Family) -> None:
    param = torch.nn.Parameter(torch.ones(64, 80))
    optimizer = family.full([param], **family.options[-1])
    for step in range(2):  # SOAP begins with the second step
        param.grad = torch.ones(64, 80)
        param.grad[0, 5] = torch.inf if step else 1.0
        optimizer.step()
    assert family.name == "Lion" or not bool(param[0, 5].isfinite())
