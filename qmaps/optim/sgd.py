"""Stochastic gradient descent, in 32 bits or with a quantized momentum buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from qmaps.engines.step_scalars import First, StepScalar
from qmaps.errors import BadValueError
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.rule import ascent, check_at_least_0, check_bool, check_finite, coupled


class SGD(QuantizedOptimizer):
    r"""SGD with or without momentum; the momentum buffer accepts any quantizer spec.

    With gradient g (negated to maximize), in float32 and in this order:

        g = g + weight_decay * p                 left out where weight_decay is 0
        b = momentum * b + (1 - dampening) * g   the first step: b = g
        g = g + momentum * b                     with nesterov; otherwise g = b
        p = p - lr * g

    The lines with b are left out where momentum is 0; the buffer then takes no memory. The first
    step is the plain formula with -0 for momentum and 1 for 1 - dampening, with the bits
    of g from a buffer of zeros. This is the parameter's first step: a buffer created by a later
    change of momentum starts from zeros.

    The update uses the new buffer before it is encoded. States are named as torch names them:
    `momentum_buffer` for b, and `step`. torch's SGD counts no steps; its checkpoint goes on as if
    one had been taken.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element.
        momentum: decay of the buffer, at least 0; with 0 there is no buffer.
        dampening: part of the gradient left out of the buffer, except in the first step; a
            finite number.
        weight_decay: coupled: ``weight_decay * p`` is added to the gradient; at least 0.
        nesterov: use Nesterov momentum; it needs `momentum` above 0 and `dampening` 0.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Sutskever et al. (2013), in torch's form; quantized states after 8-bit optimizers,
    section 2.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = SGD(layer.parameters(), momentum=0.9, state_quantizers="4bit")
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["momentum_buffer"]
    QuantizedTensor('B64xbf16/mu-law10:linear0@4s+qsr', shape=(64, 128), 4352 bytes)
    """

    states: ClassVar[Mapping[str, State]] = {"momentum_buffer": State(signed=True)}
    native_rule: ClassVar[str | None] = "sgd"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "momentum", "weight_decay")
        momentum, dampening = group["momentum"], group["dampening"]
        check_finite("dampening", dampening)
        check_bool(group, "nesterov")
        if group["nesterov"] and (momentum == 0 or dampening != 0):
            raise BadValueError(
                f"nesterov=True needs momentum above 0 and dampening 0, but momentum is {momentum} "
                f"and dampening is {dampening}"
            )

    def state_shapes(self, param: Tensor, group: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """The buffer, or nothing where there is no momentum."""
        return super().state_shapes(param, group) if group["momentum"] != 0 else {}

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        momentum = float(group["momentum"])
        return {
            "weight_decay": float(group["weight_decay"]),
            "momentum": First(-0.0, momentum),
            "rest": First(1.0, 1 - float(group["dampening"])),
            "lookahead": momentum if group["nesterov"] else 0.0,
            "step_size": StepScalar(group["lr"]),
            "sign": ascent(group),
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        s = scalars
        grad = coupled(param, grad, s)
        if "momentum_buffer" in states:
            b = states["momentum_buffer"]
            b.mul_(s["momentum"]).add_(grad * s["rest"])
            grad = grad + b * s["lookahead"] if s["lookahead"] != 0 else b
        param.sub_(grad * s["step_size"])


class SGD8bit(EightBit, SGD):
    """`SGD` with an 8-bit momentum buffer: the preset ``8bit``. See `FixedWidth`."""


class SGD4bit(FourBit, SGD):
    """`SGD` with a 4-bit momentum buffer: the preset ``4bit``. See `FixedWidth`."""
