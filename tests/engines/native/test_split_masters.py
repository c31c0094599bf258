"""Split master weights on the native engine: the reference's bits on every instruction set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from qmaps import optim
from qmaps.engines.bfloat16 import SPLITS
from qmaps.ops.backends import use_backend
from qmaps.optim import QuantizedOptimizer
from tests.helpers import about
from tests.training.runs import assert_same

CASES: dict[str, tuple[type[QuantizedOptimizer], dict[str, Any]]] = {
    "AdamW8bit": (optim.AdamW8bit, {}),
    "rank1": (optim.AdamW, {"state_quantizers": "B128/DE@4s+sr + rank1/linear@4u"}),
    "LAMB": (optim.LAMB8bit, {}),
    "Adafactor": (optim.Adafactor8bit, {"beta1": 0.9}),
    "SM3": (optim.SM3, {"momentum": 0.9}),
}
NORMS = ("LAMB", "Adafactor")


def trained(case: str, form: str) -> QuantizedOptimizer:
    """Four steps; the second parameter has subnormal values, NaN and infinity."""
    random = torch.Generator().manual_seed(3)
    shapes = ((70, 300), (16389,), (33, 7))
    values = [torch.randn(shape, generator=random) for shape in shapes]
    values[1][:64] *= 2.0**-133
    if case not in NORMS:  # a norm of the parameter reaches all elements
        values[1][64:68] = torch.tensor([torch.inf, -torch.inf, torch.nan, 3.39e38])
    params = [torch.nn.Parameter(value.bfloat16()) for value in values]
    kind, options = CASES[case]
    optimizer = kind(params, lr=1e-3, min_quantized_size=0, master_weights=form, **options)
    for _ in range(4):
        for p in params:
            p.grad = torch.randn(p.shape, generator=random).bfloat16()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("form", SPLITS)
@pytest.mark.parametrize("case", CASES)
def test_steps_as_the_reference(
    case: str, form: str, threads: int, each_isa: Callable[[], Iterable[str]]
) -> None:
    with use_backend("reference"):
        expected = trained(case, form)
    for isa in each_isa():
        with about(isa):
            ours = trained(case, form)
            assert ours.engine_counts().get("reference", 0) == 0
            for actual, exact in zip(states(ours), states(expected), strict=True):
                assert torch.equal(actual, exact)
            if case in NORMS:
                assert_same(ours, expected)


def states(optimizer: QuantizedOptimizer) -> list[torch.Tensor]:
    """The bits of parameters, and their remainders."""
    params = optimizer.param_groups[0]["params"]
    bits = [p.detach().view(torch.int16) for p in params]
    return bits + [state["master_remainder"] for state in optimizer.state.values()]
