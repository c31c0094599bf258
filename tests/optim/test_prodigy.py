"""Prodigy, beside the authors' package."""

from __future__ import annotations

import contextlib
import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import nn

from qmaps.errors import BadValueError, NonFiniteError
from qmaps.optim import Prodigy, Prodigy4bit, Prodigy8bit
from tests.training.runs import assert_same


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 5))


def train(model: nn.Module, optimizer: Any, steps: range = range(100)) -> list[float]:
    losses = []
    for number in steps:
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        loss = (model(x) - x[:, :5]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.1, "use_bias_correction": True}, {"growth_rate": 1.05, "d_coef": 2.0},
     {"slice_p": 3, "safeguard_warmup": True, "weight_decay": 0.01, "decouple": False}],
    ids=str,
)  # fmt: skip
def test_over_100_steps_it_is_the_authors_package(options: dict[str, Any]) -> None:
    package = pytest.importorskip("prodigyopt")
    start, ours, theirs = net(), net(), net()
    a = Prodigy(ours.parameters(), **options)
    with contextlib.redirect_stdout(io.StringIO()):
        b = package.Prodigy(theirs.parameters(), **options)
    assert train(ours, a) == pytest.approx(train(theirs, b), rel=1e-3)
    for name in ("d", "d_max", "d_numerator", "k"):
        assert a.param_groups[0][name] == pytest.approx(b.param_groups[0][name], rel=1e-3)
    x, y, z = (nn.utils.parameters_to_vector(m.parameters()) for m in (ours, theirs, start))
    # Its first steps divide by nearly nothing, so that differences of rounding grow.
    assert (x - y).norm() < 1e-3 * (y - z).norm()


def test_a_frozen_group_does_not_move_and_others_share_the_estimate() -> None:
    model = net()
    first, last = model[0], model[2]
    optimizer = Prodigy([{"params": first.parameters(), "lr": 0.0}, {"params": last.parameters()}])
    before = first.weight.detach().clone()
    train(model, optimizer, range(20))
    assert torch.equal(first.weight, before)
    assert not optimizer.state[first.weight]["s"].any()
    assert optimizer.param_groups[0]["d"] == optimizer.param_groups[1]["d"] > 1e-6


@pytest.mark.parametrize("cls", [Prodigy8bit, Prodigy4bit])
def test_quantized_moments_resume_with_the_same_bits(cls: Any) -> None:
    model, twin = net().bfloat16().float(), net()
    optimizer = cls(model.parameters(), min_quantized_size=0, slice_p=7)
    assert train(model, optimizer, range(60))[-1] < 0.9
    specs = optimizer.param_groups[0]["state_quantizers"]
    assert sorted(specs) == ["exp_avg", "exp_avg_sq"]
    twin.load_state_dict(model.state_dict())
    resumed = cls(twin.parameters())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert train(model, optimizer, range(60, 64)) == train(twin, resumed, range(60, 64))
    assert_same(optimizer, resumed)


def test_a_step_that_is_skipped_leaves_the_estimate() -> None:
    model = net()
    optimizer = Prodigy(model.parameters(), nonfinite="skip")
    train(model, optimizer, range(3))
    group = dict(optimizer.param_groups[0])
    model[0].weight.grad[0, 0] = math.inf
    optimizer.step()
    assert optimizer.skipped_steps == 1
    after = optimizer.param_groups[0]
    assert all(after[name] == group[name] for name in ("d", "d_max", "d_numerator", "k"))


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_an_overflow_of_a_frozen_group_leaves_the_estimate(policy: str) -> None:
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    optimizer = Prodigy(groups, nonfinite=policy)
    train(model, optimizer, range(3))
    before = copy.deepcopy(optimizer.state_dict())
    model[0].weight.grad[0, 0] = math.inf
    with contextlib.suppress(NonFiniteError):
        optimizer.step()
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert torch.equal(after["state"][2]["s"], before["state"][2]["s"])


def test_flat_parameters_are_refused() -> None:
    param = nn.Parameter(torch.ones(8))
    param._fsdp_flattened = True
    with pytest.raises(BadValueError) as caught:
        Prodigy([param])
    assert str(caught.value) == (
        "parameter 0 of group 0 is sharded, and Prodigy's sums need whole parameters"
    )


def test_without_gradients_there_is_no_step() -> None:
    model = net()
    optimizer = Prodigy(model.parameters())
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    before = [param.detach().clone() for param in model.parameters()]
    optimizer.step()
    for param, old in zip(model.parameters(), before, strict=True):
        assert int(optimizer.state[param]["step"]) == 0
        assert torch.equal(param, old)
    assert optimizer.param_groups[0]["k"] == 0
    assert optimizer.param_groups[0]["d_step"] == 1e-6
    # Distances are measured from where the first counted step begins.
    torch.manual_seed(1)
    for param in model.parameters():
        nn.init.normal_(param)
    again = copy.deepcopy(model)
    assert train(model, optimizer) == train(again, Prodigy(again.parameters()))


def test_a_group_with_resets_keeps_the_estimate() -> None:
    """The constructor refuses `reset_every`; in a group it has no effect, and the state loads."""
    model, twin = net(), net()
    optimizer = Prodigy(model.parameters())
    optimizer.param_groups[0]["reset_every"] = 2
    assert train(model, optimizer, range(8)) == train(twin, Prodigy(twin.parameters()), range(8))
    optimizer.load_state_dict(optimizer.state_dict())
    assert "reset_step" not in optimizer.state[model[0].weight]


def test_rates_that_differ_are_refused() -> None:
    params = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = Prodigy([{"params": params[:1], "lr": 0.5}, {"params": params[1:]}])
    params[0].grad = torch.ones(3)
    with pytest.raises(ValueError, match="lr=") as caught:
        optimizer.step()
    assert (
        str(caught.value) == "lr=[0.5, 1.0] must be one number in all groups, or 0 in some of them"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0 must be at least 0"),
        ({"d0": 0.0}, "d0=0.0 must be above 0"),
        ({"beta3": 1.0}, "beta3=1.0 must be at least 0 and below 1"),
        ({"slice_p": 0}, "slice_p=0 must be an int of at least 1"),
        ({"decouple": 1}, "decouple=1 must be True or False"),
        ({"reset_every": 5},
         "reset_every=5 must be None: Prodigy's estimate of all steps cannot begin anew"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        Prodigy([torch.zeros(1)], **options)
    assert str(caught.value) == message
