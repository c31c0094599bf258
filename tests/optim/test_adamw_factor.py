"""AdamW with a factored second moment."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import qmaps
from qmaps.optim import AdamW, AdamW4bitFactor, AdamW8bitFactor, AdamWFactor
from tests.optim.families import model, run, train
from tests.optim.one_step import Array, assert_bits, random_arrays, step

f = np.float32


def mean(x: Array, axis: int) -> Array:
    """Exact sums, rounded twice like the documented ones."""
    return np.apply_along_axis(lambda row: math.fsum(row) / len(row), axis, x.astype(float)).astype(
        f
    )


@pytest.mark.parametrize("maximize", [False, True])
def test_the_documented_operations(maximize: bool) -> None:
    x = random_arrays("m", "V")
    v = x.pop("v")
    x = {name: value.reshape(50, 80) for name, value in x.items()}
    x |= {"r": v[:50].reshape(50, 1), "c": v[50:130].reshape(1, 80)}
    options = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}
    names = {"exp_avg": "m", "exp_avg_sq_row": "r", "exp_avg_sq_col": "c"}
    actual = step(AdamWFactor, x, 4, names, maximize=maximize, **options)
    p, g, m, r, c = (x[name] for name in "pgmrc")
    g = -g if maximize else g
    p = p * f(1 - 0.01 * 0.1)
    m = m * f(0.9) + g * f(1 - 0.9)
    r = r * f(0.99) + mean(g * g, 1)[:, None] * f(1 - 0.99)
    c = c * f(0.99) + mean(g * g, 0)[None, :] * f(1 - 0.99)
    v = (r / mean(r, 0)) * c
    p = p - (m / (np.sqrt(v) / f((1 - 0.99**5) ** 0.5) + f(1e-6))) * f(0.01 / (1 - 0.9**5))
    assert_bits(actual, p=p, m=m, r=r, c=c)


def reference(p: Array, grads: list[Array], lr: float, decay: float) -> Array:
    """AdamW with Adafactor's estimate, in float64, from the papers' formulas."""
    m, r, c = np.zeros(p.shape), 0.0, 0.0
    for t, g in enumerate(grads, 1):
        m = 0.9 * m + 0.1 * g
        r = 0.999 * r + 0.001 * (g**2).sum(-1, keepdims=True)
        c = 0.999 * c + 0.001 * (g**2).sum(-2, keepdims=True)
        v = r * c / r.sum(-2, keepdims=True) / (1 - 0.999**t)
        p = p - lr * decay * p - lr * m / (1 - 0.9**t) / (np.sqrt(v) + 1e-8)
    return p


def test_100_steps_are_those_of_the_papers() -> None:
    shapes = ((30, 20), (3, 4, 5, 6), (1, 9), (9, 1))
    options = {"lr": 0.01, "weight_decay": 0.1, "state_quantizers": None}
    start, _, _ = run(AdamWFactor, options, 0, shapes)
    params, _, grads = run(AdamWFactor, options, 100, shapes)
    for before, p, history in zip(start, params, grads, strict=True):
        exact = reference(
            before.detach().double().numpy(), [g.double().numpy() for g in history], 0.01, 0.1
        )
        np.testing.assert_allclose(p.detach().numpy(), exact, rtol=2e-6, atol=2e-6)


def test_tensors_without_rows_and_columns_take_the_step_of_adamw() -> None:
    options = {"lr": 0.01, "weight_decay": 0.1, "min_quantized_size": 0, "state_quantizers": "4bit"}
    for shapes in (((300,), ()), ((0,), (7,))):
        ours, a, _ = run(AdamWFactor, options, 5, shapes)
        theirs, _, _ = run(AdamW, options, 5, shapes)
        for p, q in zip(ours, theirs, strict=True):
            assert torch.equal(p, q)
            assert set(a.state[p]) == {"step", "exp_avg", "exp_avg_sq"}


def test_quantizers_of_states() -> None:
    large = [nn.Parameter(torch.ones(shape)) for shape in ((5000, 2), (5000,), (64, 64))]
    for cls, first, second in (
        (AdamW4bitFactor, "B64xbf16/mu-law10:linear0@5s+qsr", "B64xbf16/geometric@3u+qsr"),
        (AdamW8bitFactor, "B256/DE-sym@8s", "B256/geometric@8u+qsr"),
    ):
        optimizer = cls(large)
        for p in large:
            p.grad = torch.ones_like(p)
        optimizer.step()
        specs = [
            {name: getattr(value, "quantizer", None) for name, value in optimizer.state[p].items()}
            for p in large
        ]
        sides = {"step": None, "exp_avg_sq_row": None, "exp_avg_sq_col": None}
        assert specs == [
            {**sides, "exp_avg": qmaps.quantizer(first)},
            {"step": None, "exp_avg": qmaps.quantizer(first),
             "exp_avg_sq": qmaps.quantizer(second)},
            {**sides, "exp_avg": None},
        ]  # fmt: skip
    chosen = {"exp_avg_sq_row": "B64/linear@8u", "exp_avg_sq_col": "B64/linear@8u"}
    optimizer = AdamWFactor(large, state_quantizers=chosen)
    optimizer.step()
    assert str(optimizer.state[large[0]]["exp_avg_sq_row"].quantizer) == "B64/linear@8u"
    assert type(optimizer.state[large[0]]["exp_avg_sq_col"]) is torch.Tensor  # two elements


def test_a_matrix_of_n_by_m_keeps_five_bits_an_element_and_its_sides() -> None:
    net = nn.Linear(400, 300, bias=False)
    optimizer = AdamW4bitFactor(net.parameters())
    net(torch.ones(1, 400)).sum().backward()
    optimizer.step()
    scales = -(-400 * 300 // 64)
    assert optimizer.state_nbytes == 400 * 300 * 5 // 8 + 2 * scales + 4 * (400 + 300)


def test_zero_gradients_move_nothing_but_by_decay() -> None:
    p = nn.Parameter(torch.ones(4, 5))
    optimizer = AdamWFactor([p], lr=0.5, weight_decay=0.5)
    p.grad = torch.zeros(4, 5)
    optimizer.step()
    assert torch.equal(p, torch.full((4, 5), 0.75))


def test_a_nan_stays() -> None:
    p = nn.Parameter(torch.ones(90, 80))
    optimizer = AdamW4bitFactor([p])
    p.grad = torch.ones(90, 80)
    p.grad[3, 4] = math.nan
    for _ in range(2):
        optimizer.step()
        assert bool(p[3, 4].isnan())
        assert bool(optimizer.state[p]["exp_avg_sq_row"][3, 0].isnan())
        p.grad = torch.ones(90, 80)


@pytest.mark.parametrize("quantizers", [None, "4bit"])
def test_the_checkpoint_of_a_whole_second_moment_is_factored(quantizers: str | None) -> None:
    net = model()
    options = {"state_quantizers": quantizers} if quantizers else {}
    unfactored = (AdamW if quantizers else torch.optim.AdamW)(net.parameters(), **options)
    train(net, unfactored, range(3))
    resumed = model()
    optimizer = AdamWFactor(resumed.parameters())
    optimizer.load_state_dict(unfactored.state_dict())
    for p, q in zip(net.parameters(), resumed.parameters(), strict=True):
        state = optimizer.state[q]
        v = unfactored.state[p]["exp_avg_sq"]
        v = v.dequantize() if isinstance(v, qmaps.QuantizedTensor) else v
        if p.dim() == 1:
            assert torch.equal(state["exp_avg_sq"], v)
            continue
        assert "exp_avg_sq" not in state
        torch.testing.assert_close(state["exp_avg_sq_row"], v.mean(-1, keepdim=True))
        torch.testing.assert_close(state["exp_avg_sq_col"], v.mean(-2, keepdim=True))
    train(resumed, optimizer, range(3, 6))


def test_states_of_wrong_shapes_are_refused() -> None:
    p = nn.Parameter(torch.ones(6, 5))
    optimizer = AdamWFactor([("w", p)])
    p.grad = torch.ones(6, 5)
    optimizer.step()
    for name, shape, message in (
        ("exp_avg_sq_row", (5, 1),
         "state_dict has exp_avg_sq_row of shape (5, 1) for parameter 'w' of shape (6, 5); it must "
         "have shape (6, 1)"),
        ("exp_avg", (5, 6), "state_dict has exp_avg of shape (5, 6) for parameter 'w' of shape "
         "(6, 5)"),
        ("exp_avg_sq", (5, 6),
         "state_dict has exp_avg_sq of shape (5, 6) for parameter 'w' of shape (6, 5)"),
    ):  # fmt: skip
        saved = optimizer.state_dict()
        saved["state"][0] = {**saved["state"][0], name: torch.ones(shape)}
        with pytest.raises(ValueError) as caught:
            AdamWFactor([("w", p)]).load_state_dict(saved)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: AdamWFactor(p, betas=(0.9, 1.0)), "betas[1]=1.0 must be at least 0 and below 1"),
        (lambda p: AdamW4bitFactor(p, state_quantizers="8bit"),
         "state_quantizers='8bit' does not fit an optimizer of fixed width; use "
         "qmaps.optim.AdamWFactor"),
        (lambda p: AdamWFactor(p, state_quantizers={"row": None}),
         "state_quantizers names the state 'row', but AdamWFactor has exp_avg, exp_avg_sq, "
         "exp_avg_sq_row, exp_avg_sq_col"),
    ],
)  # fmt: skip
def test_bad_options(make: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make([torch.zeros(1)])  # type: ignore[operator]
    assert str(caught.value) == message
