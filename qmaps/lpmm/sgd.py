"""Stochastic gradient descent with momentum on a model in low precision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from qmaps.lpmm.optimizer import LowPrecisionOptimizer
from qmaps.optim.choice import StateQuantizers
from qmaps.optim.sgd import SGD

MOMENTUM = "B2048/DE@8s+sr"


class LPMMSGD(LowPrecisionOptimizer, SGD):
    """LPMM-SGDM: `qmaps.optim.SGD` for models that `qmaps.lpmm.convert` made.

    With the accumulated gradient g, a sum over micro-batches, in float32:

        m = momentum * m + g
        p = p - lr * m

    and both are encoded, stochastically where their quantizers say so. The update takes m before
    it is encoded, where algorithm 1 takes it after: one rounding less, of the same mean.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0.
        momentum: at least 0.
        dampening, weight_decay, nesterov: as for `qmaps.optim.SGD`.
        accumulation_steps: micro-batches of a step; see `LowPrecisionOptimizer`.
        state_quantizers: of the momentum; ``B2048/DE@8s+sr`` if None, "32bit" for none.
        min_quantized_size: 0, so that all momentum is in low precision.
        nonfinite: "raise", as codes that have become NaN have no way back; "skip" or "propagate"
            as for every optimizer.
        **shared: the other options of every optimizer; see `qmaps.optim.base.QuantizedOptimizer`.

    Source: LPMM, algorithm 1 and section 5.1.

    >>> import torch
    >>> from qmaps import lpmm
    >>> model = lpmm.convert(torch.nn.Linear(64, 64))
    >>> optimizer = LPMMSGD(model.parameters(), lr=0.1)
    >>> model(torch.ones(2, 64)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[model.weight]["momentum_buffer"]
    QuantizedTensor('B2048/DE@8s+sr', shape=(64, 64), 4104 bytes)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        accumulation_steps: int = 1,
        state_quantizers: StateQuantizers = None,
        **shared: Any,
    ) -> None:
        options: dict[str, Any] = {"min_quantized_size": 0, "nonfinite": "raise", **shared}
        super().__init__(
            params,
            lr,
            momentum,
            dampening,
            weight_decay,
            nesterov,
            accumulation_steps=accumulation_steps,
            state_quantizers=(
                {"momentum_buffer": MOMENTUM} if state_quantizers is None else state_quantizers
            ),
            **options,
        )
