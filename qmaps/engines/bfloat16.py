"""Stochastic rounding of float32 to bfloat16.

Rounding to nearest loses every update smaller than half a unit in the last place of a
bfloat16 parameter. Stochastic rounding keeps small updates in expectation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.algebra.philox import RoundingKey, draws


def round_stochastically(x: Tensor, key: RoundingKey) -> Tensor:
    """Float32 `x` in bfloat16, rounded stochastically without bias.

    A finite element's bits, plus its 16 random bits (`qmaps.algebra.philox.draws`), lose their
    lower 16 bits. So it becomes one of its two neighbours in bfloat16, itself if it is
    representable, and its sign stays. The probabilities are exact, because no more than 16 bits
    are lost. Above the largest finite bfloat16 (3.39e38) the upper neighbour is infinity, as in
    IEEE rounding. NaN and infinities are converted as usual. Elements are numbered in row-major
    order whatever the strides.

    >>> round_stochastically(torch.tensor([1.0, 1.0 + 2**-8, -0.0]), RoundingKey(seed=1))
    tensor([1.0000, 1.0078, -0.0000], dtype=torch.bfloat16)
    """
    noise = draws(x.numel(), key, x.device).to(torch.int32).view(x.shape)
    bits = (x.contiguous().view(torch.int32) + noise) & -0x10000
    # The remaining bits fit bfloat16, so the conversion is exact.
    return bits.view(torch.float32).where(x.isfinite(), x).to(torch.bfloat16)
