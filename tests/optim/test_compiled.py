"""Steps in functions under torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from qmaps.lpmm import LPMMSGD
from qmaps.optim import AdamW4bit, AdamW8bit, CPUOffloadOptimizer, Muon8bit

MAKE = {
    "AdamW8bit": lambda params: AdamW8bit(params, lr=0.1),
    "AdamW4bit": lambda params: AdamW4bit(params, lr=0.1),
    "Muon8bit": lambda params: Muon8bit(params, lr=0.1),
    "CPUOffloadOptimizer": lambda params: CPUOffloadOptimizer(params, AdamW8bit, lr=0.1),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MAKE)
def test_a_compiled_training_step_has_the_same_bits(name: str) -> None:
    def trained(*, compiled: bool) -> torch.Tensor:
        torch._dynamo.reset()
        param = nn.Parameter(torch.linspace(-1, 1, 80 * 80).view(80, 80))
        optimizer = MAKE[name]([param])

        def train() -> None:
            param.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        step = torch.compile(train, backend="eager") if compiled else train
        for _ in range(3):
            step()
        return param.detach()

    assert torch.equal(trained(compiled=True), trained(compiled=False))


@pytest.mark.parametrize("name", [*MAKE, "LPMMSGD"])
def test_a_whole_graph_is_refused_with_a_remedy(name: str) -> None:
    make: Any = {**MAKE, "LPMMSGD": lambda params: LPMMSGD(params, lr=0.1)}[name]
    param = nn.Parameter(torch.ones(80, 80))
    optimizer = make([param])
    param.grad = torch.ones(80, 80)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        torch.compile(lambda: optimizer.step(), fullgraph=True, backend="eager")()
    assert (
        "optimizer.step() of qmaps cannot be part of a graph: compile without fullgraph=True, or "
        "call it outside the compiled function" in str(caught.value)
    )
