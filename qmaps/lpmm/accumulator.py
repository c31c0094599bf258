"""Sums of gradients in low precision."""

from __future__ import annotations

from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.engines.plan import zero
from qmaps.engines.threads import safe_after_fork
from qmaps.errors import BadTypeError


class Accumulator:
    """The gradient of one parameter: g = Q(g + new), from g = 0 on.

    Its memory is there from the beginning: nothing is saved by letting go of it between steps.
    Stochastic rounding takes random numbers of purpose 3 (`qmaps.algebra.philox`), with the number
    of steps taken and the number of additions since the last.

    Args:
        quantizer: of the sum.
        like: a tensor of the parameter's shape and device.
        seed: of stochastic rounding.
        number: of the parameter in its model.

    Attributes:
        total: codes and scales of the sum; they mean something where `count` is not 0.
        count: additions since it was emptied.
        step: steps taken by the parameter.
        drops: how often it was emptied while there was something in it.

    Source: LPMM, section 3.3 and algorithm 1.
    """

    def __init__(self, quantizer: Quantizer, like: Tensor, seed: int, number: int) -> None:
        with safe_after_fork():
            self.total: QuantizedTensor = zero(quantizer, tuple(like.shape), like.device)
        self.seed, self.number = seed, number
        self.count = self.step = self.drops = 0

    def add(self, grad: Tensor) -> None:
        """Add a gradient: float32, float16 or bfloat16, summed in float32."""
        if not grad.is_floating_point():
            raise BadTypeError(f"a gradient must be a floating-point tensor, got {grad.dtype}")
        value = grad.detach().to_dense().float()
        if self.count:
            value = self.total.dequantize().add_(value)
        key = RoundingKey(
            seed=self.seed,
            purpose=3,
            step=self.step,
            micro_batch=self.count % 2**16,
            tensor=self.number,
        )
        self.total.quantizer.quantize_unchecked(value, out=self.total, key=key)
        self.count += 1

    def clear(self) -> None:
        """Empty it."""
        self.drops += self.count > 0
        self.count = 0
