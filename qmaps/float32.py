"""sqrt, log2, exp2 and sums in halves, with the same bits on every backend.

Library versions differ between processors in their last bits. Every step of log2 and exp2 is
one IEEE operation on float32 (never contracted to a fused multiply-add), in the order written.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

# 2 / ((2k + 1) ln 2): log2(m) = s * sum_k c_k s^(2k) with s = (m - 1) / (m + 1).
_LOG2 = (2.8853900817779268, 0.9617966939259756, 0.5770780163555854, 0.41219858311113244,
         0.32059889797532520)  # fmt: skip
# (ln 2)^k / k!: the series of 2^f.
_EXP2 = (1.0, 0.6931471805599453, 0.2402265069591007, 0.05550410866482158,
         0.009618129107628477, 0.0013333558146428443, 0.00015403530393381608,
         0.000015252733804059841)  # fmt: skip


def sqrt(x: Tensor) -> Tensor:
    """The IEEE square root of float32 `x`, correctly rounded.

    ``torch.sqrt`` calls vector libraries that may err in the last bit. In float64 their error
    cannot matter: the root of a 24-bit number keeps more than 4 units in the last place of
    float64 away from every midpoint of two float32.
    """
    return x.double().sqrt().to(torch.float32)


def log2(x: Tensor) -> Tensor:
    """Base-2 logarithm of float32 `x` > 0, subnormals included; error below 2 ulp of max(1, |y|).

    x = m * 2^e with m in [sqrt(1/2), sqrt(2)); s = (m - 1) / (m + 1); z = s * s;
    y = e + s * (c0 + z * (c1 + z * (c2 + z * (c3 + z * c4)))). Infinity, NaN and negative
    numbers give NaN.
    """
    mantissa, exponent = torch.frexp(torch.where(x < 0, torch.nan, x))
    small = mantissa < 0.70710678
    mantissa = torch.where(small, mantissa * 2, mantissa)
    exponent = (exponent - small.to(exponent.dtype)).to(torch.float32)
    s = (mantissa - 1) / (mantissa + 1)
    z = s * s
    series = torch.full_like(z, _LOG2[-1])
    for coefficient in reversed(_LOG2[:-1]):
        series = series * z + coefficient
    return exponent + s * series


def exp2(y: Tensor) -> Tensor:
    """2 to the float32 power `y`; exact at integers, error below 2 ulp, subnormals kept.

    k = y rounded to the nearest integer (ties to even), f = y - k; the degree-7 series of 2^f
    by Horner's rule, times 2^floor(k/2), times 2^(k - floor(k/2)). NaN gives NaN.
    """
    y = y.clamp(-250, 250)  # beyond it the result is 0 or infinite, and the series of any sign
    k = torch.round(torch.nan_to_num(y, nan=0.0))
    f = y - k
    series = torch.full_like(f, _EXP2[-1])
    for coefficient in reversed(_EXP2[:-1]):
        series = series * f + coefficient
    exponent = k.to(torch.int32)
    half = exponent >> 1
    return series * _power_of_two(half) * _power_of_two(exponent - half)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2 to the int32 `exponent` in [-126, 127], built from its bits."""
    return ((exponent + 127) << 23).view(torch.float32)


def tree(x: Tensor) -> Tensor:
    """The last dimension, filled up with zeros to a power of two, added up in halves.

    Plain sums of tensors have no other order.
    """
    count = max(x.shape[-1], 1)
    x = padded(x, 0, (1 << (count - 1).bit_length()) - x.shape[-1])
    while (half := x.shape[-1] // 2) > 0:
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def padded(x: Tensor, *amounts: int) -> Tensor:
    """`x` with zeros as of ``torch.nn.functional.pad``, which copies where it adds none, too."""
    return pad(x, amounts) if any(amounts) else x
