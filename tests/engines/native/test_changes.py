"""The engine sees every change of tensors between two steps.

Each case trains once on the reference and once on the engine, and compares bits, or the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qmaps import lpmm
from qmaps.engines.native.plan import NativePlan
from qmaps.ops.backends import use_backend
from qmaps.optim import SGD, AdamW8bit, QuantizedOptimizer
from tests.optim.changes import (
    OF_GRADIENTS,
    OF_PARAMETERS,
    OF_STATES,
    SETTINGS,
    SHAPES,
    Change,
    same,
    tensors_of,
    trained,
)


def check(setting: str, before: Callable[..., None], **options: Any) -> list[str]:
    """Train on both engines; return the errors."""
    with use_backend("native"):
        ours = trained(setting, before, **options)
    with use_backend("reference"):
        return same(ours, trained(setting, before, **options))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts of parameters, one for each plan."""
    counts: list[int] = []
    describe = NativePlan._describe

    def counted(self: NativePlan) -> None:
        counts.append(len(self._params))
        describe(self)

    monkeypatch.setattr(NativePlan, "_describe", counted)
    return counts


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("change", OF_STATES.values(), ids=OF_STATES)
def test_states(change: Change, setting: str) -> None:
    names = ["step[0]", "exp_avg[0]", "exp_avg[1]", "exp_avg_sq[0]", "exp_avg_sq[1]"]
    for name in [*names, "exp_avg_sq[2]", "momentum_buffer[0]"]:
        if name == "step[0]" and change is OF_STATES["half freed"]:
            continue  # of all counters together, where they are planned

        def before(optimizer: QuantizedOptimizer, params: list[Tensor]) -> None:
            for p in params[::3]:
                if (x := dict(tensors_of(optimizer, p)).get(name)) is not None:  # noqa: B023
                    change(x)

        check(setting, before)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("change", OF_PARAMETERS.values(), ids=OF_PARAMETERS)
def test_parameters(change: Change, setting: str) -> None:
    for index in range(len(SHAPES)):
        check(setting, lambda _, params: change(params[index]))  # noqa: B023


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("change", OF_GRADIENTS.values(), ids=OF_GRADIENTS)
def test_gradients(change: Change, setting: str) -> None:
    for index in range(len(SHAPES)):
        before = lambda _, params: change(params[index].grad)  # noqa: B023, E731
        check(setting, before, of_gradients=True)


def test_nothing_is_planned_anew_where_nothing_changes(planned: list[int]) -> None:
    """Gradients may have new addresses."""

    def before(_: QuantizedOptimizer, params: list[Tensor]) -> None:
        for p in params:
            p.grad = torch.cat([p.grad.reshape(-1)] * 2)[p.numel() :].view_as(p)

    with use_backend("native"):
        trained("8 bits", before, of_gradients=True)
    assert planned == [4]


def test_messages() -> None:
    def grow(_: QuantizedOptimizer, params: list[Tensor]) -> None:
        params[2].data = torch.zeros(600)

    wrong = (
        "BadValueError: exp_avg of parameter 2 of group 0 must have shape (600,) for a parameter "
        "of shape (600,), got shape (500,)"
    )
    assert check("8 bits", grow) == ["", "", wrong, wrong]

    def shrink(_: QuantizedOptimizer, params: list[Tensor]) -> None:
        params[2].grad.data = params[2].grad[:10]

    wrong = (
        "BadValueError: the gradient of parameter 2 of group 0 must have shape (500,), got shape "
        "(10,)"
    )
    assert check("8 bits", shrink, of_gradients=True) == ["", "", wrong, ""]

    def free(_: QuantizedOptimizer, params: list[Tensor]) -> None:
        params[0].grad.untyped_storage().resize_(0)

    wrong = (
        "BadValueError: the gradient of parameter 0 of group 0 has shape (32, 40), but its storage "
        "is 5120 bytes too small; it may have been freed or resized"
    )
    assert check("8 bits", free, of_gradients=True) == ["", "", wrong, ""]

    def cut(optimizer: QuantizedOptimizer, params: list[Tensor]) -> None:
        optimizer.state[params[0]]["exp_avg"].packed.resize_(10)

    wrong = (
        "BadValueError: packed has 10 elements of torch.uint8; B256/DE-sym@8s of shape (32, 40) "
        "needs 1280 elements of torch.uint8"
    )
    assert check("8 bits", cut) == ["", "", wrong, wrong]


def test_hogwild() -> None:
    """Later steps write states moved to shared memory after the first step."""
    p = torch.zeros(5000, requires_grad=True)
    optimizer = AdamW8bit([p], lr=0.1)
    with use_backend("native"):
        for _ in range(3):
            p.grad = torch.ones(5000)
            optimizer.step()
            for _, x in tensors_of(optimizer, p):
                x.share_memory_()
            p.share_memory_()
    # Adam's first steps are of about lr each; without weight decay's tiny share.
    assert torch.allclose(p, torch.full((5000,), -0.3), rtol=5e-3)


def test_the_sign_of_a_complex_gradient() -> None:
    def descended(backend: str, make: Callable[..., Any]) -> float:
        p = torch.nn.Parameter(torch.zeros(1))
        with use_backend(backend):
            optimizer = make([p], lr=0.05)
            for _ in range(50):
                optimizer.zero_grad()
                z = torch.complex(torch.ones(1), p).conj()
                (z - (1 - 2j)).abs().square().sum().backward()
                assert p.grad is not None
                assert p.grad.is_neg()
                optimizer.step()
        return p.item()

    torchs = descended("reference", torch.optim.SGD)
    assert torchs == pytest.approx(2, abs=0.02)
    assert descended("native", SGD) == descended("reference", SGD) == pytest.approx(torchs)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_low_precision_models(backend: str) -> None:
    """Codes of parameters, gradients and momentum are checked before each step too."""

    def run(change: Change | None, which: int) -> list[Tensor]:
        torch.manual_seed(0)
        model = lpmm.convert(torch.nn.Sequential(torch.nn.Linear(64, 96)))
        optimizer = lpmm.LPMMSGD(model.parameters(), lr=0.1)
        weight: Any = model[0].weight
        with use_backend(backend):
            for number in range(4):
                if number == 2 and change is not None:
                    state = optimizer.state[weight]["momentum_buffer"]
                    tensors = [weight.codes, weight.accumulator.total, state]
                    change([x for t in tensors for x in (t.packed, *t.scales)][which])
                model(torch.ones(4, 64)).square().sum().backward()
                optimizer.step()
        return [weight.codes.packed.clone(), *optimizer.state[weight]["momentum_buffer"].scales]

    expected = run(None, 0)
    for which in range(6):
        for name in ("moved", "shared", "set_", "storage grown"):
            for a, b in zip(run(OF_STATES[name], which), expected, strict=True):
                assert torch.equal(a, b)
