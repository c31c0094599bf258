"""A finite gradient makes no state infinite: its square is bounded."""

from __future__ import annotations

import math

import pytest
import torch

from qmaps.ops.backends import use_backend
from qmaps.optim import PRESETS
from qmaps.optim.rule import squared, sum_of_squares
from tests.optim.families import FAMILIES, Family

QUANTIZERS = (
    *PRESETS,
    "bf16 + bf16",
    "tensor/fp16@16s + tensor/fp16@16u",
    "B32xe8m0/e4m3@8s + B128xbf16/DE-0@8u",
)
LARGE = (2e19, 1e37)  # the squares of both are infinite in float32


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


def test_infinity_nan_and_ordinary_squares_are_as_they_were() -> None:
    x = torch.tensor([0.0, -0.0, 1e-30, -3.0, 9.2e18, torch.nan])
    assert torch.equal(squared(x)[:5], (x * x)[:5])
    assert bool(squared(x)[5].isnan())
    assert squared(torch.tensor([1e19, -(2.0**127), torch.inf])).tolist() == [
        2.0**126,
        2.0**127,
        math.inf,
    ]
    ends = torch.tensor([3.0, 2.0**127, torch.inf, torch.nan])
    total = sum_of_squares(ends, torch.tensor([4.0, 2.0**127, 1.0, 1.0]))
    assert total[:3].tolist() == [7.0, 2.0**127, math.inf]
    assert bool(total[3].isnan())
