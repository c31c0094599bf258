"""States with error feedback: steps, checkpoints, conversions, and who refuses them."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qmaps
from qmaps.algebra.feedback import restored
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.algebra.saved import from_plain
from qmaps.capture.conversion import convert_state_dict
from qmaps.optim import SGD, AdamW

SPECS = "B64/DE@4s+ef4 + rank1/linear@4u+ef8"
BETAS = (0.9, 0.99)


def weight() -> nn.Parameter:
    return nn.Parameter(torch.randn(48, 32, generator=torch.Generator().manual_seed(0)))


def gradients(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(48, 32, generator=generator) for _ in range(count)]


def made(param: nn.Parameter, specs: str = SPECS, **options: Any) -> AdamW:
    return AdamW([param], betas=BETAS, min_quantized_size=0, state_quantizers=specs, **options)


def train(optimizer: torch.optim.Optimizer, grads: list[Tensor]) -> None:
    (param,) = optimizer.param_groups[0]["params"]
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()


def test_each_step_adds_what_the_step_before_lost() -> None:
    """The moments by hand, with residuals in 32 bits that are rounded as the paper's algorithm."""
    param, grads = weight(), gradients(5)
    plain = [qmaps.quantizer(spec) for spec in ("B64/DE@4s", "rank1/linear@4u")]
    coder = [qmaps.quantizer(spec) for spec in ("B128/linear0@4s", "B128/linear0@8s")]
    optimizer = made(param)
    train(optimizer, grads)
    assert optimizer._stepper.reference_count == 1  # the reference
    decoded, residuals = [torch.zeros(48, 32)] * 2, [torch.zeros(48, 32)] * 2
    for g in grads:
        new = [
            decoded[0] * 0.9 + g * (1 - 0.9),
            decoded[1] * 0.99 + g * g * (1 - 0.99),
        ]
        for i in range(2):
            y = new[i] + residuals[i]
            t = plain[i].quantize(y if i == 0 else y.clamp(min=0))
            decoded[i] = t.dequantize()
            lost = y - decoded[i]
            if i == 1:  # at least half of the distance of 1/16 and 2/16
                rows, columns = t.scales
                scale = torch.minimum(rows.view(-1, 1), columns.view(1, -1))
                lost = torch.maximum(lost, -scale / 32)
            residuals[i] = coder[i].quantize(lost).dequantize()
    for i, name in enumerate(("exp_avg", "exp_avg_sq")):
        state = optimizer.state[param][name]
        torch.testing.assert_close(state.dequantize(), decoded[i], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(state.beside[0].dequantize(), residuals[i], rtol=1e-4, atol=1e-6)


def test_a_momentum_follows_small_gradients() -> None:
    """Rounded to nearest, the momentum of small gradients stays where the first large one put it.

    A gradient of 1 is followed by many of 0.03, and a block's other element keeps the scale.
    """
    found = {}
    for spec in ("tensor/linear0@4s", "tensor/linear0@4s+ef4"):
        param = nn.Parameter(torch.zeros(2))
        optimizer = SGD([param], lr=1.0, momentum=0.9, dampening=0.9, min_quantized_size=0,
                        state_quantizers={"momentum_buffer": spec})  # fmt: skip
        train(optimizer, [torch.tensor([1.0, 0.0])] + [torch.tensor([1.0, 0.03])] * 400)
        found[spec] = -float(param.detach()[1])
    exact = 400 * 0.03
    assert found["tensor/linear0@4s+ef4"] == pytest.approx(exact, rel=0.1)
    assert found["tensor/linear0@4s"] < exact / 5


def test_a_run_goes_on_from_a_checkpoint_bit_for_bit() -> None:
    grads = gradients(6)
    whole = weight()
    train(made(whole), grads)
    half = weight()
    optimizer = made(half)
    train(optimizer, grads[:3])
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    resumed = nn.Parameter(half.detach().clone())
    again = made(resumed, "32-bit + 32-bit")
    again.load_state_dict(saved)
    train(again, grads[3:])
    assert torch.equal(resumed, whole)
    # Without its residuals it goes elsewhere.
    other = nn.Parameter(half.detach().clone())
    without = made(other)
    without.load_state_dict(saved)
    for name in ("exp_avg", "exp_avg_sq"):
        state = without.state[other][name]
        for part in state.beside[0].scales:
            part.zero_()
    train(without, grads[3:])
    assert not torch.equal(other, whole)


def test_a_reset_takes_the_residual_too() -> None:
    param = weight()
    optimizer = made(param, reset_every=3)
    train(optimizer, gradients(4))
    fresh = nn.Parameter(param.detach().clone())
    begun = made(fresh)
    train(begun, gradients(4)[3:])
    for name in ("exp_avg", "exp_avg_sq"):
        one, other = optimizer.state[param][name], begun.state[fresh][name]
        assert torch.equal(restored(one), restored(other))


@pytest.mark.parametrize("specs", ["32-bit + 32-bit", "B64/DE@8s + B64/linear@8u", "8bit"])
def test_another_quantizer_takes_the_residual_over(specs: str) -> None:
    """At a change of the quantizers the residual is added once, and not lost."""
    param = weight()
    optimizer = made(param)
    train(optimizer, gradients(3))
    before = {name: optimizer.state[param][name] for name in ("exp_avg", "exp_avg_sq")}
    with_residual = {name: t.beside[0].dequantize() for name, t in before.items()}
    decoded = {name: t.dequantize() for name, t in before.items()}
    optimizer.param_groups[0]["state_quantizers"] = made(weight(), specs).param_groups[0][
        "state_quantizers"
    ]
    g = gradients(4)[3]
    train(optimizer, [g])
    state = optimizer.state[param]
    m = decoded["exp_avg"] * 0.9 + g * (1 - 0.9) + with_residual["exp_avg"]
    found = state["exp_avg"]
    found = found.dequantize() if isinstance(found, QuantizedTensor) else found
    torch.testing.assert_close(found, m, rtol=0.02, atol=0.01)
    lost = with_residual["exp_avg"].abs()
    assert float((found - m).abs().mean()) < float(lost.mean()) / 2
    train(optimizer, gradients(5)[4:])
    assert optimizer._stepper.reference_count == 0


def test_conversions_keep_or_add_it() -> None:
    param = weight()
    optimizer = made(param)
    train(optimizer, gradients(3))
    state = optimizer.state[param]
    saved = optimizer.state_dict()
    same, _ = convert_state_dict(saved, "qmaps")
    back = from_plain(same["state"][0]["exp_avg"])
    assert torch.equal(restored(back), restored(state["exp_avg"]))
    assert torch.equal(back.beside[0].packed, state["exp_avg"].beside[0].packed)
    exact, report = convert_state_dict(saved, "torch")
    assert torch.equal(exact["state"][0]["exp_avg"], restored(state["exp_avg"]))
    assert not torch.equal(exact["state"][0]["exp_avg"], state["exp_avg"].dequantize())
    assert {row.how for row in report.states} == {"same values"}
    specs = {"exp_avg": "B256/DE@8s", "exp_avg_sq": None}
    large = AdamW([nn.Parameter(torch.zeros(96, 64))], state_quantizers=SPECS)
    train(large, [torch.randn(96, 64)] * 2)
    saved, state = large.state_dict(), next(iter(large.state.values()))
    eight, _ = convert_state_dict(saved, "qmaps", states=specs)
    found = from_plain(eight["state"][0]["exp_avg"]).dequantize()
    expected = qmaps.quantizer("B256/DE@8s").quantize(restored(state["exp_avg"])).dequantize()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("steps", [0, 1])
def test_memory_counts_it(steps: int) -> None:
    """Before the first step, when states are expected, and after it."""
    param = weight()
    optimizer = made(param)
    train(optimizer, gradients(steps))
    codes, scales, residuals = 48 * 32 // 2, 4 * 24, 4 * 12
    rows = {row.state: row.nbytes for row in optimizer.memory().rows}
    assert rows["exp_avg"] == codes + scales + codes + residuals
    assert rows["exp_avg_sq"] == codes + 4 * (48 + 32) + 2 * codes + residuals
