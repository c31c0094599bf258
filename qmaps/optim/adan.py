"""Adan, in 32 bits or with quantized states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from qmaps.engines.step_scalars import Corrected, Decoupled, First, RootCorrection, StepScalar
from qmaps.float32 import sqrt
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.rule import ascent, bounded_, check_at_least_0, check_betas, check_bool, directed


class Adan(QuantizedOptimizer):
    r"""Adan: Adam with a moment of the gradient's changes; every state accepts any quantizer spec.

    With gradient g (negated to maximize), step t, and d the change of the gradient since the last
    step (0 in the first one), in float32 and in this order:

        m = beta1 * m + (1 - beta1) * g
        n = beta2 * n + (1 - beta2) * d
        v = beta3 * v + (1 - beta3) * (g + beta2 * d)^2
        u = (m / (1 - beta1^t) + beta2 / (1 - beta2^t) * n) / (sqrt(v) / sqrt(1 - beta3^t) + eps)
        p = (p - lr * u) / (1 + lr * weight_decay)            p * (1 - lr * weight_decay) - lr * u
                                                              with no_prox

    Betas are decays, as in the authors' code; the paper writes 1 minus them. The update uses the
    new moments before they are encoded.

    The states are `exp_avg` (m), `exp_avg_diff` (n), `exp_avg_sq` (v), and `neg_pre_grad`, the
    gradient of the last step, negated; `step` counts the steps. They take 16 bytes for each
    parameter in 32 bits, and 4.1 in 8 bits.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element.
        betas: decay of m, of n and of v, each in [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: decoupled, at least 0.
        no_prox: whether weights decay as in AdamW instead of by the proximal step.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Xie et al. (2022), "Adan: adaptive Nesterov momentum algorithm for faster optimizing
    deep models", algorithm 1; arguments, defaults and states of the authors' code.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = Adan(layer.parameters(), state_quantizers="8bit")
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["exp_avg_diff"]
    QuantizedTensor('B256/DE-sym@8s', shape=(64, 128), 8320 bytes)
    """

    states: ClassVar[Mapping[str, State]] = {
        "exp_avg": State(signed=True),
        "exp_avg_diff": State(signed=True),
        "exp_avg_sq": State(),
        "neg_pre_grad": State(signed=True),
    }
    native_rule: ClassVar[str | None] = "adan"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0,
        no_prox: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "eps", "weight_decay")
        check_betas(group, "three: of m, of n and of v", 3)
        check_bool(group, "no_prox")

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        lr, decay = group["lr"], float(group["weight_decay"])
        beta1, beta2, beta3 = map(float, group["betas"])
        return {
            "decay": Decoupled(lr, decay if group["no_prox"] else 0.0),
            "growth": Decoupled(lr, 0.0 if group["no_prox"] else -decay),
            "beta1": beta1,
            "beta2": beta2,
            "beta3": beta3,
            "step_size": StepScalar(lr),
            "correction": Corrected(1.0, beta1),
            "difference_correction": Corrected(beta2, beta2),
            "root_correction": RootCorrection(0.0, beta3),
            "changed": First(0.0, 1.0),
            "eps": float(group["eps"]),
            "sign": ascent(group),
            "rest1": 1 - beta1,
            "rest2": 1 - beta2,
            "rest3": 1 - beta3,
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        s = scalars
        m, n, v, before = (states[name] for name in self.state_names)
        grad = directed(grad, s)
        change = (grad + before) * s["changed"]
        before.copy_(grad).neg_()
        m.mul_(s["beta1"]).add_(grad * s["rest1"])
        n.mul_(s["beta2"]).add_(change * s["rest2"])
        bounded_(v.mul_(s["beta3"]).add_((grad + change * s["beta2"]).square() * s["rest3"]))
        mixed = (m * s["correction"]).add_(n * s["difference_correction"])
        # A tensor divisor: CUDA turns division by a Python number into a product.
        denominator = sqrt(v).div_(v.new_full((), s["root_correction"])).add_(s["eps"])
        param.mul_(s["decay"]).sub_((mixed / denominator).mul_(s["step_size"]))
        param.div_(param.new_full((), s["growth"]))


class Adan8bit(EightBit, Adan):
    """`Adan` in 8 bits: the preset ``8bit``. See `FixedWidth`."""


class Adan4bit(FourBit, Adan):
    """`Adan` in 4 bits: the preset ``4bit``.

    See `FixedWidth`.
    """
