"""Checks for every optimizer with a rule for full tensors."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qmaps
from qmaps.ops.backends import use_backend
from qmaps.optim import (
    SM3,
    Adafactor,
    Adafactor8bit,
    AdamW4bitFactor,
    AdamW8bitFactor,
    AdamWFactor,
    QuantizedOptimizer,
)
from tests.optim.families import floats, give, model, train

Make = Callable[..., QuantizedOptimizer]


def with_options(cls: type[QuantizedOptimizer], **chosen: Any) -> Make:
    return lambda params, **more: cls(params, **{**chosen, **more})


APOLLO = {"apollo_rank": 60, "apollo_update_proj_gap": 4}
MAKES: dict[str, Make] = {
    "AdamWFactor": with_options(AdamWFactor, lr=3e-3, state_quantizers=None),
    "AdamW8bitFactor": with_options(AdamW8bitFactor, lr=3e-3),
    "AdamW4bitFactor": with_options(AdamW4bitFactor, lr=3e-3),
    "AdamWFactor, stochastic": with_options(
        AdamWFactor,
        lr=3e-3,
        state_quantizers={"exp_avg": "B128/DE@4s+sr", "exp_avg_sq_row": "B32/linear@8u+sr"},
        min_quantized_size=75,
    ),
    "AdamWFactor, fitted": with_options(
        AdamWFactor, lr=3e-3, state_quantizers={"exp_avg": "B128/quantile@4s"}, refit_every=4
    ),
    "SM3": with_options(SM3),
    "SM3, 8 bits": with_options(SM3, state_quantizers="8bit"),
    "Adafactor": with_options(Adafactor),
    "Adafactor8bit": with_options(Adafactor8bit, min_quantized_size=75),
    "Adafactor8bit, whole": with_options(Adafactor8bit, factored=False, beta1=0.9),
    "Adafactor8bit, CAME": with_options(Adafactor8bit, beta1=0.9, beta3=0.99, fira_margin=0.05),
    "Adafactor8bit, APOLLO": with_options(Adafactor8bit, **APOLLO),
    "Adafactor8bit, APOLLO factored": with_options(
        Adafactor8bit, beta1=0.9, apollo_factorize=True, apollo_scale_type="tensor", **APOLLO
    ),
}
EVERY = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)


def equal(actual: nn.Module, expected: nn.Module) -> bool:
    pairs = zip(actual.parameters(), expected.parameters(), strict=True)
    return all(torch.equal(p, q) for p, q in pairs)


@pytest.mark.slow
@EVERY
def test_it_learns(make: Make) -> None:
    net = model()
    start = train(model(), make(model().parameters(), lr=0.0), range(1))
    assert train(net, make(net.parameters()), range(120)) < 0.6 * start


@pytest.mark.parametrize("name", ["AdamW8bitFactor", "AdamW4bitFactor", "Adafactor8bit",
                                  "Adafactor8bit, whole"])  # fmt: skip
def test_low_bits_learn_as_32_bits_do(name: str) -> None:
    losses = []
    for size in (75, 10**9):
        net = model()
        optimizer = MAKES[name](net.parameters(), min_quantized_size=size)
        losses.append(train(net, optimizer, range(120)))
        kinds = {type(v) for state in optimizer.state.values() for v in state.values()}
        assert kinds == ({Tensor, qmaps.QuantizedTensor} if size == 75 else {Tensor})
    assert losses[0] < 1.1 * losses[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@EVERY
def test_save_load_and_resume_is_bit_for_bit(make: Make, dtype: torch.dtype) -> None:
    options = {"seed": 5, "stochastic_rounding": True}
    uninterrupted, net, resumed = model(dtype), model(dtype), model(dtype)
    train(uninterrupted, make(uninterrupted.parameters(), **options), range(9))
    optimizer = make(net.parameters(), **options)
    train(net, optimizer, range(6))
    buffer = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    resumed.load_state_dict(saved["net"])
    again = type(optimizer)(resumed.parameters())
    again.load_state_dict(saved["optimizer"])
    assert again.state_nbytes == optimizer.state_nbytes > 0
    for p, q in zip(net.parameters(), resumed.parameters(), strict=True):
        shapes = optimizer.state_shapes(p, optimizer.param_groups[0])
        assert set(optimizer.state[p]) == set(again.state[q]) == {"step", *shapes}
        for name, shape in shapes.items():
            before, after = optimizer.state[p][name], again.state[q][name]
            assert tuple(before.shape) == tuple(after.shape) == shape
            assert torch.equal(floats(before), floats(after))
    train(resumed, again, range(6, 9))
    assert equal(uninterrupted, resumed)
    # The saved dict was not written through.
    train(net, optimizer, range(6, 9))
    assert equal(uninterrupted, net)


@EVERY
def test_deep_copies_go_on_alike(make: Make) -> None:
    net = model()
    optimizer = make(net.parameters())
    train(net, optimizer, range(2))
    net2, optimizer2 = copy.deepcopy((net, optimizer))
    train(net, optimizer, range(2, 4))
    train(net2, optimizer2, range(2, 4))
    assert equal(net, net2)


@EVERY
def test_a_checkpoint_of_other_shapes_is_refused(make: Make) -> None:
    p = nn.Parameter(torch.ones(90, 80))
    optimizer = make([("w", p)])
    give([p], torch.Generator().manual_seed(0))
    optimizer.step()
    state = {name: value for name, value in optimizer.state[p].items() if value.shape}
    name = max(state, key=lambda name: name in ("row_var", "exp_avg_sq_row", "accumulator_0"))
    shape = tuple(state[name].shape)
    saved = optimizer.state_dict()
    saved["state"][0][name] = torch.ones(7, 3)
    with pytest.raises(ValueError) as caught:
        make([("w", p)]).load_state_dict(saved)
    needed = "" if shape == (90, 80) else f"; it must have shape {shape}"
    assert str(caught.value) == (
        f"state_dict has {name} of shape (7, 3) for parameter 'w' of shape (90, 80){needed}"
    )


@EVERY
def test_captures_and_checkpoints_are_read(make: Make, tmp_path: Path) -> None:
    net = model()
    optimizer = make(net.named_parameters())
    with qmaps.capture.StateRecorder(optimizer, tmp_path / "states", every=2):
        train(net, optimizer, range(2))
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    for source, names in ((tmp_path / "states", {}), (tmp_path / "optimizer.pt", {"names": net})):
        states = qmaps.capture.load(source, **names)
        for name, p in net.named_parameters():
            tensors = {key: value for key, value in optimizer.state[p].items() if key != "step"}
            assert set(states.states(name)) == set(tensors)
            for key, value in tensors.items():
                assert torch.equal(states.tensor(name, key), floats(value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@EVERY
def test_odd_shapes_and_strides(make: Make, dtype: torch.dtype) -> None:
    shapes = ((), (0,), (0, 3), (3, 0), (1, 1), (2, 3, 4, 5), (1, 7))
    params = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]
    generator = torch.Generator().manual_seed(1)
    straight = nn.Parameter(torch.randn(90, 80, generator=generator).to(dtype))
    turned = nn.Parameter(straight.detach().t().contiguous().t())
    optimizer = make([*params, straight])
    strided = make([*params, turned])
    for _ in range(2):
        give([*params, straight], generator)
        turned.grad = straight.grad.t().contiguous().t()
        optimizer.step()
        strided.step()
    assert all(bool(p.isfinite().all()) for p in params)
    torch.testing.assert_close(straight, turned, rtol=1e-5, atol=1e-6)
    if "apollo_rank" not in optimizer.defaults or not optimizer.defaults["apollo_rank"]:
        assert torch.equal(straight, turned)


@EVERY
def test_a_gradient_is_left_alone(make: Make) -> None:
    p = nn.Parameter(torch.ones(90, 80))
    optimizer = make([p])
    give([p], torch.Generator().manual_seed(2))
    before = p.grad.clone()
    optimizer.step()
    assert torch.equal(p.grad, before)


NEVER = pytest.mark.parametrize(
    "make", [make for name, make in MAKES.items() if not name.endswith("fitted")],
    ids=[name for name in MAKES if not name.endswith("fitted")],
)  # fmt: skip


@pytest.mark.slow
@NEVER
def test_a_step_asks_no_tensor_on_a_device_for_its_values(make: Make) -> None:
    """Tensors of the meta device have no values; a read is an error."""
    with pytest.raises(RuntimeError):
        float(torch.zeros((), device="meta"))
    shapes = ((90, 80), (5000,), (70,), (3, 40, 50), ())
    params = [nn.Parameter(torch.zeros(shape, device="meta")) for shape in shapes]
    optimizer = make(params, weight_decay=0.1)
    for _ in range(5):
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer.step()
    for p in params:
        state = optimizer.state[p]
        assert int(state["step"]) == 5
        assert {value.device.type for name, value in state.items() if name != "step"} == {"meta"}


@NEVER
def test_a_step_turns_no_tensor_but_its_counter_into_a_number(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = model()
    optimizer = make(net.parameters(), weight_decay=0.1)
    with use_backend("reference"):
        train(net, optimizer, range(2))
    counters = [state["step"] for state in optimizer.state.values()]
    asked: list[Tensor] = []
    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "__index__"):
        plain = getattr(Tensor, name)

        def watched(tensor: Tensor, plain: Callable[[Tensor], Any] = plain) -> Any:
            if not any(tensor is counter for counter in counters):
                asked.append(tensor)
            return plain(tensor)

        monkeypatch.setattr(Tensor, name, watched)
    with use_backend("reference"):
        optimizer.step()
    # Scalars of the rule are rounded to float32 on the host, those of a group at once: a vector
    # that never was on a device.
    assert [tensor.shape for tensor in asked if tensor.dim() != 1] == []
    assert len(asked) == 1


@pytest.mark.gpu
@NEVER
def test_cuda_does_not_wait(make: Make) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    net = model().cuda()
    optimizer = make(net.parameters(), weight_decay=0.1)
    for step in range(6):
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        # The first step brings codebooks to the device.
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@EVERY
def test_memory_counts_the_states_that_each_parameter_has(make: Make) -> None:
    net = model()
    optimizer = make(net.named_parameters())
    before = [(row.parameter, row.state, row.nbytes) for row in optimizer.memory()]
    train(net, optimizer, range(1))
    actual = [
        (name, state, value.nbytes)
        for name, parameter in net.named_parameters()
        for state, value in optimizer.state[parameter].items()
        if state != "step"
    ]
    after = [(row.parameter, row.state, row.nbytes) for row in optimizer.memory()]
    assert sorted(before) == sorted(after) == sorted(actual)
