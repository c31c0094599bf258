"""SM3 with momentum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from qmaps.optim import SM3
from tests.optim.families import run
from tests.optim.one_step import Array, assert_bits, random_arrays, step

f = np.float32


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("maximize", [False, True])
def test_the_documented_operations(maximize: bool, momentum: float) -> None:
    x = random_arrays("b", "V")
    v = x.pop("v")
    x = {name: value.reshape(20, 10, 20) for name, value in x.items()}
    x |= {"r": v[:20], "s": v[20:30], "t": v[30:50]}
    names = {"accumulator_0": "r", "accumulator_1": "s", "accumulator_2": "t"}
    names |= {"momentum_buffer": "b"} if momentum else {}
    options = {"lr": 0.01, "momentum": momentum, "weight_decay": 0.3, "maximize": maximize}
    actual = step(SM3, x, 4, names, **options)
    p, g, b = x["p"], -x["g"] if maximize else x["g"], x["b"]
    g = g + p * f(0.3)
    bound = np.minimum(np.minimum(x["r"][:, None, None], x["s"][:, None]), x["t"])
    v = bound + g * g
    u = g / np.sqrt(v)
    buffers = {}
    if momentum:
        u = b * f(momentum) + u * f(1 - momentum)
        buffers = {"b": u}
    p = p - u * f(0.01)
    assert_bits(actual, p=p, r=v.max((1, 2)), s=v.max((0, 2)), t=v.max((0, 1)), **buffers)


def reference(p: Array, grads: list[Array], momentum: float) -> Array:
    """SM3-II with the slices of co-dimension 1 as cover, element by element, in float64."""
    sets = [[0.0] * size for size in p.shape]
    b = np.zeros(p.shape)
    for g in grads:
        fresh = [[0.0] * size for size in p.shape]
        u = np.zeros(p.shape)
        for index in np.ndindex(p.shape):
            v = min(sets[dim][i] for dim, i in enumerate(index)) + g[index] ** 2
            u[index] = g[index] / v**0.5 if v else 0.0
            for dim, i in enumerate(index):
                fresh[dim][i] = max(fresh[dim][i], v)
        sets = fresh
        b = momentum * b + (1 - momentum) * u
        p = p - 0.05 * b
    return p


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_100_steps_are_those_of_the_paper(momentum: float) -> None:
    shapes = ((6, 5), (3, 2, 4), (7,))
    options = {"lr": 0.05, "momentum": momentum}
    start, _, _ = run(SM3, options, 0, shapes)
    params, _, grads = run(SM3, options, 100, shapes)
    for before, p, history in zip(start, params, grads, strict=True):
        exact = reference(
            before.detach().double().numpy(), [g.double().numpy() for g in history], momentum
        )
        np.testing.assert_allclose(p.detach().numpy(), exact, rtol=5e-6, atol=5e-6)


def test_of_one_dimension_it_is_adagrad() -> None:
    options = {"lr": 0.1, "weight_decay": 0.2}
    ours, _, _ = run(SM3, {**options, "momentum": 0}, 20, ((40,), ()))
    theirs, _, _ = run(torch.optim.Adagrad, {**options, "eps": 0}, 20, ((40,), ()))
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=2e-6, atol=2e-6)


def test_zero_nan_and_infinite_gradients() -> None:
    p = nn.Parameter(torch.ones(3, 2))
    optimizer = SM3([p], lr=0.5, momentum=0)
    p.grad = torch.tensor([[0.0, 0.0], [0.0, 2.0], [0.0, -1e-30]])
    optimizer.step()
    assert p.tolist() == [[1, 1], [1, 0.5], [1, 1]]  # the square of -1e-30 underflows
    p.grad[0, 0], p.grad[1, 1] = float("nan"), float("inf")
    optimizer.step()
    assert p.isnan().tolist() == [[True, False], [False, False], [False, False]]
    assert p.isinf().tolist() == [[False, False], [False, True], [False, False]]
    assert optimizer.state[p]["accumulator_0"].isnan().tolist() == [True, False, False]


def test_memory_of_states() -> None:
    p = nn.Parameter(torch.ones(100, 50, 2))
    p.grad = torch.ones_like(p)
    for options, expected in (
        ({}, 4 * (10000 + 152)),
        ({"momentum": 0.0}, 4 * 152),
        ({"state_quantizers": "4bit"}, 5000 + 2 * 157 + 4 * 152),
    ):
        optimizer = SM3([p], **options)
        optimizer.step()
        assert optimizer.state_nbytes == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0 must be at least 0"),
        ({"momentum": 1.0}, "momentum=1.0 must be at least 0 and below 1"),
        ({"weight_decay": -1}, "weight_decay=-1 must be at least 0"),
        ({"state_quantizers": {"momentum_buffer": "B64/DE@4u"}},
         "state_quantizers sets 'momentum_buffer' to B64/DE@4u, which is unsigned; "
         "momentum_buffer has negative values and needs a signed map"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        SM3([torch.zeros(1)], **options)
    assert str(caught.value) == message


def test_too_many_dimensions() -> None:
    optimizer = SM3([torch.zeros(1)])
    with pytest.raises(ValueError) as caught:
        optimizer.add_param_group({"params": [torch.zeros([1] * 9, requires_grad=True)]})
    assert str(caught.value) == (
        "parameter 0 of group 1 has 9 dimensions, and SM3 supports at most 8"
    )
    assert len(optimizer.param_groups) == 1
