"""Zeros of states stay zeros, or at least do not become negative."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from qmaps.algebra.quantizer import quantizer
from qmaps.engines.plan import zero
from qmaps.errors import BadValueError
from qmaps.ops.backends import use_backend
from qmaps.optim import PRESETS, SGD, SM3, AdamW, Lion, QuantizedOptimizer

OPTIMIZERS: dict[str, Callable[..., QuantizedOptimizer]] = {
    "AdamW": AdamW,
    "Lion": Lion,
    "SGD": lambda params, **options: SGD(params, momentum=0.9, **options),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_weight_whose_gradient_is_zero_does_not_move(preset: str, optimizer: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(64, 128))
    mask = torch.rand(64, 128, generator=generator) < 0.5
    stepped = OPTIMIZERS[optimizer]([weight], lr=1e-3, state_quantizers=preset)
    for _ in range(5):
        weight.grad = torch.randn(64, 128, generator=generator) * mask
        stepped.step()
    assert torch.equal(weight == 0, ~mask)


@pytest.mark.parametrize("spec", ["B64/linear@4s", "B64/linear@4s+qsr", "B32/DE-0@3s+sr"])
def test_states_that_are_never_negative_do_not_become_so(spec: str) -> None:
    weight = nn.Parameter(torch.zeros(64, 128))
    for make, state in ((SM3, "accumulator_0"), (AdamW, "exp_avg_sq")):
        message = (
            f"state_quantizers sets '{state}' to {spec}, which makes zeros negative; {state} is "
            "never negative and needs an unsigned map"
        )
        with pytest.raises(BadValueError, match=f"^{re.escape(message)}$"):
            make([weight], state_quantizers={state: spec})
    AdamW([weight], state_quantizers={"exp_avg_sq": "B64/DE@4s"})


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("preset", PRESETS)
def test_engines_agree_on_the_sign_of_a_zero(preset: str, optimizer: str) -> None:
    """Code 0 of a signed map is negative, and times a scale of 0 it is -0.0."""

    def trained() -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        weight = nn.Parameter(torch.zeros(64, 128))
        mask = (torch.rand(64, 1, generator=generator) < 0.5).float()
        stepped = OPTIMIZERS[optimizer]([weight], lr=1e-3, state_quantizers=preset)
        for _ in range(3):
            weight.grad = torch.randn(64, 128, generator=generator) * mask
            stepped.step()
        return weight.detach().view(torch.int32)

    with use_backend("reference"):
        expected = trained()
    assert torch.equal(trained(), expected)


@pytest.mark.parametrize(
    ("spec", "code"),
    [("B64/DE@4s", 7), ("B64/linear@4s", 8), ("B64/nf4@4s", 7), ("B64/DE-0@4u", 0)],
)
def test_a_new_state_has_the_code_of_a_positive_zero(spec: str, code: int) -> None:
    state = zero(quantizer(spec), (3, 67), torch.device("cpu"))
    assert torch.equal(state.codes(), torch.full((3, 67), code, dtype=torch.int32))
    assert torch.equal(state.dequantize().view(torch.int32), torch.zeros(3, 67, dtype=torch.int32))
