"""RMSprop, in 32 bits or with quantized states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from qmaps.engines.step_scalars import StepScalar
from qmaps.float32 import sqrt
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.rule import ascent, bounded_, check_at_least_0, check_bool, check_decay, coupled


class RMSprop(QuantizedOptimizer):
    r"""RMSprop with optional momentum and centering; every state accepts any quantizer spec.

    With gradient g (negated to maximize), in float32 and in this order:

        g = g + weight_decay * p                 left out where weight_decay is 0
        v = alpha * v + (1 - alpha) * (g * g)
        a = alpha * a + (1 - alpha) * g          if centered
        w = v - a * a, or v where that is < 0    if centered; otherwise w = v
        u = g / (sqrt(w) + eps)
        b = momentum * b + u, and u = b          if momentum is not 0
        p = p - lr * u

    A variance w below 0 is an error of rounding or quantization; torch's formula gives NaN
    there. Quantized states make small variances inexact, so use 8 bits or more with `centered`.

    The update uses the new states before they are encoded. States are named as torch names them:
    `square_avg` for v, `momentum_buffer` for b and `grad_avg` for a, where they are used, and
    `step`.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element.
        alpha: decay of the averages, in [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: coupled: ``weight_decay * p`` is added to the gradient; at least 0.
        momentum: decay of the buffer, at least 0; with 0 there is no buffer.
        centered: divide by an estimate of the gradient's standard deviation.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Tieleman and Hinton (2012), lecture 6.5; centered after Graves (2013), in torch's
    form; quantized states after 8-bit optimizers, section 2.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = RMSprop(layer.parameters(), state_quantizers={"square_avg": "B128/linear@8u"})
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["square_avg"]
    QuantizedTensor('B128/linear@8u', shape=(64, 128), 8448 bytes)
    """

    states: ClassVar[Mapping[str, State]] = {
        "square_avg": State(),
        "momentum_buffer": State(signed=True),
        "grad_avg": State(signed=True),
    }
    native_rule: ClassVar[str | None] = "rmsprop"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "eps", "weight_decay", "momentum")
        check_decay("alpha", group["alpha"])
        check_bool(group, "centered")

    def state_shapes(self, param: Tensor, group: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """One to three states, as momentum and centering need them."""
        used = {
            "square_avg": True,
            "momentum_buffer": group["momentum"] != 0,
            "grad_avg": group["centered"],
        }
        return {name: tuple(param.shape) for name in self.states if used[name]}

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        return {
            "weight_decay": float(group["weight_decay"]),
            "alpha": float(group["alpha"]),
            "rest": 1 - float(group["alpha"]),
            "eps": float(group["eps"]),
            "momentum": float(group["momentum"]),
            "step_size": StepScalar(group["lr"]),
            "sign": ascent(group),
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        s = scalars
        v = states["square_avg"]
        grad = coupled(param, grad, s)
        bounded_(v.mul_(s["alpha"]).add_((grad * grad) * s["rest"]))
        variance = v
        if "grad_avg" in states:
            a = states["grad_avg"]
            a.mul_(s["alpha"]).add_(grad * s["rest"])
            variance = v - a * a
            variance = torch.where(variance < 0, v, variance)
        move = grad / sqrt(variance).add_(s["eps"])
        if "momentum_buffer" in states:
            move = states["momentum_buffer"].mul_(s["momentum"]).add_(move)
        param.sub_(move * s["step_size"])


class RMSprop8bit(EightBit, RMSprop):
    """`RMSprop` in 8 bits: the preset ``8bit``. See `FixedWidth`."""


class RMSprop4bit(FourBit, RMSprop):
    """`RMSprop` in 4 bits: the preset ``4bit``.

    See `FixedWidth`.
    """
