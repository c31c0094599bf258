"""Python exits without a word where optimizers outlive it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from qmaps.optim import AdamW8bit

pytestmark = pytest.mark.slow

SCRIPT = """
import torch
from torch import nn
from qmaps import lpmm
from qmaps.optim import AdamW8bit, AdamW4bit

def in_backward(model, make):
    # As torch's tutorial has it: a step as soon as a gradient is there.
    optimizers = {param: make([param]) for param in model.parameters()}

    def step(param):
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        model(torch.ones(2, 100)).sum().backward()
    return optimizers

kept = nn.Linear(100, 100)
everything = in_backward(kept, AdamW8bit)
in_backward(nn.Linear(100, 100), AdamW4bit)

low = nn.Linear(100, 100)
lpmm.convert(low)
optimizer = lpmm.LPMMAdam(low.parameters())
low(torch.ones(2, 100)).sum().backward()
optimizer.step()
everything[kept.weight].register_step_post_hook(lambda *_: optimizer)
low.weight.register_hook(lambda _, known=(optimizer, low): None)
kept.weight.register_post_accumulate_grad_hook(lambda _: optimizer)
"""


@pytest.mark.skipif("QMAPS_TEST_CORE" in os.environ, reason="it runs the installed extension")
def test_optimizers_in_backward_leak_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_plan_that_was_let_go_of_is_made_anew() -> None:
    params = [nn.Parameter(torch.ones(5000)) for _ in range(2)]
    optimizers = [AdamW8bit([param]) for param in params]
    for number in range(3):
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = torch.full_like(param, number + 1.0)
            optimizer.step()
        optimizers[0]._stepper.forget_engine()
    assert torch.equal(*params)
    assert str(optimizers[0].state_dict()) == str(optimizers[1].state_dict())
