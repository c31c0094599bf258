"""Rounding to bfloat16: stochastically, or to the nearest with a remainder of 8 or 16 bits.

Rounding to nearest loses every update smaller than half a unit in the last place of a bfloat16
parameter. Stochastic rounding keeps small updates in expectation; a remainder keeps 8 or 16 more
bits.

A float32 value is a sign and 31 bits of magnitude, and magnitudes are ordered like the integers
that their bits form. A bfloat16 value holds the upper 15 of these bits. So the bits of a more
precise value are those of the parameter plus a signed remainder, also where the two have different
exponents, and for subnormal numbers.

With 16 bits nothing is lost: this is how TransformerEngine stores master weights
(``FusedAdam(store_param_remainders=True)``). With 8 bits a value has 16 significant bits in place
of 8 (24 bits in all: sign, exponent and 15 bits of fraction). FlashOptim and HeavyBall also store 8
or 16 bits of the difference, as a fraction of half a unit in the last place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.algebra.philox import RoundingKey, draws

SPLITS = {"bf16+8": torch.int8, "bf16+16": torch.int16}
"""The dtype of the remainder by the name of the format."""

_SIGN, _MAGNITUDE = -0x80000000, 0x7FFFFFFF
_INFINITY, _NAN = 0x7F800000, 0x7FC00000


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


def split(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The bfloat16 numbers nearest to float32 `values`, and their remainders in int8 or int16.

    With int8 `values` are first rounded to 24 bits, ties to even. A value in the middle between two
    bfloat16 numbers goes to the one of larger magnitude: with ties to even, remainders could have
    one value more than 8 or 16 bits can hold. From the middle between the largest finite bfloat16
    number and 2**128 on, the bfloat16 number is infinite, as after any rounding, and the remainder
    leads back to the finite value. Infinities and NaN have remainder 0.

    >>> split(torch.tensor([1.0, 1 + 2**-8, 1 - 2**-12]), torch.int8)
    (tensor([1.0000, 1.0078, 1.0000], dtype=torch.bfloat16),
     tensor([   0, -128,  -16], dtype=torch.int8))
    """
    values = values.contiguous()
    bits = values.view(torch.int32)
    magnitude = (bits & _MAGNITUDE).where(~values.isnan(), _NAN)
    sign = (bits & _SIGN).where(~values.isnan(), 0)
    dropped = _dropped(dtype)
    if dropped:
        even = (magnitude >> dropped) & 1
        magnitude = (magnitude + ((1 << (dropped - 1)) - 1) + even) >> dropped
    width = 16 - dropped
    upper = (magnitude + (1 << (width - 1))) >> width
    remainder = (magnitude - (upper << width)).to(dtype)
    # The upper halves; a conversion to bfloat16 would leave open which NaN it returns.
    halves = ((sign | (upper << 16)) >> 16).to(torch.int16)
    return halves.view(torch.bfloat16), remainder


def join(param: Tensor, remainder: Tensor) -> Tensor:
    """The float32 values split into `param` (bfloat16) and `remainder` (int8 or int16) by `split`.

    A remainder may belong to an earlier value of the parameter, for example to one that was set to
    0 since. It then changes the new value by half a unit in the last place at most. No zero changes
    its sign, a NaN stays one, and nothing becomes one.

    >>> join(torch.tensor([1.0, 1.0078125]).bfloat16(), torch.tensor([-16, -128], dtype=torch.int8))
    tensor([0.9998, 1.0039])
    """
    bits = param.float().contiguous().view(torch.int32)
    upper = bits & _MAGNITUDE
    lower = remainder.contiguous().to(torch.int32) << _dropped(remainder.dtype)
    lower = lower.where(upper < _INFINITY, lower.clamp(max=0))
    lower = lower.where(upper > 0, lower.clamp(min=0))
    return ((bits & _SIGN) | (upper + lower)).view(torch.float32)


def _dropped(dtype: torch.dtype) -> int:
    """Number of the 16 lower bits of a float32 number dropped in a remainder."""
    return 16 - 8 * dtype.itemsize
