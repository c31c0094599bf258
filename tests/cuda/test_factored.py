"""Emulated steps of factored optimizers give the bits of the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qmaps.cuda.plan import CudaPlan
from qmaps.ops.backends import use_backend
from qmaps.optim import SM3, Adafactor, Adafactor8bit, AdamW4bitFactor
from qmaps.optim.base import QuantizedOptimizer
from tests.cuda.emulation import EmulatedEngine
from tests.cuda.test_optimizer import assert_same
from tests.optim.ticklish import ticklish_gradient

pytestmark = pytest.mark.slow

# Matrices of one tile and of several, across and down, with ragged last ones.
SHAPES = ((128, 70), (3, 1024), (66, 520), (2, 64, 32), (5, 3, 3), (300,), ())
KINDS: tuple[tuple[type[QuantizedOptimizer], dict[str, Any]], ...] = (
    (AdamW4bitFactor, {"maximize": True, "weight_decay": 0.1}),
    (Adafactor, {"beta1": 0.9, "weight_decay": 0.1, "d": 0.5, "state_quantizers": "8bit"}),
    (Adafactor8bit, {"beta2": 0.99, "scale_parameter": False, "relative_step": False}),
    (SM3, {"weight_decay": 0.1, "state_quantizers": "8bit"}),
    (SM3, {"momentum": 0.0, "maximize": True}),
)
EVERY = pytest.mark.parametrize(("kind", "options"), KINDS)


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts of parameters stepped on the device, one for each step."""
    counts: list[int] = []
    run = CudaPlan.run

    def counted(self: CudaPlan, *arguments: Any) -> None:
        counts.append(len(self._params))
        run(self, *arguments)

    monkeypatch.setattr(CudaPlan, "run", counted)
    return counts


def trained(
    kind: type[QuantizedOptimizer], options: dict[str, Any], dtype: torch.dtype
) -> QuantizedOptimizer:
    generator = torch.Generator().manual_seed(1)
    params = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    optimizer = kind([p.requires_grad_() for p in params], min_quantized_size=1025, **options)
    for number in range(2):
        for place, p in enumerate(params):
            p.grad = ticklish_gradient(tuple(p.shape), 100 * number + place).to(dtype)
            if number:
                p.grad = p.grad + torch.randn(p.shape, generator=generator).to(dtype)
        optimizer.step()
    return optimizer


@EVERY
def test_steps(
    kind: type[QuantizedOptimizer],
    options: dict[str, Any],
    on_device: EmulatedEngine,
    stepped: list[int],
) -> None:
    ours = trained(kind, options, torch.float32)
    assert stepped == [len(SHAPES)] * 2
    with use_backend("reference"):
        assert_same(ours, trained(kind, options, torch.float32))


def test_gradients_under_a_scale_and_steps_left_out(
    on_device: EmulatedEngine, stepped: list[int]
) -> None:
    def run() -> QuantizedOptimizer:
        kind, options = KINDS[0]
        optimizer = trained(kind, options, torch.bfloat16)
        params = optimizer.param_groups[0]["params"]
        optimizer.grad_scale = torch.tensor(8.0)
        for actual in (0.0, 1.0, 0.0):
            optimizer.found_inf = torch.tensor(actual)
            for place, p in enumerate(params):
                p.grad = ticklish_gradient(tuple(p.shape), place).to(p.dtype)
            optimizer.step()
        assert optimizer.skipped_steps == 1
        return optimizer

    ours = run()
    assert stepped == [len(SHAPES)] * 5
    with use_backend("reference"):
        assert_same(ours, run())
