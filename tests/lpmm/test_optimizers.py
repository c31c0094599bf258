"""Steps of converted models: their operations, micro-batches, checkpoints, bad gradients."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qmaps
from qmaps import RoundingKey, lpmm, optim
from qmaps.errors import BadTypeError, BadValueError, NonFiniteError
from qmaps.ops.backends import use_backend

PARAMS, GRADS, MOMENTUM = "B32/linear0@12s+sr", "B32/linear0@8s+sr", "B32/DE@8s+sr"


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3))


def data(number: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x, y = torch.randn(4, 10, generator=generator), torch.randn(4, 3, generator=generator)
    return x.to(dtype), y.to(dtype)


def backward(model: nn.Module, number: int) -> Tensor:
    x, y = data(number, next(model.parameters()).dtype)
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss


def codes(model: nn.Module) -> list[Tensor]:
    return [part for p in model.parameters() for part in (p.codes.packed, *p.codes.scales)]


def same(ours: nn.Module, theirs: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(codes(ours), codes(theirs), strict=True))


def sgd(model: nn.Module, **options: Any) -> lpmm.LPMMSGD:
    return lpmm.LPMMSGD(
        model.named_parameters(),
        lr=0.1,
        state_quantizers={"momentum_buffer": MOMENTUM},
        **options,
    )


def test_sgd_is_algorithm_1_with_the_documented_random_numbers() -> None:
    """Against a loop of plain tensors and quantizers."""
    qp, qg, qm = map(qmaps.quantizer, (PARAMS, GRADS, MOMENTUM))
    model = lpmm.convert(net(), PARAMS, GRADS, seed=5)
    optimizer = sgd(model, seed=9, accumulation_steps=3, weight_decay=0.01)
    plain = net()
    theta = [
        qmaps.quantizer("B32/linear0@12s").quantize(p).dequantize() for p in plain.parameters()
    ]
    m = [torch.zeros_like(p) for p in theta]
    for step in range(3):
        with torch.no_grad():
            for param, value in zip(plain.parameters(), theta, strict=True):
                param.copy_(value)
        g: list[Any] = [None] * len(theta)
        for micro in range(3):
            plain.zero_grad()
            optimizer.zero_grad()
            backward(plain, 3 * step + micro)
            backward(model, 3 * step + micro)
            optimizer.step()
            for i, param in enumerate(plain.parameters()):
                total = param.grad if g[i] is None else g[i] + param.grad
                key = RoundingKey(seed=5, purpose=3, step=step, micro_batch=micro, tensor=i)
                g[i] = qg.quantize(total, key=key).dequantize()
        for i in range(len(theta)):
            grad = g[i] + theta[i] * 0.01
            m[i] = m[i] * 0.9 + grad if step else grad
            wanted = theta[i] - m[i] * 0.1
            key = RoundingKey(seed=9, step=step + 1, tensor=i)
            m[i] = qm.quantize(m[i], key=key).dequantize()
            key = RoundingKey(seed=9, purpose=2, step=step + 1, tensor=i)
            theta[i] = qp.quantize(wanted, key=key).dequantize()
        for param, expected in zip(model.parameters(), theta, strict=True):
            assert torch.equal(param.decode(), expected)
            assert param.grad is None
            state = optimizer.state[param]
            assert int(state["step"]) == step + 1
        assert torch.equal(optimizer.state[model[0].weight]["momentum_buffer"].dequantize(), m[0])


def test_adam_steps_as_adam_does_between_its_roundings() -> None:
    """With 16 bits everywhere the paths stay together."""
    fine = "B32/linear0@16s"
    model = lpmm.convert(net(), fine, fine)
    optimizer = lpmm.LPMMAdam(
        model.parameters(),
        lr=0.01,
        state_quantizers={"exp_avg": fine, "exp_avg_sq": "B32/linear@16u"},
    )
    plain = net()
    reference = torch.optim.Adam(plain.parameters(), lr=0.01)
    for number in range(10):
        backward(model, number)
        optimizer.step()
        reference.zero_grad()
        backward(plain, number)
        reference.step()
    for param, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(param.decode(), expected, atol=3e-3)
    defaults = lpmm.LPMMAdam(lpmm.convert(net()).parameters()).memory()
    assert [row.quantizer for row in defaults][:2] == ["B2048/DE-sym@8s+sr", "B2048/DE-0@8u+sr"]


@pytest.mark.parametrize("make", [optim.AdamW8bit, optim.SGD8bit, optim.Lion8bit, optim.AdamW])
def test_optimizers_of_plain_models_refuse_converted_ones(make: Any) -> None:
    model = lpmm.convert(net(), skip=["0.*"])
    model[2].requires_grad_(False)
    frozen = make(model.named_parameters(), lr=0.1)  # those may be anything
    model[2].requires_grad_(True)
    message = (
        f"parameter '2.weight' is a LowPrecisionParameter, which {make.__name__} would round "
        "after each operation; use qmaps.lpmm.LPMMSGD or LPMMAdam for converted models"
    )
    with pytest.raises(BadTypeError) as caught:
        make(model.named_parameters(), lr=0.1)
    assert str(caught.value) == message
    before = model[2].weight.decode()
    backward(model, 0)
    with pytest.raises(BadTypeError) as late:
        frozen.step()
    assert str(late.value) == message
    assert torch.equal(model[2].weight.decode(), before)
    assert model[2].weight.data_ptr() == 0


def test_small_steps_arrive_on_average_where_rounding_is_stochastic() -> None:
    """Steps of a tenth of delta: lost by nearest rounding, kept in expectation by stochastic."""
    moved = {}
    x = torch.ones(1, 2000)
    x[0, 0] = 0  # this element sets the scale
    for rounding in ("", "+sr"):
        model = nn.Linear(2000, 1, bias=False)
        with torch.no_grad():
            model.weight.fill_(0.5)
            model.weight[0, 0] = 1.0
        lpmm.convert(model, f"B4096/linear0@8s{rounding}", "B4096/linear0@8s+sr")
        start = model.weight.decode()
        optimizer = lpmm.LPMMSGD(model.parameters(), lr=0.1 / 127, momentum=0)
        for _ in range(20):
            model(x).sum().backward()
            optimizer.step()
        moved[rounding] = float((start - model.weight.decode())[0, 1:].mean() * 127)
    assert moved[""] == 0
    assert moved["+sr"] == pytest.approx(2, abs=0.2)


def test_micro_batches_add_up_and_zero_grad_leaves_them() -> None:
    model = lpmm.convert(net(), PARAMS, "B32/linear0@16s")
    optimizer = sgd(model, accumulation_steps=2)
    before = codes(copy.deepcopy(model))
    backward(model, 0)
    first = model[0].weight.grad.decode()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(codes(model), before, strict=True))
    optimizer.zero_grad()
    backward(model, 0)
    assert model[0].weight.accumulator.count == 2
    assert torch.allclose(model[0].weight.grad.decode(), 2 * first, atol=1e-4)
    optimizer.step()
    assert model[0].weight.accumulator.count == 0
    assert not torch.equal(codes(model)[0], before[0])
    backward(model, 1)
    optimizer.zero_grad()  # nothing is pending now
    assert model[0].weight.grad is None


def test_micro_batches_left_out_for_infinity_begin_the_step_anew() -> None:
    """A trainer may skip batches with infinite gradients before `step`."""
    model = lpmm.convert(net(), PARAMS, GRADS)
    optimizer = sgd(model, accumulation_steps=2)
    backward(model, 0)
    optimizer.step()
    (model(data(1)[0]).sum() * float("inf")).backward()
    optimizer.zero_grad()
    assert all(param.grad is None for param in model.parameters())
    twin = lpmm.convert(net(), PARAMS, GRADS)
    expected = sgd(twin, accumulation_steps=2)
    for number in range(2, 4):
        for trained, steps in ((model, optimizer), (twin, expected)):
            backward(trained, number)
            steps.step()
            steps.zero_grad()
    assert same(model, twin)
    assert int(optimizer.state[model[0].weight]["step"]) == 1


def test_infinity_that_a_step_has_seen_waits_for_the_last_micro_batch() -> None:
    model = lpmm.convert(net(), PARAMS, GRADS)
    optimizer = sgd(model, accumulation_steps=2, nonfinite="skip")
    (model(data(1)[0]).sum() * float("inf")).backward()
    optimizer.step()
    optimizer.zero_grad()
    backward(model, 0)
    optimizer.step()
    assert optimizer.skipped_steps == 1


def test_a_grad_scaler_takes_all_micro_batches_at_once() -> None:
    model, twin = (lpmm.convert(net(), PARAMS, "B32/linear0@16s") for _ in range(2))
    optimizer, expected = sgd(model), sgd(twin, accumulation_steps=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for number in range(2):
        x, y = data(number)
        scaler.scale((model(x) - y).square().mean()).backward()
        backward(twin, number)
        expected.step()
    scaler.step(optimizer)
    assert same(model, twin)
    backward(twin, 0)
    with pytest.raises(BadValueError) as caught:
        scaler.step(expected)
    assert str(caught.value) == (
        "accumulation_steps=2 cannot be combined with a GradScaler, which would unscale the sum "
        "once for each micro-batch; set accumulation_steps=1 and call scaler.step after the last "
        "backward"
    )


def test_micro_batches_that_the_model_drops_are_missed() -> None:
    model = lpmm.convert(net(), PARAMS, GRADS)
    optimizer = sgd(model, accumulation_steps=3)
    backward(model, 0)
    optimizer.step()
    model.zero_grad()
    backward(model, 1)
    with pytest.raises(BadValueError) as caught:
        optimizer.step()
    assert str(caught.value) == (
        "the gradients of 1 of accumulation_steps=3 micro-batches were dropped before the step; "
        "call zero_grad of the optimizer instead of the model, because the optimizer keeps "
        "gradients between micro-batches"
    )
    before = codes(copy.deepcopy(model))
    for number in range(3):
        assert all(torch.equal(a, b) for a, b in zip(codes(model), before, strict=True))
        model.zero_grad() if number == 0 else optimizer.zero_grad()
        backward(model, number)
        optimizer.step()
    assert not torch.equal(codes(model)[0], before[0])


@pytest.mark.parametrize("n", [0, True, 1.5])
def test_accumulation_steps_are_a_number_of_micro_batches(n: Any) -> None:
    with pytest.raises(BadValueError) as caught:
        sgd(lpmm.convert(net()), accumulation_steps=n)
    assert str(caught.value) == f"accumulation_steps={n!r} must be an int of at least 1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "spec",
    [PARAMS, "B32xbf16/linear@8s+sr", "powB64r8/e4m3@8s+sr", "rank1/DE@8s+sr", "B32x8/DE@4s+sr"],
)
@pytest.mark.parametrize("done", [3, 4])
def test_training_resumes_bit_for_bit(done: int, spec: str, dtype: torch.dtype) -> None:
    """Also in the middle of a step's micro-batches."""
    straight = lpmm.convert(net().to(dtype), spec, GRADS)
    optimizer = sgd(straight, accumulation_steps=2)
    saved = io.BytesIO()
    for number in range(8):
        if number == done:
            torch.save({"model": straight.state_dict(), "optimizer": optimizer.state_dict()}, saved)
        backward(straight, number)
        optimizer.step()
    resumed = lpmm.convert(net(1).to(dtype), spec, GRADS)
    again = sgd(resumed, accumulation_steps=2)
    loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
    resumed.load_state_dict(loaded["model"])
    again.load_state_dict(loaded["optimizer"])
    for number in range(done, 8):
        backward(resumed, number)
        again.step()
    assert same(straight, resumed)


def test_a_checkpoint_of_torch_goes_on_in_low_precision() -> None:
    plain = net()
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    backward(plain, 0)
    reference.step()
    model = lpmm.convert(net(1))
    model.load_state_dict(plain.state_dict())
    optimizer = lpmm.LPMMSGD(model.parameters(), lr=0.1)
    optimizer.load_state_dict(reference.state_dict())
    momentum = optimizer.state[model[0].weight]["momentum_buffer"]
    expected = reference.state[plain[0].weight]["momentum_buffer"]
    assert torch.allclose(momentum.dequantize(), expected, atol=float(expected.abs().max()) / 50)
    assert model[0].weight.accumulator.step == 1


def test_gradients_of_another_width_are_refused() -> None:
    eight_bit = lpmm.convert(net(), grads="B32/linear0@8s")
    optimizer = sgd(eight_bit, accumulation_steps=2)
    backward(eight_bit, 0)
    optimizer.step()
    six_bit = sgd(lpmm.convert(net(), grads="B32/linear0@6s"), accumulation_steps=2)
    with pytest.raises(BadValueError) as caught:
        six_bit.load_state_dict(optimizer.state_dict())
    assert str(caught.value) == (
        "state_dict has a gradient of parameter '0.weight' with quantizer B32/linear0@8s and shape "
        "(7, 10); it must have quantizer B32/linear0@6s and shape (7, 10)"
    )


# NaN in a gradient


def poisoned(**options: Any) -> tuple[nn.Module, lpmm.LPMMSGD]:
    """A model after one step, with a NaN in the second block of its gradient."""
    model = lpmm.convert(net(), PARAMS, GRADS)
    optimizer = sgd(model, **options)
    backward(model, 0)
    optimizer.step()
    backward(model, 1)
    bad = torch.zeros(7, 10)
    bad[5, 5] = float("nan")
    model[0].weight.accumulator.add(bad)
    return model, optimizer


def test_a_bad_gradient_raises_before_anything_has_changed() -> None:
    model, optimizer = poisoned()
    before, state = codes(copy.deepcopy(model)), copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.raises(NonFiniteError) as caught:
        optimizer.step()
    assert str(caught.value) == (
        "the gradient of parameter '0.weight' has 1 NaN or infinite scales, the first at index 1; "
        "nonfinite='raise' allows only finite gradients"
    )
    assert all(torch.equal(a, b) for a, b in zip(codes(model), before, strict=True))
    after = optimizer.state_dict()["state"]
    packed = [s[0]["momentum_buffer"]["packed"] for s in (state, after)]
    assert torch.equal(*packed)
    backward(model, 2)  # the bad gradient is gone
    optimizer.step()
    assert all(p.decode().isfinite().all() for p in model.parameters())


def test_a_bad_gradient_is_skipped_or_reaches_the_parameters() -> None:
    model, optimizer = poisoned(nonfinite="skip")
    before = codes(copy.deepcopy(model))
    optimizer.step()
    assert optimizer.skipped_steps == 1
    assert all(torch.equal(a, b) for a, b in zip(codes(model), before, strict=True))
    model, optimizer = poisoned(nonfinite="propagate")
    optimizer.step()
    values = model[0].weight.decode().flatten()
    assert not values[32:64].isfinite().any()  # the block, never a finite number silently
    assert values[:32].isfinite().all()


def test_parameters_that_were_skipped_are_stepped_as_usual() -> None:
    model = lpmm.convert(net(), PARAMS, GRADS, skip=["2.*"])
    optimizer = sgd(model, accumulation_steps=2)
    before = model[2].weight.detach().clone()
    for number in range(2):
        optimizer.zero_grad()
        backward(model, number)
        optimizer.step()
    assert not torch.equal(model[2].weight, before)
    assert model[2].weight.grad is None


# The native engine


@pytest.mark.skipif(qmaps.backend() != "native", reason="the native engine is not built")
@pytest.mark.parametrize(
    ("params", "grads", "states"),
    [
        (PARAMS, GRADS, MOMENTUM),
        ("B2048/linear0@12s+sr", "B2048/linear0@8s+sr", "B2048/DE-sym@8s+sr"),
        ("B7/linear0@10s", "tensor/linear0@8s+sr", "B24/linear0@12s+sr"),
        ("B64/linear0@16s+sr", "B32x8/linear0@9s", "row/DE@8s"),
        ("rank1/linear0@12s+sr", GRADS, None),
    ],
)
def test_the_fused_step_has_the_bits_of_the_reference(
    params: str, grads: str, states: str | None
) -> None:
    results = []
    for engine in ("native", "reference"):
        with use_backend(engine):
            model = lpmm.convert(net(), params, grads, seed=2)
            sgd_ = lpmm.LPMMSGD(
                [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.3}],
                lr=0.1,
                weight_decay=0.01,
                seed=4,
                state_quantizers={"momentum_buffer": states},
            )
            adam = lpmm.LPMMAdam(model.parameters(), lr=0.01)
            for number in range(3):
                for optimizer in (sgd_, adam):
                    backward(model, number)
                    optimizer.step()
            assert (sgd_.engine_counts().get("reference", 0) < 4) == (engine == "native")
            momentum = [sgd_.state[p]["momentum_buffer"] for p in model.parameters()]
            values = [m if isinstance(m, Tensor) else m.dequantize() for m in momentum]
            results.append([*codes(model), *values])
    for native, expected in zip(*results, strict=True):
        assert torch.equal(native, expected)


@pytest.mark.skipif(qmaps.backend() != "native", reason="the native engine is not built")
def test_the_fused_step_looks_anew_after_a_change() -> None:
    results = []
    for engine in ("native", "reference"):
        with use_backend(engine):
            model = lpmm.convert(net(), PARAMS, GRADS)
            optimizer = sgd(model)
            for number in range(6):
                if number == 2:
                    optimizer.param_groups[0]["momentum"] = 0.0
                if number == 3:
                    optimizer.param_groups[0]["momentum"] = 0.9
                if number == 4:
                    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                    optimizer.param_groups[0].update(seed=77, lr=0.05)
                backward(model, number)
                optimizer.step()
            results.append(codes(model))
    for native, expected in zip(*results, strict=True):
        assert torch.equal(native, expected)
