"""Emulated steps check states, parameters and gradients before each step, like other engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from qmaps.cuda.plan import CudaPlan
from qmaps.ops.backends import use_backend
from qmaps.optim import QuantizedOptimizer
from tests.cuda.emulation import EmulatedEngine
from tests.optim.changes import OF_GRADIENTS, OF_PARAMETERS, OF_STATES, same, tensors_of, trained

pytestmark = pytest.mark.slow


def check(setting: str, before: Callable[..., None], **options: Any) -> list[str]:
    ours = trained(setting, before, **options)
    with use_backend("reference"):
        return same(ours, trained(setting, before, **options))


@pytest.mark.parametrize("setting", ["8 bits", "rank-1"])
@pytest.mark.parametrize("name", ["moved", "shared", "set_", "strided", "freed", "resized"])
def test_states(name: str, setting: str, on_device: EmulatedEngine) -> None:
    for which in ("exp_avg[0]", "exp_avg_sq[1]", "step[0]"):

        def before(optimizer: QuantizedOptimizer, params: list[Tensor]) -> None:
            OF_STATES[name](dict(tensors_of(optimizer, params[0]))[which])  # noqa: B023

        check(setting, before)


@pytest.mark.parametrize("name", ["moved", "transposed", "grown", "shrunk where it lies", "freed"])
def test_parameters(name: str, on_device: EmulatedEngine) -> None:
    check("8 bits", lambda _, params: OF_PARAMETERS[name](params[1]))


@pytest.mark.parametrize("name", ["negative", "without memory", "expanded", "resized", "freed"])
def test_gradients(name: str, on_device: EmulatedEngine) -> None:
    check("8 bits", lambda _, params: OF_GRADIENTS[name](params[0].grad), of_gradients=True)


def test_nothing_is_planned_anew_where_nothing_changes(
    on_device: EmulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[int] = []
    describe = CudaPlan._describe

    def counted(self: CudaPlan) -> None:
        plans.append(len(self._params))
        describe(self)

    monkeypatch.setattr(CudaPlan, "_describe", counted)
    trained("8 bits", lambda *_: None)
    assert plans == [4]
