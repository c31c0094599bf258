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
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.optim import QuantizedOptimizer

Options = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """The description of an optimizer for the tests of every optimizer.

    Attributes:
        full, eight, four: its classes.
        reference: torch's class of the same name, if there is one.
        options: every tested combination; the last one uses every state.
        oracle: the rule for one element: parameter, gradients, complete options -> parameter and
            states after all steps, in Python floats. A rule with norms gets all elements of a
            tensor, as lists.
        rate: a learning rate for `model`.
        learns: further options for `model`.
        defaults: without a class in torch, the rule's options and their defaults.
    """

    full: type[QuantizedOptimizer]
    eight: type[QuantizedOptimizer]
    four: type[QuantizedOptimizer]
    reference: type[torch.optim.Optimizer] | None
    options: list[Options]
    oracle: Callable[..., Any]
    rate: float
    learns: Options = field(default_factory=dict)
    defaults: Options = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.full.__name__

    def expected(
        self, before: torch.Tensor, grads: list[torch.Tensor], options: Options
    ) -> dict[str, list[float]]:
        """The oracle's result for a whole tensor: elements of the parameter `p` and of states."""
        start = before.reshape(-1).tolist()
        rows = [grad.reshape(-1).tolist() for grad in grads]
        if self.full.takes_norms:
            p, states = self.oracle(start, rows, options)
            return {"p": p, **states}
        results = [
            self.oracle(x, list(column), options)
            for x, column in zip(start, zip(*rows, strict=True), strict=True)
        ]
        names = results[0][1]
        return {"p": [p for p, _ in results]} | {
            name: [states[name] for _, states in results] for name in names
        }


def grid(**choices: list[Any]) -> list[Options]:
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


def adam(p: float, grads: list[float], o: Options, decoupled: bool = False) -> Any:
    m = v = 0.0
    (beta1, beta2), decay = o["betas"], o["weight_decay"]
    decoupled = decoupled or o["decoupled_weight_decay"]
    for t, grad in enumerate(grads, 1):
        g = -grad if o["maximize"] else grad
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


def nadam(p: float, grads: list[float], o: Options) -> Any:
    m = v = 0.0
    product = 1.0
    (beta1, beta2), decay = o["betas"], o["weight_decay"]
    for t, grad in enumerate(grads, 1):
        g = -grad if o["maximize"] else grad
        if o["decoupled_weight_decay"]:
            p -= o["lr"] * decay * p
        else:
            g += decay * p
        now, following = (
            beta1 * (1 - 0.96 ** (step * o["momentum_decay"]) / 2) for step in (t, t + 1)
        )
        product *= now
        m += (1 - beta1) * (g - m)
        v += (1 - beta2) * (g**2 - v)
        u = (1 - now) * g / (1 - product) + following * m / (1 - product * following)
        p -= o["lr"] * u / (math.sqrt(v / (1 - beta2**t)) + o["eps"])
    return p, {"exp_avg": m, "exp_avg_sq": v, "mu_product": product}


def sgd(p: float, grads: list[float], o: Options) -> Any:
    b = None
    for grad in grads:
        g = (-grad if o["maximize"] else grad) + o["weight_decay"] * p
        move = g
        if o["momentum"]:
            b = g if b is None else o["momentum"] * b + (1 - o["dampening"]) * g
            move = g + o["momentum"] * b if o["nesterov"] else b
        p -= o["lr"] * move
    return p, {} if b is None else {"momentum_buffer": b}


def rmsprop(p: float, grads: list[float], o: Options) -> Any:
    v = a = b = 0.0
    for grad in grads:
        g = (-grad if o["maximize"] else grad) + o["weight_decay"] * p
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
    for t, grad in enumerate(grads):
        g = (-grad if o["maximize"] else grad) + o["weight_decay"] * p
        v += g**2
        p -= o["lr"] / (1 + t * o["lr_decay"]) * g / (math.sqrt(v) + o["eps"])
    return p, {"sum": v}


def lion(p: float, grads: list[float], o: Options) -> Any:
    m = 0.0
    beta1, beta2 = o["betas"]
    for grad in grads:
        g = -grad if o["maximize"] else grad
        c = beta1 * m + (1 - beta1) * g
        p -= o["lr"] * ((c > 0) - (c < 0) + o["weight_decay"] * p)
        m = beta2 * m + (1 - beta2) * g
    return p, {"exp_avg": m}


def ademamix(p: float, grads: list[float], o: Options) -> Any:
    m = n = v = 0.0
    beta1, beta2, last = o["betas"]
    for t, grad in enumerate(grads, 1):
        g = -grad if o["maximize"] else grad
        alpha, beta3 = o["alpha"], last
        if o["t_alpha"]:
            alpha = min(t * alpha / o["t_alpha"], alpha)
        if o["t_beta3"] and t < o["t_beta3"]:
            # The paper's equation, of logarithms.
            b, share = math.log(last), t / o["t_beta3"]
            power = b / share  # its limit where beta1 is 0
            if beta1:
                a = math.log(beta1)
                power = a * b / ((1 - share) * b + share * a)
            beta3 = min(math.exp(power), last)
        m += (1 - beta1) * (g - m)
        n += (1 - beta3) * (g - n)
        v += (1 - beta2) * (g**2 - v)
        u = (m / (1 - beta1**t) + alpha * n) / (math.sqrt(v / (1 - beta2**t)) + o["eps"])
        p -= o["lr"] * (u + o["weight_decay"] * p)
    return p, {"exp_avg": m, "exp_avg_slow": n, "exp_avg_sq": v}


def adan(p: float, grads: list[float], o: Options) -> Any:
    m = n = v = 0.0
    (beta1, beta2, beta3), decay = o["betas"], o["lr"] * o["weight_decay"]
    last = None
    for t, grad in enumerate(grads, 1):
        g = -grad if o["maximize"] else grad
        d = 0.0 if last is None else g - last
        last = g
        m += (1 - beta1) * (g - m)
        n += (1 - beta2) * (d - n)
        v += (1 - beta3) * ((g + beta2 * d) ** 2 - v)
        u = m / (1 - beta1**t) + beta2 * n / (1 - beta2**t)
        u /= math.sqrt(v / (1 - beta3**t)) + o["eps"]
        p = (1 - decay) * p - o["lr"] * u if o["no_prox"] else (p - o["lr"] * u) / (1 + decay)
    states = {"exp_avg": m, "exp_avg_diff": n, "exp_avg_sq": v, "neg_pre_grad": -(last or 0.0)}
    return p, states


def schedule_free(p: float, grads: list[float], o: Options) -> Any:
    x = y = z = p
    v = total = 0.0
    (beta1, beta2), warmup = o["betas"], o["warmup_steps"]
    for t, grad in enumerate(grads, 1):
        g = -grad if o["maximize"] else grad
        v += (1 - beta2) * (g**2 - v)
        u = g / (math.sqrt(v / (1 - beta2**t)) + o["eps"]) + o["weight_decay"] * y
        warmed = min(1.0, t / warmup) if warmup else 1.0
        total += warmed ** o["weight_lr_power"]
        z -= o["lr"] * warmed * u
        x += (z - x) * warmed ** o["weight_lr_power"] / total
        y = (1 - beta1) * z + beta1 * x
    return y, {"z_offset": z - y, "exp_avg_sq": v}


def lamb(p: list[float], grads: list[list[float]], o: Options) -> Any:
    m, v = [0.0] * len(p), [0.0] * len(p)
    beta1, beta2 = o["betas"]
    for t, grad in enumerate(grads, 1):
        g = [-x if o["maximize"] else x for x in grad]
        m = [beta1 * x + (1 - beta1) * y for x, y in zip(m, g, strict=True)]
        v = [beta2 * x + (1 - beta2) * y**2 for x, y in zip(v, g, strict=True)]
        first, second = (1 - beta1**t, 1 - beta2**t) if o["bias_correction"] else (1, 1)
        r = [
            x / first / (math.sqrt(y / second) + o["eps"]) + o["weight_decay"] * z
            for x, y, z in zip(m, v, p, strict=True)
        ]
        trust = 1.0
        if math.hypot(*p) and math.hypot(*r):
            trust = math.hypot(*p) / math.hypot(*r)
            if o["trust_clip"]:
                trust = min(trust, o["trust_clip"])
            if o["max_unorm"]:
                trust = min(o["max_unorm"] * trust, 1)
        p = [x - o["lr"] * trust * y for x, y in zip(p, r, strict=True)]
    return p, {"exp_avg": m, "exp_avg_sq": v}


def lars(p: list[float], grads: list[list[float]], o: Options) -> Any:
    b = [0.0] * len(p)
    for grad in grads:
        g = [-x if o["maximize"] else x for x in grad]
        u = [x + o["weight_decay"] * y for x, y in zip(g, p, strict=True)]
        long, steep = math.hypot(*p), math.hypot(*g)
        if long and steep and not o["max_unorm"]:
            trust = o["trust_coefficient"] * long / (steep + o["weight_decay"] * long)
            u = [trust * x for x in u]
        b = [o["momentum"] * x + y for x, y in zip(b, u, strict=True)]
        move = b
        if o["nesterov"]:
            move = [x + o["momentum"] * y for x, y in zip(u, b, strict=True)]
        if o["max_unorm"] and long and math.hypot(*move) > o["max_unorm"] * long:
            shorter = o["max_unorm"] * long / math.hypot(*move)
            move = [shorter * x for x in move]
        p = [x - o["lr"] * y for x, y in zip(p, move, strict=True)]
    return p, {"momentum_buffer": b} if o["momentum"] else {}


BOTH = [False, True]
DECAYS = [0.0, 0.3]
_ADAM = grid(maximize=BOTH, weight_decay=DECAYS, betas=[(0.8, 0.95), (0.0, 0.9)], eps=[1e-3])
FAMILIES = [
    Family(
        optim.Adam,
        optim.Adam8bit,
        optim.Adam4bit,
        torch.optim.Adam,
        [*_ADAM, {"decoupled_weight_decay": True, "weight_decay": 0.3, "eps": 1e-3}],
        adam,
        3e-3,
    ),
    Family(optim.AdamW, optim.AdamW8bit, optim.AdamW4bit, torch.optim.AdamW, _ADAM, adamw, 3e-3),
    Family(
        optim.NAdam,
        optim.NAdam8bit,
        optim.NAdam4bit,
        torch.optim.NAdam,
        [
            *grid(
                maximize=BOTH,
                weight_decay=DECAYS,
                decoupled_weight_decay=BOTH,
                betas=[(0.8, 0.95)],
                eps=[1e-3],
            ),
            *grid(momentum_decay=[0.0, 0.5, 40.0], betas=[(0.0, 0.9), (0.9, 0.95)], eps=[1e-3]),
        ],
        nadam,
        3e-3,
    ),
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
        defaults={"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0},
    ),
    Family(
        optim.AdEMAMix,
        optim.AdEMAMix8bit,
        optim.AdEMAMix4bit,
        None,
        [
            *grid(maximize=BOTH, weight_decay=DECAYS, betas=[(0.8, 0.95, 0.99)], eps=[1e-3]),
            *grid(
                betas=[(0.0, 0.9, 0.99), (0.8, 0.95, 0.999)],
                t_alpha=[None, 12],
                t_beta3=[12, 100],
                eps=[1e-3],
            ),
        ],
        ademamix,
        1e-3,
        defaults={
            "lr": 1e-3, "betas": (0.9, 0.999, 0.9999), "alpha": 5.0, "t_alpha": None,
            "t_beta3": None, "eps": 1e-8, "weight_decay": 1e-2,
        },
    ),
    Family(
        optim.Adan,
        optim.Adan8bit,
        optim.Adan4bit,
        None,
        [
            *grid(maximize=BOTH, weight_decay=DECAYS, no_prox=BOTH, eps=[1e-3]),
            *grid(betas=[(0.0, 0.0, 0.9), (0.8, 0.5, 0.95)], eps=[1e-3]),
        ],
        adan,
        1e-3,
        defaults={
            "lr": 1e-3, "betas": (0.98, 0.92, 0.99), "eps": 1e-8, "weight_decay": 0,
            "no_prox": False,
        },
    ),
    Family(
        optim.AdamWScheduleFree,
        optim.AdamWScheduleFree8bit,
        optim.AdamWScheduleFree4bit,
        None,
        [
            *grid(maximize=BOTH, weight_decay=DECAYS, betas=[(0.8, 0.95)], eps=[1e-3]),
            *grid(warmup_steps=[7], weight_lr_power=[0.0, 1.0, 2.0], eps=[1e-3]),
        ],
        schedule_free,
        1e-2,
        defaults={
            "lr": 2.5e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0,
            "warmup_steps": 0, "weight_lr_power": 2.0, "train_mode": True,
        },
    ),
    Family(
        optim.LAMB,
        optim.LAMB8bit,
        optim.LAMB4bit,
        None,
        [
            *grid(maximize=BOTH, weight_decay=DECAYS, bias_correction=BOTH, eps=[1e-3]),
            *grid(betas=[(0.8, 0.95)], trust_clip=[0.4], eps=[1e-3]),
            *grid(betas=[(0.0, 0.9)], max_unorm=[0.3, 2.0], eps=[1e-3]),
        ],
        lamb,
        1e-2,
        defaults={
            "lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 1e-2,
            "bias_correction": True, "trust_clip": None, "max_unorm": None,
        },
    ),
    Family(
        optim.LARS,
        optim.LARS8bit,
        optim.LARS4bit,
        None,
        [
            *grid(maximize=BOTH, weight_decay=DECAYS, momentum=[0.0], trust_coefficient=[0.1]),
            *grid(maximize=BOTH, weight_decay=DECAYS, nesterov=BOTH, trust_coefficient=[0.1]),
            *grid(momentum=[0.0, 0.8], max_unorm=[0.1, 100.0]),
        ],
        lars,
        1.0,
        defaults={
            "lr": 1.0, "momentum": 0.9, "weight_decay": 1e-4, "trust_coefficient": 1e-3,
            "nesterov": False, "max_unorm": None,
        },
    ),
]  # fmt: skip
CASES = [(family, options) for family in FAMILIES for options in family.options]
FUSED_FAMILIES = [family for family in FAMILIES if family.full.native_rule is not None]
"""Families of the fast engines."""
FUSED = [(family, options) for family, options in CASES if family in FUSED_FAMILIES]


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
    """An optimizer after `steps` of random gradients; the first parameter misses the fourth."""
    generator = torch.Generator().manual_seed(5)
    params = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
    optimizer = make(params, **options)
    grads: list[list[torch.Tensor]] = [[] for _ in params]
    for step in range(steps):
        give(params, generator, missing=0 if step == 3 else None)
        for p, history in zip(params, grads, strict=True):
            if p.grad is not None:
                history.append(p.grad)
        optimizer.step()
    return params, optimizer, grads


def give(
    params: list[nn.Parameter], generator: torch.Generator, missing: int | None = None
) -> None:
    """Set new gradients, away from 0, for all parameters but one."""
    for number, p in enumerate(params):
        g = torch.randn(p.shape, generator=generator)
        p.grad = None if number == missing else (g + 0.2 * g.sign()).to(p.dtype)


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(90, 80), nn.ReLU(), nn.Linear(80, 70), nn.LayerNorm(70)).to(
        dtype
    )


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> float:
    """Train to reproduce a part of the input; return the last loss."""
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


def same_bits(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """True for equal bits; NaN equals NaN."""
    return torch.allclose(actual, expected, rtol=0, atol=0, equal_nan=True) and torch.equal(
        actual.signbit() & ~actual.isnan(), expected.signbit() & ~expected.isnan()
    )
