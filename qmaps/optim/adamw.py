"""AdamW, in 32 bits or with quantized moments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from qmaps.engines.step_scalars import Decoupled, StepScalar
from qmaps.optim.adam import Adam, descend, moment_scalars
from qmaps.optim.base import EightBit, FourBit, Shared, States, Values
from qmaps.optim.rule import directed


class AdamW(Adam):
    r"""AdamW: Adam with decoupled weight decay; every state accepts any quantizer spec.

    With gradient g (negated to maximize) and step t, in float32 and in this order:

        p = p * (1 - lr * weight_decay)
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
        weight_decay: decoupled: the parameter is multiplied by ``1 - lr * weight_decay``;
            at least 0.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.
            `amsgrad` must be False.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Loshchilov and Hutter (2019); quantized states after 8-bit optimizers, section 2,
    and 4-bit optimizers, algorithm 1.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = AdamW(layer.parameters(), state_quantizers={"exp_avg": "B128/DE@4s",
    ...                                                         "exp_avg_sq": "rank1/linear@4u"})
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["exp_avg"]
    QuantizedTensor('B128/DE@4s', shape=(64, 128), 4352 bytes)
    """

    native_rule: ClassVar[str | None] = "adamw"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **shared: Unpack[Shared],
    ) -> None:
        super(Adam, self).__init__(params, locals(), **shared)

    def _stands_for(self, specs: Mapping[str, str | None]) -> dict[str, object]:
        return {**super()._stands_for(specs), "decoupled_weight_decay": True}

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        decay = Decoupled(group["lr"], float(group["weight_decay"]))
        return {"decay": decay, **moment_scalars(group)}

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        param.mul_(scalars["decay"])
        descend(param, directed(grad, scalars), states, scalars)


class AdamW8bit(EightBit, AdamW):
    """`AdamW` with 8-bit moments: the preset ``8bit``. See `FixedWidth`.

    No second moment decodes to zero. The paper's own pair is
    ``AdamW(..., state_quantizers="paper-8bit")``.
    """


class AdamW4bit(FourBit, AdamW):
    """`AdamW` with 4-bit moments: the preset ``4bit``. See `FixedWidth`.

    Moments are rounded by thresholds that are spread over steps (``+qsr``): rounded to the nearest
    of 16 values, a moment does not change unless a step moves it by half the distance to the next
    one. No second moment decodes to zero. The paper's own pair is
    ``AdamW(..., state_quantizers="paper-4bit")``.
    """
