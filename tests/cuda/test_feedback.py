"""Emulated steps with error feedback give the reference's codes, residuals and parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qmaps import optim
from qmaps.algebra.quantized import QuantizedTensor
from qmaps.algebra.quantizer import quantizer
from qmaps.cuda import layout
from qmaps.cuda.tensors import format_name, layout_of
from qmaps.engines.backends import use_backend
from qmaps.optim.base import QuantizedOptimizer
from tests.cuda.emulation import EmulatedEngine
from tests.cuda.test_optimizer import assert_same, set_gradients, trained
from tests.optim.families import same_bits

CASES: tuple[tuple[type[QuantizedOptimizer], dict[str, Any]], ...] = (
    (optim.AdamW, {"state_quantizers": "B128/DE@4s+ef4 + rank1/linear@4u+ef8"}),
    (optim.AdamW, {"state_quantizers": "B64/linear@4s+ef8 + logB128q0.1/log2@4u+ef4"}),
    (optim.AdamW, {"state_quantizers": "B32xf16/softsign@8s+ef4 + B16xe4m3/DE-0@4u+ef4"}),
    (optim.AdamW, {"state_quantizers": "bf16+ef8 + B100/linear@10u+ef4", "reset_every": 2}),
    (optim.AdamW, {"state_quantizers": "powB64r16/linear@4s+ef4 + rms2B64/linear0@4u+ef4"}),
    (optim.LAMB, {"state_quantizers": "B2048/DE@4s+ef4 + logB100/log2@4u+ef8"}),
    (optim.SGD, {
        "state_quantizers": {"momentum_buffer": "tensor/linear@4s+ef4"}, "momentum": 0.9, "lr": 0.1,
    }),
    (optim.AdEMAMix, {
        "state_quantizers": {
            "exp_avg": "B64/DE@8s+ef8", "exp_avg_slow": "B64/DE@4s+ef4",
            "exp_avg_sq": "B64/linear@4u+ef4",
        },
        "t_alpha": 2, "t_beta3": 4,
    }),
)  # fmt: skip


def residuals(optimizer: QuantizedOptimizer) -> list[QuantizedTensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [t for value in states if isinstance(value, QuantizedTensor) for t in value.beside]


def assert_same_residuals(ours: QuantizedOptimizer, theirs: QuantizedOptimizer) -> None:
    assert_same(ours, theirs)
    assert residuals(ours)
    for a, b in zip(residuals(ours), residuals(theirs), strict=True):
        assert torch.equal(a.packed, b.packed)
        assert same_bits(a.scales[0], b.scales[0])
    assert any(bool(t.dequantize().any()) for t in residuals(ours))


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_states(
    kind: type[QuantizedOptimizer], options: dict[str, Any], on_device: EmulatedEngine
) -> None:
    ours = trained(kind, 5, torch.float32, options)
    assert ours._stepper.reference_count == 0
    assert any(name.startswith("step<") for name in on_device.launched)
    with use_backend("reference"):
        assert_same_residuals(ours, trained(kind, 5, torch.float32, options))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_gradients_that_are_not_finite(value: float, on_device: EmulatedEngine) -> None:
    def run() -> QuantizedOptimizer:
        options = {"state_quantizers": "B64/DE@4s+ef4 + B128/linear@4u+ef8"}
        optimizer = trained(optim.AdamW, 2, torch.float32, options)
        params = optimizer.param_groups[0]["params"]
        for number in (2, 3):
            set_gradients(params, number)
            params[0].grad[3, 7] = value if number == 2 else 0.0
            optimizer.step()
        return optimizer

    ours = run()
    with use_backend("reference"):
        assert_same_residuals(ours, run())


@pytest.mark.parametrize("bits", [4, 8])
def test_residuals_have_the_format_that_kernels_assume(bits: int) -> None:
    ((residual, _),) = quantizer(f"B64/DE@4s+ef{bits}").beside((1000,))
    found = layout_of(residual.normalizer, (1000,))
    assert found is not None
    assert found.block == layout.RESIDUAL_BLOCK
    name = f"Format<{bits}, {layout.RESIDUAL_BLOCK}, false, false, true, 1>"
    assert format_name(residual.map, found) == name


@pytest.mark.parametrize(("fed_back", "left"), [(2, 0), (3, 3)])
def test_codebooks_that_shared_memory_does_not_hold_are_left_to_the_reference(
    fed_back: int, left: int, on_device: EmulatedEngine
) -> None:
    specs = ["B64/DE@8s", "B64/DE@4s", "B64/linear@4u", "B128/DE@4s"]
    specs = [spec + "+ef4" if i < fed_back else spec for i, spec in enumerate(specs)]
    options = {"state_quantizers": dict(zip(optim.Adan.states, specs, strict=True))}
    ours = trained(optim.Adan, 3, torch.float32, options)
    assert ours._stepper.reference_count == left
    with use_backend("reference"):
        assert_same_residuals(ours, trained(optim.Adan, 3, torch.float32, options))
