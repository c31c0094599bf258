"""Engines run a step from its description alone, without an optimizer."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qmaps
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.native.plan import NativeEngine
from qmaps.engines.reference_plan import ReferencePlan
from qmaps.engines.step import Inputs, ParameterStep, Rule, StateStep, StepPlan
from qmaps.engines.step_scalars import Corrected, RootCorrection
from qmaps.ops.backends import use_backend
from qmaps.optim import AdamW, AdamW4bit, AdamW8bit

native = pytest.mark.skipif(qmaps.backend() != "native", reason="the native engine is not built")
SCALARS = {
    "decay": 0.99,
    "beta1": 0.9,
    "beta2": 0.999,
    "step_size": Corrected(1e-3, 0.9),
    "root_correction": RootCorrection(0.0, 0.999),
    "eps": 1e-8,
    "sign": 1.0,
    "rest1": 1 - 0.9,
    "rest2": 1 - 0.999,
}


def adamw(_: Any, param: Tensor, grad: Tensor, states: Any, scalars: Any) -> None:
    AdamW.update(None, param, grad, states, scalars)  # type: ignore[arg-type]


def parameter_step(spec: str) -> ParameterStep:
    """A parameter without an optimizer."""
    random = torch.Generator().manual_seed(0)
    param, grad = (torch.randn(70, 300, generator=random) for _ in range(2))
    q = qmaps.quantizer(spec)
    keys = [RoundingKey(seed=3, tensor=5, state=index) for index in range(2)]
    states = (
        StateStep("exp_avg", (70, 300), q, keys[0]),
        StateStep("exp_avg_sq", (70, 300), None, keys[1]),
    )
    return ParameterStep(
        number=5,
        label="w",
        param=param,
        codes=None,
        gradient=grad,
        states=states,
        storage={},
        group=0,
        options={},
        refit_every=100,
        skips=False,
        key=None,
        master=False,
        remainder=None,
        shard=None,
    )


@native
@pytest.mark.parametrize("spec", ["B256/DE@8s", "B128/DE@4s+sr", "rank1/linear@5s"])
def test_an_engine_needs_no_optimizer(spec: str) -> None:
    rule = Rule("adamw", takes_norms=False, apply=adamw)
    assert not NativeEngine().unsupported_reason(rule, parameter_step(spec))
    planners: list[Callable[..., StepPlan]] = [NativeEngine().plan, ReferencePlan]
    results = []
    for planner in planners:
        parameter = parameter_step(spec)
        for _ in range(3):
            planner(rule, [parameter]).run(Inputs([SCALARS]))
        results.append(parameter)
    ours, theirs = results
    assert torch.equal(ours.param, theirs.param)
    assert int(ours.storage["step"]) == 3
    for state in ours.states:
        actual, expected = (described.storage[state.name] for described in (ours, theirs))
        if isinstance(actual, QuantizedTensor):
            assert torch.equal(actual.packed, expected.packed)
        else:
            assert torch.equal(actual, expected)


@native
def test_a_plan_is_taken_again_while_its_memory_is_the_same() -> None:
    rule, parameter = Rule("adamw", takes_norms=False, apply=adamw), parameter_step("B256/DE@8s")
    plan = NativeEngine().plan(rule, [parameter])
    assert isinstance(parameter.gradient, Tensor)
    assert plan.takes([parameter.param], [parameter.gradient])
    assert plan.takes([parameter.param], [parameter.gradient.clone()])  # gradients come and go
    assert not plan.takes([parameter.param.clone()], [parameter.gradient])
    parameter.storage["exp_avg_sq"].untyped_storage().resize_(0)
    assert not plan.takes([parameter.param], [parameter.gradient])


def test_a_description_does_not_change() -> None:
    parameter = parameter_step("B256/DE@8s")
    with pytest.raises(dataclasses.FrozenInstanceError):
        parameter.number = 1  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        parameter.states[0].quantizer = None  # type: ignore[misc]


@pytest.mark.parametrize("engine", ["reference", pytest.param("native", marks=native)])
@pytest.mark.parametrize("make", [AdamW8bit, AdamW4bit])
def test_engines_hold_no_optimizer(make: Any, engine: str) -> None:
    param = nn.Parameter(torch.ones(5000))
    with use_backend(engine):
        optimizer = make([param])
        for _ in range(2):
            param.grad = torch.ones_like(param)
            optimizer.step()
    reference = weakref.ref(optimizer)
    gc.disable()
    try:
        del optimizer
        assert reference() is None  # at once, without the garbage collector
    finally:
        gc.enable()
