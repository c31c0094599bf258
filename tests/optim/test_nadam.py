"""NAdam with quantized moments, beside torch's."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qmaps.engines.step_scalars import nesterov_momentum, nesterov_product
from qmaps.errors import BadTypeError, BadValueError
from qmaps.ops.backends import use_backend
from qmaps.optim import NAdam, NAdam4bit, NAdam8bit
from tests.optim.one_step import assert_bits, random_arrays, step

STATES = {"exp_avg": "m", "exp_avg_sq": "v"}


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
def test_the_documented_operations(decoupled: bool, maximize: bool) -> None:
    f = np.float32
    x = random_arrays("m", "V")
    options = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-4, "weight_decay": 0.3,
               "momentum_decay": 0.02, "decoupled_weight_decay": decoupled,
               "maximize": maximize}  # fmt: skip
    actual = step(NAdam, x, 4, STATES, **options)
    p, g, m, v = x["p"], -x["g"] if maximize else x["g"], x["m"], x["v"]
    if decoupled:
        p = p * f(1 - 0.01 * 0.3)
    else:
        g = g + f(0.3) * p
    m = f(0.9) * m + f(1 - 0.9) * g
    v = f(0.99) * v + f(1 - 0.99) * (g * g)
    now, following = (nesterov_momentum(0.9, 0.02, t) for t in (5, 6))
    product = float(f(nesterov_product(0.9, 0.02, 4)))  # as states without `mu_product` go on
    product = float(f(product * now))
    second = 0.99 * ((0.99 * 0.99) * (0.99 * 0.99))  # by squaring
    u = (
        f(0.01 * (1 - now) / (1 - product)) * g
        + f(0.01 * following / (1 - product * following)) * m
    )
    p = p - u / (np.sqrt(v) / f(math.sqrt(1 - second)) + f(1e-4))
    assert_bits(actual, p=p, m=m, v=v)


@pytest.mark.parametrize("beta1", [0.9, 0.999, 0.0])
@pytest.mark.parametrize("decay", [4e-3, 0.0, 50.0])
def test_the_momentum_and_its_product(beta1: float, decay: float) -> None:
    expected = 1.0
    for t in range(1, 400):
        momentum = beta1 * (1 - 0.5 * 0.96 ** (t * decay))
        assert nesterov_momentum(beta1, decay, t) == pytest.approx(momentum, rel=1e-14)
        expected *= momentum
        product = nesterov_product(beta1, decay, t)
        assert product == pytest.approx(expected, rel=1e-12, abs=2.0**-60)
        assert 1 - product == pytest.approx(1 - expected, rel=1e-13)
    # Steps in any order; the product ends where 1 minus it is 1.
    assert nesterov_product(beta1, decay, 10**12) <= 2.0**-60
    assert nesterov_product(beta1, decay, 1) == nesterov_momentum(beta1, decay, 1)
    assert nesterov_product(beta1, decay, 0) == 1.0


def trained(
    make: Any, steps: int, previous: torch.optim.Optimizer | None = None, **options: Any
) -> tuple[torch.Tensor, torch.optim.Optimizer]:
    """A parameter after `steps` steps, counted from 1 or from the last step of `previous`."""
    torch.manual_seed(0)
    param = nn.Parameter(torch.randn(60, 100))
    optimizer = make([param], lr=0.01, **options)
    start = 0
    if previous is not None:
        (before,) = previous.param_groups[0]["params"]
        param.data.copy_(before)
        optimizer.load_state_dict(copy.deepcopy(previous.state_dict()))
        start = int(previous.state[before]["step"])
    for number in range(start, start + steps):
        param.grad = torch.randn(60, 100, generator=torch.Generator().manual_seed(number))
        optimizer.step()
    return param.detach(), optimizer


@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True},
     {"momentum_decay": 0.3, "betas": (0.95, 0.99)}],
    ids=str,
)  # fmt: skip
def test_over_100_steps_it_is_torch(options: dict[str, Any]) -> None:
    ours, a = trained(NAdam, 100, **options)
    theirs, b = trained(torch.optim.NAdam, 100, **options)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=2e-6)
    our_state, their_state = a.state_dict()["state"][0], b.state_dict()["state"][0]
    assert set(our_state) == set(their_state) == {"step", "mu_product", "exp_avg", "exp_avg_sq"}
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.allclose(our_state[name], their_state[name], rtol=1e-4, atol=1e-6)


def test_the_product_in_a_state_dict_is_that_of_torch() -> None:
    _, a = trained(NAdam, 9)
    _, b = trained(torch.optim.NAdam, 9)
    ours, theirs = (optimizer.state_dict()["state"][0]["mu_product"] for optimizer in (a, b))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert torch.allclose(ours, theirs, rtol=1e-6, atol=0)
    # Since a reset.
    _, c = trained(NAdam, 9, reset_every=4)
    assert c.state_dict()["state"][0]["mu_product"] == np.float32(nesterov_product(0.9, 4e-3, 1))


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_momenta_that_change_are_multiplied_as_they_were(engine: str) -> None:
    def cycled(make: Any, resumed_after: int = 0) -> tuple[torch.Tensor, Any]:
        param = nn.Parameter(torch.linspace(-1, 1, 6000))
        optimizer = make([param])
        for number in range(60):
            if number == resumed_after > 0:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = make([param])
                optimizer.load_state_dict(saved)
            optimizer.param_groups[0]["betas"] = (0.95 - 0.2 * (number % 30) / 30, 0.999)
            param.grad = param.detach() + torch.linspace(1, -1, 6000).roll(number * 100)
            optimizer.step()
        return param.detach(), optimizer.state[param]["mu_product"]

    with use_backend(engine):
        ours, product = cycled(NAdam)
        again, product_again = cycled(NAdam, resumed_after=25)
    theirs, expected = cycled(torch.optim.NAdam)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert torch.allclose(product, expected, rtol=1e-5, atol=0)
    assert torch.equal(ours, again)
    assert torch.equal(product, product_again)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (torch.tensor(1.5), BadValueError,
         "state_dict has mu_product=1.5 for parameter 0 of group 0; it must be from 0 to 1"),
        (math.nan, BadValueError,
         "state_dict has mu_product=nan for parameter 0 of group 0; it must be from 0 to 1"),
        (torch.ones(2), BadTypeError,
         "the mu_product of parameter 0 of group 0 in state_dict must be a number, got Tensor"),
    ],
)  # fmt: skip
def test_bad_products_are_refused(value: object, error: type[Exception], message: str) -> None:
    _, optimizer = trained(NAdam, 1)
    saved = optimizer.state_dict()
    saved["state"][0]["mu_product"] = value
    with pytest.raises(error) as caught:
        optimizer.load_state_dict(saved)
    assert str(caught.value) == message


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_checkpoint_goes_on_in_torch_and_back(decoupled: bool) -> None:
    options = {"weight_decay": 0.1, "decoupled_weight_decay": decoupled}
    uninterrupted, _ = trained(torch.optim.NAdam, 30, **options)
    _, theirs = trained(torch.optim.NAdam, 10, **options)
    ours, resumed = trained(NAdam, 10, theirs)  # the options come from the checkpoint
    assert resumed.param_groups[0]["decoupled_weight_decay"] is decoupled
    again, _ = trained(torch.optim.NAdam, 10, resumed)
    assert torch.allclose(again, uninterrupted, rtol=1e-5, atol=2e-6)
    # Bit for bit in itself.
    once, _ = trained(NAdam, 20, theirs)
    twice, _ = trained(NAdam, 10, resumed)
    assert torch.equal(once, twice)
    assert not torch.equal(ours, once)


@pytest.mark.parametrize("make", [NAdam, torch.optim.NAdam])
def test_a_shard_loads_a_checkpoint_with_the_product(make: Any) -> None:
    dist = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    if not dist.is_available():
        pytest.skip("this torch is built without torch.distributed")
    from torch.distributed.tensor import Shard, distribute_tensor

    _, actual = trained(make, 3)
    saved = actual.state_dict()
    dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=4)
    try:
        mesh = dist.init_device_mesh("cpu", (4,))
        sharded = nn.Parameter(distribute_tensor(torch.zeros(60, 100), mesh, [Shard(0)]))
        optimizer = NAdam([sharded])
        optimizer.load_state_dict(saved)
        assert set(optimizer.state[sharded]) == {"step", "mu_product", "exp_avg", "exp_avg_sq"}
        moment = optimizer.state[sharded]["exp_avg"]
        assert torch.equal(moment, saved["state"][0]["exp_avg"][:15])
        again = optimizer.state_dict()["state"][0]
        assert torch.equal(again["mu_product"], saved["state"][0]["mu_product"])
    finally:
        dist.destroy_process_group()


def test_a_group_may_have_another_weight_decay() -> None:
    first, second = (nn.Parameter(torch.ones(5)) for _ in range(2))
    optimizer = NAdam(
        [{"params": [first]}, {"params": [second], "decoupled_weight_decay": True}],
        weight_decay=0.5,
    )
    for param in (first, second):
        param.grad = torch.zeros(5)
    optimizer.step()
    expected = np.float32(1 - 2e-3 * 0.5)
    assert torch.equal(second, torch.full((5,), float(expected)))  # decayed, and no update
    assert torch.all(first < expected)  # an update towards 0 of nearly lr


def test_specs_of_fixed_widths() -> None:
    for cls, signed, unsigned in (
        (NAdam8bit, "B256/DE-sym@8s", "B256/geometric@8u+qsr"),
        (NAdam4bit, "B64xbf16/mu-law10:linear0@5s+qsr", "B64xbf16/geometric@3u+qsr"),
    ):
        assert cls([torch.zeros(1)]).param_groups[0]["state_quantizers"] == {
            "exp_avg": signed, "exp_avg_sq": unsigned,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum_decay": -1.0}, "momentum_decay=-1.0 must be at least 0"),
        ({"momentum_decay": math.inf}, "momentum_decay=inf must be finite"),
        ({"betas": (0.9,)}, "betas=(0.9,) must be two numbers"),
        ({"decoupled_weight_decay": 1}, "decoupled_weight_decay=1 must be True or False"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        NAdam([torch.zeros(1)], **options)
    assert str(caught.value) == message
