"""Stochastic gradient descent with momentum on a model in low precision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from qmaps.lpmm.optimizer import LowPrecisionOptimizer
from qmaps.optim.sgd import SGD

MOMENTUM = "B2048/DE-sym@8s+sr"


class LPMMSGD(LowPrecisionOptimizer, SGD):
    """LPMM-SGDM: `qmaps.optim.SGD` for models converted by `qmaps.lpmm.convert`.

    With the accumulated gradient g, a sum over micro-batches, in float32:

        m = momentum * m + g
        p = p - lr * m

    and both are encoded, stochastically where their quantizers say so. The update takes m before
    it is encoded, where algorithm 1 takes it after: one rounding less, of the same mean.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element.
        momentum: decay of the buffer, at least 0; with 0 there is no buffer.
        dampening, weight_decay, nesterov: as for `qmaps.optim.SGD`.
        accumulation_steps: micro-batches of a step; see `LowPrecisionOptimizer`.
        state_quantizers: quantizer of the momentum. None, the default, means
            ``B2048/DE-sym@8s+sr``; "32bit" keeps it in 32 bits.
        min_quantized_size: 0 without a choice file, for all momentum in low precision.
        nonfinite: "raise" by default, since codes that have become NaN cannot recover; "skip" and
            "propagate" work as for every optimizer.
        **shared: options of all optimizers; see `QuantizedOptimizer`. Converted parameters ignore
            `stochastic_rounding` and `master_weights`.

    Source: LPMM, algorithm 1 and section 5.1.

    >>> import torch
    >>> from qmaps import lpmm
    >>> model = lpmm.convert(torch.nn.Linear(64, 64))
    >>> optimizer = LPMMSGD(model.parameters(), lr=0.1)
    >>> model(torch.ones(2, 64)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[model.weight]["momentum_buffer"]
    QuantizedTensor('B2048/DE-sym@8s+sr', shape=(64, 64), 4104 bytes)
    """

    _quantizers: ClassVar[Mapping[str, str] | None] = {"momentum_buffer": MOMENTUM}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        *args: Any,
        **options: Any,
    ) -> None:
        super().__init__(params, lr, momentum, *args, **options)
