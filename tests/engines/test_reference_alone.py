"""The reference engine is plain PyTorch: it runs without any other engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.reference_coder import REFERENCE
from qmaps.engines.reference_plan import ReferencePlan
from qmaps.engines.step import Inputs, ParameterStep, Rule
from qmaps.ops.quantize import CODER
from tests.engines.test_step import SCALARS, adamw, parameter_step

SPECS = ("B128/DE@4s", "B64/DE@4s+sr", "B32x8/linear@3s", "rank1/DE@4s", "B64/quantile@4s",
         "B64/quantile(midpoints=true)@3s", "B64/lloyd@3s", "lowrank2(B64/DE@8s)+B64/DE@4s",
         "logB64/log2@4u")  # fmt: skip

ALONE = """
import importlib.abc, sys

class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("qmaps.engines.native", "qmaps.cuda", "qmaps.ops", "qmaps.optim")):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Without())

import torch
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import quantizer
from qmaps.engines.reference_plan import ReferencePlan
from qmaps.engines.step import Inputs, ParameterStep, Rule, StateStep

def momentum(context, param, grad, states, scalars):
    states["m"].mul_(0.5).add_(grad.abs())
    param.sub_(states["m"])

grad = torch.linspace(-1, 1, 64 * 80).reshape(64, 80) ** 3
for spec in sys.argv[1:]:
    state = StateStep("m", (64, 80), quantizer(spec), RoundingKey(seed=1))
    step = ParameterStep(
        number=0, label="w", param=torch.zeros(64, 80), codes=None, gradient=grad, states=(state,),
        storage={}, group=0, options={}, refit_every=2, skips=False, key=None, master=False,
        remainder=None, shard=None,
    )
    for _ in range(3):
        ReferencePlan(Rule("", takes_norms=False, apply=momentum), [step]).run(Inputs([{}]))
    assert bool(step.param.isfinite().all()) and bool((step.param < 0).any())
    print(spec, step.storage["m"].packed.sum().item())
"""


def test_it_runs_without_the_native_module() -> None:
    command = [sys.executable, "-c", ALONE, *SPECS]
    run = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert [line.split()[0] for line in run.stdout.splitlines()] == list(SPECS)


def stepped(spec: str, coder: object) -> ParameterStep:
    step = parameter_step(spec)
    rule = Rule("adamw", takes_norms=False, apply=adamw)
    for _ in range(3):
        ReferencePlan(rule, [step], coder).run(Inputs([SCALARS]))  # type: ignore[arg-type]
    return step


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not spec.endswith("u")])
def test_other_coders_have_the_same_bits(spec: str) -> None:
    plain, fast = stepped(spec, REFERENCE), stepped(spec, CODER)
    assert torch.equal(plain.param, fast.param)
    ours, theirs = plain.storage["exp_avg"], fast.storage["exp_avg"]
    assert isinstance(ours, QuantizedTensor)
    assert torch.equal(ours.packed, theirs.packed)
    assert torch.equal(REFERENCE.decode(ours), theirs.dequantize())
