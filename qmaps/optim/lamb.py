"""LAMB, in 32 bits or with quantized moments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from qmaps.engines.step_scalars import Corrected, RootCorrection, StepScalar
from qmaps.errors import BadValueError
from qmaps.optim.adam import averaged
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.norms import at_most, check_bound, clipped, norm, trust
from qmaps.optim.rule import ascent, check_at_least_0, check_betas, check_bool, directed


class LAMB(QuantizedOptimizer):
    r"""LAMB: AdamW with trust ratios; every state accepts any quantizer spec.

    With gradient g (negated to maximize) and step t, in float32 and in this order:

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * (g * g)
        r = m / (sqrt(v) / sqrt(1 - beta2^t) + eps) * (1 / (1 - beta1^t))
        r = r + weight_decay * p                      left out where weight_decay is 0
        p = p - lr * trust * r                        lr * trust is one number; lr where it
                                                      overflows

    Without `bias_correction` both corrections are 1. The trust ratio is that of the norms of the
    whole parameter and its update, in float64 and then rounded to float32:

        trust = norm(p) / norm(r)                     at most trust_clip, where that is given
        trust = min(max_unorm * norm(p) / norm(r), 1) instead, where max_unorm is given
        trust = 1                                     where one of the norms is 0, or where the
                                                      ratio overflows

    Norms are added up in an order that depends on the parameter's size alone
    (`qmaps.optim.norms.square_sum`). They are those of the tensor that the optimizer is given: of a
    parameter in bfloat16 its rounded values count, and of a shard its own elements.

    The update uses the new moments before they are encoded. States are named as for Adam:
    `exp_avg` for m, `exp_avg_sq` for v, and `step`.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element.
        betas: decay of the two moments, each in [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: added to r, so decoupled from the moments; at least 0.
        bias_correction: correct the moments for their bias towards their start at 0.
        trust_clip: upper bound of the trust ratio, above 0; None for no bound.
        max_unorm: shorten updates whose norm is above `max_unorm` times the parameter's norm, and
            never lengthen one, as bitsandbytes' LAMB does with 1; 0 and None set no bound. Not
            together with `trust_clip`.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: You et al. (2020), "Large batch optimization for deep learning: training BERT in 76
    minutes", algorithm 2; defaults of NVIDIA's FusedLAMB, which clips the gradient's norm besides
    (`torch.nn.utils.clip_grad_norm_`); quantized states after 8-bit optimizers, section 2.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = LAMB(layer.parameters(), lr=1e-2, state_quantizers="4bit")
    >>> before = layer.weight.detach().clone()
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> round(float((layer.weight.detach() - before).norm() / before.norm()), 4)
    0.01
    >>> optimizer.state[layer.weight]["exp_avg"]
    QuantizedTensor('B64xbf16/mu-law10:linear0@5s+qsr', shape=(64, 128), 5376 bytes)
    """

    states: ClassVar[Mapping[str, State]] = {"exp_avg": State(signed=True), "exp_avg_sq": State()}
    native_rule: ClassVar[str | None] = "lamb"
    takes_norms: ClassVar[bool] = True
    torch_options: ClassVar[Mapping[str, object]] = {"amsgrad": False}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        bias_correction: bool = True,
        trust_clip: float | None = None,
        max_unorm: float | None = None,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "eps", "weight_decay")
        check_betas(group)
        check_bool(group, "bias_correction")
        check_bound(group, "trust_clip")
        check_bound(group, "max_unorm", or_0=True)
        if group["trust_clip"] is not None and group["max_unorm"]:
            raise BadValueError(
                f"trust_clip={group['trust_clip']} and max_unorm={group['max_unorm']} exclude each "
                "other; set only one of them"
            )

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        """Step scalars of a group, in float64; 0 for a bound that is not there."""
        beta1, beta2 = map(float, group["betas"])
        corrects = group["bias_correction"]
        return {
            "weight_decay": float(group["weight_decay"]),
            "beta1": beta1,
            "beta2": beta2,
            "step_size": StepScalar(group["lr"]),
            "correction": Corrected(1.0, beta1) if corrects else 1.0,
            "root_correction": RootCorrection(0.0, beta2) if corrects else 1.0,
            "eps": float(group["eps"]),
            "sign": ascent(group),
            "rest1": 1 - beta1,
            "rest2": 1 - beta2,
            "trust_clip": float(group["trust_clip"] or 0),
            "max_unorm": float(group["max_unorm"] or 0),
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        s = scalars
        m, denominator = averaged(directed(grad, s), states, s)
        r = (m / denominator).mul_(s["correction"])
        if s["weight_decay"] != 0:
            r = r + param * s["weight_decay"]
        step_size = _ratio(norm(param), norm(r), s) * s["step_size"]
        param.sub_(r * torch.where(step_size.isinf(), s["step_size"], step_size))


def _ratio(param_norm: Tensor, update_norm: Tensor, s: Values) -> Tensor:
    if s["max_unorm"] != 0:
        return clipped(update_norm, param_norm, s["max_unorm"])
    ratio = param_norm / update_norm
    if s["trust_clip"] != 0:
        ratio = at_most(ratio, s["trust_clip"])
    return trust(ratio, param_norm, update_norm)


class LAMB8bit(EightBit, LAMB):
    """`LAMB` with 8-bit moments: the preset ``8bit``. See `FixedWidth`."""


class LAMB4bit(FourBit, LAMB):
    """`LAMB` with 4-bit moments: the preset ``4bit``. See `FixedWidth`."""
