"""The optimizers as data: each with its classes, its torch reference, options and an oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import nn

from qmaps import optim
from qmaps.optim import QuantizedOptimizer
from qmaps.quantizer import QuantizedTensor

Options = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """What the tests that hold for every optimizer need to know of one.

    Attributes:
        full, eight, four: its classes.
        reference: torch's class of that name, if there is one.
        options: every combination to be tested; the last one uses every state.
        oracle: the rule for one element: parameter, gradients, complete options -> parameter and
            states after all steps, in Python floats.
        rate: a learning rate at which `model` learns.
        learns: options to learn with, besides.
    """

    full: type[QuantizedOptimizer]
    eight: type[QuantizedOptimizer]
    four: type[QuantizedOptimizer]
    reference: type[torch.optim.Optimizer] | None
    options: list[Options]
    oracle: Callable[..., tuple[float, dict[str, float]]]
    rate: float
    learns: Options = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.full.__name__


def grid(**choices: list[Any]) -> list[Options]:
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


def adam(p: float, grads: list[float], o: Options, decoupled: bool = False) -> Any:
    m = v = 0.0
    (beta1, beta2), decay = o["betas"], o["weight_decay"]
    for t, given in enumerate(grads, 1):
        g = -given if o["maximize"] else given
        if decoupled:
            p -= o["lr"] * decay * p
        else:
            g += decay * p
        m += (1 - beta1) * (g - m)
        v += (1 - beta2) * (g**2 - v)
        p -= o["lr"] * (m / (1 - beta1**t)) / (math.sqrt(v / (1 - beta2**t)) + o["eps"])
    return p, {"exp_avg": m, "exp_avg_sq": v}


def adamw(p: float, grads: list[float], o: Options) -> Any:
    return adam(p, grads, o, decoupled=True)


def sgd(p: float, grads: list[float], o: Options) -> Any:
    b = None
    for given in grads:
        g = (-given if o["maximize"] else given) + o["weight_decay"] * p
        move = g
        if o["momentum"]:
            b = g if b is None else o["momentum"] * b + (1 - o["dampening"]) * g
            move = g + o["momentum"] * b if o["nesterov"] else b
        p -= o["lr"] * move
    return p, {} if b is None else {"momentum_buffer": b}


def rmsprop(p: float, grads: list[float], o: Options) -> Any:
    v = a = b = 0.0
    for given in grads:
        g = (-given if o["maximize"] else given) + o["weight_decay"] * p
        v += (1 - o["alpha"]) * (g**2 - v)
        a += (1 - o["alpha"]) * (g - a)
        move = g / (math.sqrt(v - a**2 if o["centered"] else v) + o["eps"])
        b = o["momentum"] * b + move
        p -= o["lr"] * (b if o["momentum"] else move)
    states = {"square_avg": v}
    if o["momentum"]:
        states["momentum_buffer"] = b
    if o["centered"]:
        states["grad_avg"] = a
    return p, states


def adagrad(p: float, grads: list[float], o: Options) -> Any:
    v = o["initial_accumulator_value"]
    for t, given in enumerate(grads):
        g = (-given if o["maximize"] else given) + o["weight_decay"] * p
        v += g**2
        p -= o["lr"] / (1 + t * o["lr_decay"]) * g / (math.sqrt(v) + o["eps"])
    return p, {"sum": v}


def lion(p: float, grads: list[float], o: Options) -> Any:
    m = 0.0
    beta1, beta2 = o["betas"]
    for given in grads:
        g = -given if o["maximize"] else given
        c = beta1 * m + (1 - beta1) * g
        p -= o["lr"] * ((c > 0) - (c < 0) + o["weight_decay"] * p)
        m = beta2 * m + (1 - beta2) * g
    return p, {"exp_avg": m}


BOTH = [False, True]
DECAYS = [0.0, 0.3]
_ADAM = grid(maximize=BOTH, weight_decay=DECAYS, betas=[(0.8, 0.95), (0.0, 0.9)], eps=[1e-3])
FAMILIES = [
    Family(optim.Adam, optim.Adam8bit, optim.Adam4bit, torch.optim.Adam, _ADAM, adam, 3e-3),
    Family(optim.AdamW, optim.AdamW8bit, optim.AdamW4bit, torch.optim.AdamW, _ADAM, adamw, 3e-3),
    Family(
        optim.SGD,
        optim.SGD8bit,
        optim.SGD4bit,
        torch.optim.SGD,
        [
            *grid(maximize=BOTH, weight_decay=DECAYS),
            *grid(maximize=BOTH, weight_decay=DECAYS, momentum=[0.8], nesterov=BOTH),
            *grid(maximize=BOTH, weight_decay=DECAYS, momentum=[0.8], dampening=[0.4]),
        ],
        sgd,
        0.3,
        {"momentum": 0.9, "nesterov": True},
    ),
    Family(
        optim.RMSprop,
        optim.RMSprop8bit,
        optim.RMSprop4bit,
        torch.optim.RMSprop,
        grid(
            maximize=BOTH,
            weight_decay=DECAYS,
            alpha=[0.7],
            eps=[1e-2],
            momentum=[0.0, 0.8],
            centered=BOTH,
        ),
        rmsprop,
        1e-3,
        {"momentum": 0.5},
    ),
    Family(
        optim.Adagrad,
        optim.Adagrad8bit,
        optim.Adagrad4bit,
        torch.optim.Adagrad,
        grid(
            maximize=BOTH,
            weight_decay=DECAYS,
            lr_decay=[0.0, 0.2],
            initial_accumulator_value=[0.0, 0.5],
            eps=[1e-3],
        ),
        adagrad,
        1e-2,
    ),
    Family(
        optim.Lion,
        optim.Lion8bit,
        optim.Lion4bit,
        None,
        grid(maximize=BOTH, weight_decay=DECAYS, betas=[(0.8, 0.95), (0.0, 0.9)]),
        lion,
        1e-3,
    ),
]
CASES = [(family, options) for family in FAMILIES for options in family.options]


def label(value: object) -> str:
    """The name of a test's parameter."""
    if isinstance(value, Family):
        return value.name
    if isinstance(value, dict):
        return ",".join(f"{k}={v}" for k, v in value.items())
    return str(value)


SHAPES = ((7, 5), (11,), ())


def run(
    make: Callable[..., torch.optim.Optimizer],
    options: Options,
    steps: int = 20,
    shapes: tuple[tuple[int, ...], ...] = SHAPES,
    dtype: torch.dtype = torch.float32,
) -> tuple[list[nn.Parameter], torch.optim.Optimizer, list[list[torch.Tensor]]]:
    """An optimizer after `steps` of given gradients; the first parameter misses the fourth."""
    generator = torch.Generator().manual_seed(5)
    params = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
    optimizer = make(params, **options)
    grads: list[list[torch.Tensor]] = [[] for _ in params]
    for step in range(steps):
        give(params, generator, missing=0 if step == 3 else None)
        for p, seen in zip(params, grads, strict=True):
            if p.grad is not None:
                seen.append(p.grad)
        optimizer.step()
    return params, optimizer, grads


def give(
    params: list[nn.Parameter], generator: torch.Generator, missing: int | None = None
) -> None:
    """New gradients, away from 0, for all parameters but one."""
    for number, p in enumerate(params):
        g = torch.randn(p.shape, generator=generator)
        p.grad = None if number == missing else (g + 0.2 * g.sign()).to(p.dtype)


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(90, 80), nn.ReLU(), nn.Linear(80, 70), nn.LayerNorm(70)).to(
        dtype
    )


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> float:
    """Learn to give back a part of the input; the last loss."""
    loss = torch.zeros(())
    for step in steps:
        x = torch.randn(16, 90, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = (net(x.to(next(net.parameters()).dtype)) - x[:, :70]).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def floats(value: torch.Tensor | QuantizedTensor) -> torch.Tensor:
    return value.dequantize() if isinstance(value, QuantizedTensor) else value


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal, zeros by sign and NaN to NaN as well."""
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True) and torch.equal(
        one.signbit() & ~one.isnan(), other.signbit() & ~other.isnan()
    )
