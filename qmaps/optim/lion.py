"""Lion, in 32 bits or with a quantized momentum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from qmaps.engines.step_scalars import Decoupled, StepScalar
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.rule import ascent, check_at_least_0, check_betas, directed


class Lion(QuantizedOptimizer):
    r"""Lion, the sign of a momentum; its state accepts any quantizer spec.

    With gradient g (negated to maximize), in float32 and in this order:

        p = p * (1 - lr * weight_decay)
        c = beta1 * m + (1 - beta1) * g
        p = p - lr * sign(c)                     1, -1, or c itself where that is 0 or NaN
        m = beta2 * m + (1 - beta2) * g

    An infinite gradient moves p by lr as any other does, and stays in m.
    The state is named `exp_avg` (m), as for Adam; `step` counts the steps.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element. The paper takes a
            third to a tenth of AdamW's.
        betas: weight of the momentum in the step, and decay of the momentum, each in [0, 1).
        weight_decay: decoupled, at least 0; the paper takes three to ten times AdamW's.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Chen et al. (2023), "Symbolic discovery of optimization algorithms", algorithm 2;
    quantized states after 8-bit optimizers, section 2.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = Lion(layer.parameters(), state_quantizers="4bit")
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["exp_avg"]
    QuantizedTensor('B64xbf16/mu-law10:linear0@4s+qsr', shape=(64, 128), 4352 bytes)
    """

    states: ClassVar[Mapping[str, State]] = {"exp_avg": State(signed=True)}
    native_rule: ClassVar[str | None] = "lion"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "weight_decay")
        check_betas(group)

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        lr, (beta1, beta2) = group["lr"], map(float, group["betas"])
        return {
            "decay": Decoupled(lr, float(group["weight_decay"])),
            "beta1": beta1,
            "beta2": beta2,
            "step_size": StepScalar(lr),
            "sign": ascent(group),
            "rest1": 1 - beta1,
            "rest2": 1 - beta2,
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        s = scalars
        m = states["exp_avg"]
        grad = directed(grad, s)
        param.mul_(s["decay"])
        c = m * s["beta1"] + grad * s["rest1"]
        # torch.sign makes NaN 0.
        param.sub_(torch.sign(c).where(c.abs() > 0, c) * s["step_size"])
        m.mul_(s["beta2"]).add_(grad * s["rest2"])


class Lion8bit(EightBit, Lion):
    """`Lion` with an 8-bit momentum: ``B256/DE-sym@8s``, rounded to the nearest as in bitsandbytes.

    Where gradients vary little, the momentum stops to follow them: a step changes it by less than
    half the distance to the next code. Then use `Lion` with ``"B256/DE-sym@8s+sr"``. See
    `FixedWidth`.
    """


class Lion4bit(FourBit, Lion):
    """`Lion` with a 4-bit momentum: the preset ``4bit``. See `FixedWidth`."""
