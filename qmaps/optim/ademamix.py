"""AdEMAMix, in 32 bits or with quantized moments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from qmaps.engines.step_scalars import (
    Corrected,
    Decoupled,
    Lengthened,
    LengthenedRest,
    RootCorrection,
    StepScalar,
    Warmed,
)
from qmaps.float32 import sqrt
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.rule import ascent, bounded_, check_at_least_0, check_betas, check_int, directed


class AdEMAMix(QuantizedOptimizer):
    r"""AdEMAMix: AdamW with a second, slower first moment; every state accepts any quantizer spec.

    With gradient g (negated to maximize) and step t, in float32 and in this order:

        p = p * (1 - lr * weight_decay)
        m = beta1 * m + (1 - beta1) * g
        n = beta3_t * n + (1 - beta3_t) * g
        v = beta2 * v + (1 - beta2) * (g * g)
        u = 1 / (1 - beta1^t) * m + alpha_t * n
        p = p - lr * (u / (sqrt(v) / sqrt(1 - beta2^t) + eps))

    The slow moment n is not corrected for its bias. Without schedules alpha_t is alpha and beta3_t
    is beta3. A large alpha or beta3 makes early steps unstable, so long runs raise both slowly:

        alpha_t = alpha * min(t / t_alpha, 1)
        beta3_t = exp(1 / ((1 - t / t_beta3) / log(beta1) + t / t_beta3 / log(beta3)))

    the latter up to step t_beta3, and where beta3 is larger than beta1: the time in which weights
    halve grows linearly (see `qmaps.engines.step_scalars.Lengthened`).

    The update uses the new moments before they are encoded. The states are `exp_avg` (m),
    `exp_avg_slow` (n) and `exp_avg_sq` (v); `step` counts the steps.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element.
        betas: decay of m, of v and of n, each in [0, 1).
        alpha: weight of the slow moment, at least 0; the paper takes 5 to 8.
        t_alpha: steps until alpha is reached, at least 1; None for no schedule. The paper takes
            the number of all steps.
        t_beta3: steps until beta3 is reached, at least 1; None for no schedule.
        eps: added to the denominator, at least 0.
        weight_decay: decoupled, at least 0.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Pagliardini, Ablin and Grangier (2024), "The AdEMAMix optimizer: better, faster,
    older", algorithm 1 and section 3; names and defaults of bitsandbytes; quantized states after
    8-bit optimizers, section 2.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = AdEMAMix(layer.parameters(), t_alpha=1000, state_quantizers="4bit")
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["exp_avg_slow"]
    QuantizedTensor('B64xbf16/mu-law10:linear0@4s+qsr', shape=(64, 128), 4352 bytes)
    """

    states: ClassVar[Mapping[str, State]] = {
        "exp_avg": State(signed=True),
        "exp_avg_slow": State(signed=True),
        "exp_avg_sq": State(),
    }
    native_rule: ClassVar[str | None] = "ademamix"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        alpha: float = 5.0,
        t_alpha: int | None = None,
        t_beta3: int | None = None,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "alpha", "eps", "weight_decay")
        check_betas(group, "three: of m, of v and of n", 3)
        for name in ("t_alpha", "t_beta3"):
            check_int(name, group[name], 1, or_none=True)

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        lr, alpha = group["lr"], float(group["alpha"])
        beta1, beta2, beta3 = map(float, group["betas"])
        t_alpha, t_beta3 = group["t_alpha"], group["t_beta3"]
        grows = t_beta3 is not None and beta3 > beta1
        return {
            "decay": Decoupled(lr, float(group["weight_decay"])),
            "beta1": beta1,
            "beta2": beta2,
            "beta3": Lengthened(beta3, beta1, t_beta3) if grows else beta3,
            "step_size": StepScalar(lr),
            "correction": Corrected(1.0, beta1),
            "root_correction": RootCorrection(0.0, beta2),
            "alpha": alpha if t_alpha is None else Warmed(alpha, t_alpha),
            "eps": float(group["eps"]),
            "sign": ascent(group),
            "rest1": 1 - beta1,
            "rest2": 1 - beta2,
            "rest3": LengthenedRest(beta3, beta1, t_beta3) if grows else 1 - beta3,
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        s = scalars
        m, n, v = (states[name] for name in self.state_names)
        grad = directed(grad, s)
        param.mul_(s["decay"])
        m.mul_(s["beta1"]).add_(grad * s["rest1"])
        n.mul_(s["beta3"]).add_(grad * s["rest3"])
        bounded_(v.mul_(s["beta2"]).add_((grad * grad) * s["rest2"]))
        mixed = (m * s["correction"]).add_(n * s["alpha"])
        # A tensor divisor: CUDA turns division by a Python number into a product.
        denominator = sqrt(v).div_(v.new_full((), s["root_correction"])).add_(s["eps"])
        param.sub_((mixed / denominator).mul_(s["step_size"]))


class AdEMAMix8bit(EightBit, AdEMAMix):
    """`AdEMAMix` in 8 bits: the preset ``8bit``. See `FixedWidth`."""


class AdEMAMix4bit(FourBit, AdEMAMix):
    """`AdEMAMix` with 4-bit moments: the preset ``4bit``. See `FixedWidth`.

    Rounded to the nearest of 16 values, a moment as slow as n would stand still, since a gradient
    moves it by 1e-4 of itself. It moves under thresholds that are spread over steps (``+qsr``).
    """
