"""Adam, in 32 bits or with quantized moments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from qmaps.engines.step_scalars import Corrected, Decoupled, RootCorrection, StepScalar
from qmaps.float32 import sqrt
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.rule import ascent, bounded_, check_at_least_0, check_betas, check_bool, coupled


class Adam(QuantizedOptimizer):
    r"""Adam with L2 weight decay; every state accepts any quantizer spec.

    With gradient g (negated to maximize) and step t, in float32 and in this order:

        p = p * (1 - lr * weight_decay)               if decoupled_weight_decay
        g = g + weight_decay * p                      otherwise; left out where weight_decay is 0
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * (g * g)
        p = p - lr / (1 - beta1^t) * (m / (sqrt(v) / sqrt(1 - beta2^t) + eps))

    The update uses the new moments before they are encoded. States are named as torch names
    them: `exp_avg` for m, `exp_avg_sq` for v, and `step`.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element.
        betas: decay of the two moments, each in [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: coupled: ``weight_decay * p`` is added to the gradient; at least 0.
        decoupled_weight_decay: whether parameters decay as in `AdamW`, instead of through the
            gradient.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.
            `amsgrad` must be False.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Kingma and Ba (2015); quantized states after 8-bit optimizers, section 2.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = Adam(layer.parameters(), state_quantizers="4bit")
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["exp_avg"]
    QuantizedTensor('B64xbf16/mu-law10:linear0@4s+qsr', shape=(64, 128), 4352 bytes)
    """

    states: ClassVar[Mapping[str, State]] = {"exp_avg": State(signed=True), "exp_avg_sq": State()}
    native_rule: ClassVar[str | None] = "adam"
    torch_options: ClassVar[Mapping[str, object]] = {"amsgrad": False}

    def __init__(  # type: ignore[misc]  # Shared has decoupled_weight_decay for AdamW
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        *,
        decoupled_weight_decay: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "eps", "weight_decay")
        check_betas(group)
        if "decoupled_weight_decay" in group:  # AdamW has no choice
            check_bool(group, "decoupled_weight_decay")

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        return {**decay_scalars(group), **moment_scalars(group)}

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        param.mul_(scalars["decay"])
        descend(param, coupled(param, grad, scalars), states, scalars)


def decay_scalars(group: dict[str, Any]) -> dict[str, float | StepScalar]:
    """The step scalars of weight decay, `decay` where it is decoupled and `weight_decay` if not."""
    weight_decay = float(group["weight_decay"])
    decoupled = group.get("decoupled_weight_decay", False)  # pickles of Adam from before 0.3
    return {
        "decay": Decoupled(group["lr"], weight_decay if decoupled else 0.0),
        "weight_decay": 0.0 if decoupled else weight_decay,
    }


def moment_scalars(group: dict[str, Any]) -> dict[str, float | StepScalar]:
    """The scalars of `descend`, and `sign`, from the options of a parameter group."""
    beta1, beta2 = map(float, group["betas"])
    return {
        "beta1": beta1,
        "beta2": beta2,
        "step_size": Corrected(group["lr"], beta1),
        "root_correction": RootCorrection(0.0, beta2),
        "eps": float(group["eps"]),
        "sign": ascent(group),
        "rest1": 1 - beta1,
        "rest2": 1 - beta2,
    }


def descend(param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
    """The common part of Adam and AdamW: everything after weight decay."""
    m, denominator = averaged(grad, states, scalars)
    param.sub_((m / denominator).mul_(scalars["step_size"]))


def averaged(grad: Tensor, states: States, scalars: Values) -> tuple[Tensor, Tensor]:
    """Take a gradient into both moments: ``m`` and ``sqrt(v) / root_correction + eps``."""
    s = scalars
    m, v = states["exp_avg"], states["exp_avg_sq"]
    m.mul_(s["beta1"]).add_(grad * s["rest1"])
    bounded_(v.mul_(s["beta2"]).add_((grad * grad) * s["rest2"]))
    # A tensor divisor: CUDA turns division by a Python number into a product.
    return m, sqrt(v).div_(v.new_full((), s["root_correction"])).add_(s["eps"])


class Adam8bit(EightBit, Adam):
    """`Adam` with 8-bit moments: the preset ``8bit``. See `FixedWidth`."""


class Adam4bit(FourBit, Adam):
    """`Adam` with 4-bit moments: the preset ``4bit``. See `FixedWidth`."""
