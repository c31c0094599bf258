"""Adagrad, in 32 bits or with a quantized sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from qmaps.engines.sharding.shards import local
from qmaps.engines.step_scalars import Slowing, StepScalar
from qmaps.errors import BadValueError, shown
from qmaps.float32 import sqrt
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.rule import ascent, bounded_, check_at_least_0, coupled


class Adagrad(QuantizedOptimizer):
    r"""Adagrad; its sum of squares accepts any quantizer spec.

    With gradient g (negated to maximize) and step t, in float32 and in this order:

        g = g + weight_decay * p                 left out where weight_decay is 0
        v = v + g * g                            at first v = initial_accumulator_value
        p = p - lr / (1 + (t - 1) * lr_decay) * (g / (sqrt(v) + eps))

    The update uses the new sum before it is encoded. States are named as torch names them: `sum`
    for v, and `step`. A sum only grows, and under rounding to nearest it stops where g * g is
    below half the distance of two codes; stochastic rounding (``+sr``) lets it go on.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element.
        lr_decay: how fast the step size falls with the step, at least 0; 0 keeps it.
        weight_decay: coupled: ``weight_decay * p`` is added to the gradient; at least 0.
        initial_accumulator_value: start of the sum of squares, from 0 to the largest float32.
        eps: added to the denominator, at least 0.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Duchi, Hazan and Singer (2011); quantized states after 8-bit optimizers, section 2.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = Adagrad(layer.parameters(), state_quantizers={"sum": "B128/DE-0@8u+sr"})
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["sum"]
    QuantizedTensor('B128/DE-0@8u+sr', shape=(64, 128), 8448 bytes)
    """

    states: ClassVar[Mapping[str, State]] = {"sum": State(initial="initial_accumulator_value")}
    native_rule: ClassVar[str | None] = "adagrad"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(
            group, "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"
        )
        start = group["initial_accumulator_value"]
        if start > torch.finfo(torch.float32).max:
            raise BadValueError(
                f"initial_accumulator_value={shown(start)} must be at most 3.4e38, the range of "
                "float32"
            )

    def step(self, closure: Any = None) -> Any:
        """Take one step; see `QuantizedOptimizer.step`.

        A step with zero gradients and lr=0 that only creates states is not counted:
        `torch.distributed.checkpoint.state_dict` takes it for optimizers without states, which
        torch's Adagrad is not.
        """
        blank = not self.state and all(float(group["lr"]) == 0 for group in self.param_groups)
        loss = super().step(closure)
        params = [param for group in self.param_groups for param in group["params"]]
        gradients = [local(param.grad) for param in params if param.grad is not None]
        if blank and not any(bool(gradient.any()) for gradient in gradients):
            for state in self.state.values():
                state["step"].zero_()
        return loss

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        return {
            "weight_decay": float(group["weight_decay"]),
            "eps": float(group["eps"]),
            "step_size": Slowing(group["lr"], float(group["lr_decay"])),
            "sign": ascent(group),
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        s = scalars
        grad = coupled(param, grad, s)
        v = bounded_(states["sum"].add_(grad * grad))
        param.sub_((grad / sqrt(v).add_(s["eps"])).mul_(s["step_size"]))


class Adagrad8bit(EightBit, Adagrad):
    """`Adagrad` with an 8-bit sum: the preset ``8bit``. See `FixedWidth`."""


class Adagrad4bit(FourBit, Adagrad):
    """`Adagrad` with a 4-bit sum: the preset ``4bit``. See `FixedWidth`."""
