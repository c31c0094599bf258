"""States restart every few steps."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import qmaps
from qmaps import lpmm
from qmaps.algebra.philox import RoundingKey
from qmaps.capture import Monitor
from qmaps.errors import BackendError, BadValueError
from qmaps.ops.backends import use_backend
from qmaps.optim import (
    SGD,
    SM3,
    SOAP,
    Adafactor,
    Adafactor8bit,
    AdamW,
    AdamW8bit,
    AdamW8bitFactor,
    AdEMAMix,
    Muon,
    QuantizedOptimizer,
)
from tests.optim.families import FAMILIES, give, model, train

Make = Callable[..., QuantizedOptimizer]

# Rounded to nearest, so that other random numbers change nothing.
NEAREST = {"state_quantizers": "8bit-0.3"}
CASES: dict[str, tuple[Make, dict[str, Any]]] = {
    **{f"{f.name}, 32 bits": (f.full, f.options[-1]) for f in FAMILIES},
    **{f"{f.name}, 8 bits": (f.full, {**f.options[-1], **NEAREST}) for f in FAMILIES},
    "AdEMAMix, growing": (AdEMAMix, {"t_alpha": 5, "t_beta3": 5, **NEAREST}),
    "AdamWFactor": (AdamW8bitFactor, {}),
    "SM3": (SM3, {"weight_decay": 0.1}),
    "Adafactor": (Adafactor, {"beta1": 0.9, "weight_decay": 0.1}),
    "Adafactor8bit": (Adafactor8bit, {}),
    "CAME": (Adafactor, {"beta1": 0.9, "beta3": 0.99}),
    "fitted": (AdamW, {"state_quantizers": "B128/quantile@4s + tensor/lloyd@4u"}),
}


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_a_new_optimizer_every_few_steps(case: str, engine: str) -> None:
    make, options = CASES[case]
    with use_backend(engine):
        net, twin = model(), model()
        optimizer = make(net.parameters(), reset_every=3, **options)
        train(net, optimizer, range(8))
        for steps in (range(3), range(3, 6), range(6, 8)):
            again = make(twin.parameters(), **options)
            train(twin, again, steps)
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
        assert int(optimizer.state[p]["step"]) == 8
        for name, value in again.state[q].items():
            if name != "step":
                actual = optimizer.state[p][name]
                if isinstance(value, qmaps.QuantizedTensor):
                    assert torch.equal(actual.packed, value.packed)
                    actual, value = actual.dequantize(), value.dequantize()
                assert torch.equal(actual, value), name


@pytest.mark.parametrize("cls", [Muon, SOAP])
def test_rules_of_matrices_begin_anew_too(cls: Make) -> None:
    def matrix() -> nn.Parameter:
        return nn.Parameter(torch.ones(8, 6))

    ours, theirs = matrix(), matrix()
    a, b = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    optimizer = cls([ours], reset_every=2)
    for _ in range(5):
        give([ours], a)
        optimizer.step()
    for count in (2, 2, 1):
        again = cls([theirs])
        for _ in range(count):
            give([theirs], b)
            again.step()
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("stopped", [2, 3, 4, 6])
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(stopped: int, engine: str) -> None:
    specs = "B64/DE@4s+sr + B64/linear@4u+sr"
    options = {"state_quantizers": specs, "reset_every": 3, "seed": 2}
    with use_backend(engine):
        uninterrupted = model()
        train(uninterrupted, AdamW(uninterrupted.parameters(), **options), range(8))
        net = model()
        optimizer = AdamW(net.parameters(), **options)
        train(net, optimizer, range(stopped))
        buffer = io.BytesIO()
        torch.save(optimizer.state_dict(), buffer)
        buffer.seek(0)
        again = AdamW(net.parameters())
        again.load_state_dict(torch.load(buffer, weights_only=True))
        assert again.param_groups[0]["reset_every"] == 3
        train(net, again, range(stopped, 8))
    for p, q in zip(uninterrupted.parameters(), net.parameters(), strict=True):
        assert torch.equal(p, q)


def test_random_numbers_go_on() -> None:
    """The first step after a reset rounds with its own number."""
    param = nn.Parameter(torch.zeros(64, 64))
    optimizer = AdamW([param], state_quantizers="B64/DE@4s+sr + 32-bit", reset_every=2,
                      min_quantized_size=0)  # fmt: skip
    random = torch.Generator().manual_seed(0)
    for _ in range(3):
        param.grad = torch.randn(64, 64, generator=random)
        optimizer.step()
    q = qmaps.quantizer("B64/DE@4s+sr")
    first = param.grad * torch.tensor(1 - 0.9, dtype=torch.float32)
    actual = optimizer.state[param]["exp_avg"]
    assert torch.equal(actual.packed, q.quantize(first, key=RoundingKey(step=3)).packed)
    assert not torch.equal(actual.packed, q.quantize(first, key=RoundingKey(step=1)).packed)


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_each_group_and_each_parameter_counts_for_itself(engine: str) -> None:
    reset, plain, late = (nn.Parameter(torch.ones(4)) for _ in range(3))
    with use_backend(engine):
        optimizer = SGD([{"params": [reset, late], "reset_every": 2}, {"params": [plain]}],
                        lr=1.0, momentum=0.5)  # fmt: skip
        history = []
        for step in range(4):
            for param in (reset, plain, late)[: 2 if step == 0 else 3]:
                param.grad = torch.ones(4)
            optimizer.step()
            buffers = [optimizer.state[p].get("momentum_buffer") for p in (reset, plain, late)]
            history.append([None if b is None else float(b[0]) for b in buffers])
    assert history == [[1.0, 1.0, None], [1.5, 1.5, 1.0], [1.0, 1.75, 1.5], [1.5, 1.875, 1.0]]


def test_the_option_may_change_while_training() -> None:
    param = nn.Parameter(torch.ones(4))
    optimizer = SGD([param], lr=1.0, momentum=0.5)
    history = []
    for every in (None, None, 2, 2, None, None):
        optimizer.param_groups[0]["reset_every"] = every
        param.grad = torch.ones(4)
        optimizer.step()
        history.append(float(optimizer.state[param]["momentum_buffer"][0]))
    assert history == [1.0, 1.5, 1.0, 1.5, 1.75, 1.875]


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize(
    ("before", "after", "resets"), [(None, 4, [7]), (4, None, [4]), (4, 3, [4, 7])]
)
def test_bias_corrections_follow_an_option_that_changes(
    before: int | None, after: int | None, resets: list[int], engine: str
) -> None:
    def fresh(at: torch.Tensor) -> AdamW:
        return AdamW([nn.Parameter(at.detach().clone())], lr=0.1)

    with use_backend(engine):
        optimizer = fresh(torch.ones(8, 8))
        param = optimizer.param_groups[0]["params"][0]
        optimizer.param_groups[0]["reset_every"] = before
        for number, value in enumerate((1.0, -2.0, 3.0, 1.0, 2.0, -1.0, 4.0, 1.0, 2.0)):
            if number in [0, *resets]:
                twin = fresh(param)
            if number == 7:
                optimizer.param_groups[0]["reset_every"] = after
            if number == 8:  # a checkpoint knows when its states began
                saved, optimizer = optimizer.state_dict(), fresh(param)
                optimizer.load_state_dict(saved)
            for stepped in (optimizer, twin):
                stepped.param_groups[0]["params"][0].grad = torch.full((8, 8), value)
                stepped.step()
            param, expected = (o.param_groups[0]["params"][0] for o in (optimizer, twin))
            assert torch.equal(param, expected), number


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "as in 0.3"])
@pytest.mark.parametrize("steps", [0, 3])
def test_an_option_set_late_in_training_is_saved_and_loaded(steps: int, counted: bool) -> None:
    """A frozen layer takes no step after the change; version 0.3 stored no count for it."""
    frozen, trained = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(8, 8))
    optimizer = AdamW([frozen, trained])
    for number in range(20 + steps):
        if number == 20:
            optimizer.param_groups[0]["reset_every"] = 5
        frozen.grad = None if number >= 20 else torch.ones(8, 8)
        trained.grad = torch.ones(8, 8)
        optimizer.step()
    if not steps:
        optimizer.param_groups[0]["reset_every"] = 5
    saved = optimizer.state_dict()
    assert int(saved["state"][0]["reset_step"]) == 0
    if not counted:
        del saved["state"][0]["reset_step"]
    again = AdamW([nn.Parameter(p.detach().clone()) for p in (frozen, trained)])
    again.load_state_dict(saved)
    for stepped in (optimizer, again):
        for param in stepped.param_groups[0]["params"]:
            param.grad = torch.full((8, 8), -2.0)
        stepped.step()
    assert torch.equal(frozen, again.param_groups[0]["params"][0])
    assert int(again.state_dict()["state"][0]["reset_step"]) == 20


@pytest.mark.parametrize("value", [1.5, 0, False])
def test_an_option_set_later_is_checked(value: object) -> None:
    param = nn.Parameter(torch.ones(4))
    optimizer = SGD([param], lr=1.0, momentum=0.5)
    optimizer.param_groups[0]["reset_every"] = value
    param.grad = torch.ones(4)
    with pytest.raises(BadValueError) as caught:
        optimizer.step()
    assert str(caught.value) == f"reset_every={value} must be None or an int of at least 2"


def test_resets_and_projections_are_refused() -> None:
    with pytest.raises(BadValueError) as caught:
        Adafactor([nn.Parameter(torch.ones(64, 64))], apollo_rank=4, reset_every=5)
    assert str(caught.value) == (
        "reset_every=5 needs apollo_rank=0, but it is 4: projections are drawn by the number of "
        "the step"
    )


def test_monitors_refuse_resets() -> None:
    optimizer = AdamW8bit([nn.Parameter(torch.ones(80, 80))], reset_every=5)
    with pytest.raises(BadValueError) as caught:
        Monitor(optimizer)
    assert str(caught.value) == (
        "group0.param0 has reset_every=5; a monitor supports states that are not reset"
    )


def test_a_skipped_step_is_none() -> None:
    param = nn.Parameter(torch.ones(4))
    optimizer = SGD([param], lr=1.0, momentum=0.5, reset_every=2, nonfinite="skip")
    history = []
    for value in (1.0, 1.0, float("nan"), 1.0, 1.0):
        param.grad = torch.full((4,), value)
        optimizer.step()
        history.append(float(optimizer.state[param]["momentum_buffer"][0]))
    assert history == [1.0, 1.5, 1.5, 1.0, 1.5]


def test_master_copies_stay() -> None:
    param = nn.Parameter(torch.ones(64, 80, dtype=torch.bfloat16))
    optimizer = AdamW8bit([param], lr=1e-5, master_weights=True, reset_every=2)
    for _ in range(5):
        param.grad = torch.ones_like(param)
        optimizer.step()
    master = optimizer.state[param]["master_param"]
    # Each step is the learning rate long, and weight decay a hundredth of that.
    assert float(master.mean()) == pytest.approx(1 - 5 * 1.01e-5, abs=1e-6)


def test_models_in_low_precision() -> None:
    net = lpmm.convert(nn.Linear(8, 8))
    optimizer = lpmm.LPMMSGD(net.parameters(), lr=0.1, momentum=0.9, reset_every=2)
    for _ in range(3):
        net(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    (state, _) = optimizer.state.values()
    m = state["momentum_buffer"].dequantize()
    assert int(state["step"]) == 3
    assert float(m.abs().max()) == pytest.approx(2, rel=0.05)  # the gradient of the third step


def test_a_cuda_graph_cannot_record_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    param = nn.Parameter(torch.ones(5000))
    optimizer = AdamW8bit([param], reset_every=3)
    param.grad = torch.ones(5000)
    optimizer.step()
    monkeypatch.setattr("qmaps.optim.resets.recording", lambda: True)
    with pytest.raises(BackendError, match=r"reset_every cannot be recorded in a CUDA graph"):
        optimizer.step()
    optimizer.param_groups[0]["reset_every"] = None
    optimizer.step()
