"""Error feedback: the error of one encoding is added before the next.

For a state x(t) computed by an update rule from the decoded state q(t-1), with e(0) = 0,

- ``y(t) = x(t) + e(t-1)`` is encoded, under an unsigned map max(y(t), 0);
- q(t) is the decoded value, rounded to the nearest code; the rule sees q(t) alone;
- the residual e(t) is ``y(t) - q(t)``, quantized under `qmaps.algebra.quantizer.RESIDUAL`. It is at
  most as large as the largest decoded magnitude; y(t) exceeds it if a scale saturates or there is
  none. Under an unsigned map it is at least minus half the distance of the two lowest codes. Values
  outside the codebook's range do not add up.

Were e(t) exact, the sum of q(1) to q(T) would be that of x(1) to x(T) less e(T): the error of one
quantization, however large T is. So changes smaller than half a gap add up until they
reach the next code, where rounding to nearest loses every one of them. The residual's own rounding
adds in each step at most 1/14 of the largest residual of its block in 4 bits, and 1/254 in 8.

The residual's map holds 0, so that elements without residual, such as those of an embedding's
unused rows, have none.

Source: Seide et al. (2014), "1-bit stochastic gradient descent"; Karimireddy et al. (2019), "Error
feedback fixes SignSGD" (algorithm 1). 1-bit Adam (Tang et al., 2021) compresses a momentum this
way. MicroAdam (Modoranu et al., 2024) keeps the residual in 4 bits, and 4-bit Shampoo (Li et al.,
2025) that of a Cholesky factor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor


def add_residual(x: Tensor, after: QuantizedTensor | None) -> Tensor:
    """`x` with the residual of the last step's tensor added, float32 and finite where `x` is.

    It is `x` itself where there is no residual.
    """
    if after is None or not after.quantizer.error_feedback:
        return x
    largest = torch.finfo(torch.float32).max
    y = x.float() + after.beside[-1].dequantize()
    return torch.where(x.isfinite(), y.clamp(-largest, largest), y)


def restored(t: QuantizedTensor, x: Tensor | None = None) -> Tensor:
    """Best known values of `t` before quantization: decoded (or `x`), plus the residual if any."""
    values = t.dequantize() if x is None else x
    total = add_residual(values, t)
    return total if total is values or t.quantizer.map.signed else total.clamp_(min=0)


def restored_of(state: Tensor | QuantizedTensor) -> Tensor:
    """As `values_of`, with the residual of error feedback added."""
    return restored(state) if isinstance(state, QuantizedTensor) else state
