"""NAdam, in 32 bits or with quantized moments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from qmaps.engines.step import PRODUCT
from qmaps.engines.step_scalars import (
    NesterovGradient,
    NesterovMoment,
    StepScalar,
    nesterov_product,
)
from qmaps.optim.adam import averaged, decay_scalars, moment_scalars
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.rule import check_at_least_0, check_betas, check_bool, check_finite, coupled


def product_after(steps: int, group: Mapping[str, Any]) -> float:
    """`mu_product` after steps with the options of `group`."""
    return nesterov_product(float(group["betas"][0]), float(group["momentum_decay"]), steps)


class NAdam(QuantizedOptimizer):
    r"""NAdam: Adam with Nesterov momentum; every state accepts any quantizer spec.

    With gradient g (negated to maximize), step t, and mu_t = beta1 * (1 - 0.96^(t *
    momentum_decay) / 2), in float32 and in this order:

        p = p * (1 - lr * weight_decay)               if decoupled_weight_decay
        g = g + weight_decay * p                      otherwise; left out where weight_decay is 0
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * (g * g)
        u = lr * (1 - mu_t) / (1 - mu_1 * ... * mu_t) * g
            + lr * mu_{t+1} / (1 - mu_1 * ... * mu_{t+1}) * m
        p = p - u / (sqrt(v) / sqrt(1 - beta2^t) + eps)

    The update uses the new moments before they are encoded. States have torch's names: `exp_avg`
    for m, `exp_avg_sq` for v, and `step`. The product of the mu_t is kept in float32 as
    `mu_product`, and betas[0] and momentum_decay may change between steps.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element.
        betas: decay of the two moments, each in [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: at least 0.
        momentum_decay: how fast mu_t grows from about beta1 / 2 to beta1; finite, at least 0.
        decoupled_weight_decay: whether parameters decay as in AdamW, instead of through the
            gradient.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Dozat (2016), "Incorporating Nesterov momentum into Adam", algorithm 2 and its schedule
    of the momentum; arguments and defaults of `torch.optim.NAdam`.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = NAdam(layer.parameters(), state_quantizers="8bit")
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["exp_avg"]
    QuantizedTensor('B256/DE-sym@8s', shape=(64, 128), 8320 bytes)
    """

    states: ClassVar[Mapping[str, State]] = {"exp_avg": State(signed=True), "exp_avg_sq": State()}
    native_rule: ClassVar[str | None] = "nadam"
    _numbers: ClassVar[Mapping[str, Any]] = {PRODUCT: product_after}

    def __init__(  # type: ignore[misc]  # Shared has decoupled_weight_decay for Adam
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "eps", "weight_decay", "momentum_decay")
        check_finite("momentum_decay", group["momentum_decay"])
        check_betas(group)
        check_bool(group, "decoupled_weight_decay")

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        lr, beta1 = group["lr"], float(group["betas"][0])
        momentum_decay = float(group["momentum_decay"])
        return {
            **moment_scalars(group),
            **decay_scalars(group),
            "step_size": NesterovMoment(lr, beta1, momentum_decay),
            "gradient_step_size": NesterovGradient(lr, beta1, momentum_decay),
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        s = scalars
        param.mul_(s["decay"])
        grad = coupled(param, grad, s)
        m, denominator = averaged(grad, states, s)
        mixed = (grad * s["gradient_step_size"]).add_(m * s["step_size"])
        param.sub_(mixed.div_(denominator))


class NAdam8bit(EightBit, NAdam):
    """`NAdam` with 8-bit moments: the preset ``8bit``. See `FixedWidth`."""


class NAdam4bit(FourBit, NAdam):
    """`NAdam` with 4-bit moments: the preset ``4bit``. See `FixedWidth`."""
