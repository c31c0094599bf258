"""The plain PyTorch engine; it defines every answer, for CPU and CUDA tensors.

Faster engines must return the same bits. A code is the number of a map's thresholds below the
value. For most maps that is the index of the nearest codebook value in real arithmetic, a tie going
to the lower code. Values outside the codebook take its end codes.
Codebooks fitted to data may hold equal values; of these the lowest code is taken, in rounding to
nearest as in stochastic rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qmaps.algebra import packing
from qmaps.algebra.philox import RoundingKey, uniform
from qmaps.maps.base import Map, cached, limits, table

if TYPE_CHECKING:
    from qmaps.normalize.base import Normalizer, Scales


@cached(512)
def _tables(map_: Map, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Codebook, thresholds, and the lowest code of each value's equals, on `device`."""
    codebook = table(map_)
    lowest = torch.searchsorted(codebook, codebook, out_int32=True)
    return codebook.to(device), limits(map_).to(device), lowest.to(device)


def encode(n: Tensor, map_: Map) -> Tensor:
    """The int32 code of each normalized float32 value; NaN takes the last code."""
    _, between, _ = _tables(map_, n.device)
    return torch.bucketize(n.contiguous(), between, out_int32=True)


def encode_stochastic(
    n: Tensor,
    map_: Map,
    key: RoundingKey,
    neighbours: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None,
) -> Tensor:
    """One of the two codes around each normalized float32 value, at random without bias.

    With `low` the largest codebook value not above n, `high` the next one, and r from `uniform`
    (element i in row-major order takes number i), the upper code is taken where
    ``r * (high - low) < n - low``, in float32 operations rounded one by one. So the mean is the
    value to within 2**-17 + 2**-22 of the gap, a value of the codebook keeps its code, values
    outside take the end codes, and NaN takes the last code. Of equal values the lowest code is
    taken. With a `Map.bend`, and b = bend * (n - low), the upper code is taken where
    ``r * ((high - low) + b) < (n - low) + b``. Where the key is spread and the value negative,
    1 - r takes the place of r, so that a mirrored tensor has mirrored codes.

    `neighbours` computes from the lower and the upper codes the value, `low` and `high`, for
    normalizers whose decoding is not a product.
    """
    codebook, _, lowest = _tables(map_, n.device)
    n = n.contiguous()
    last = codebook.numel() - 1
    lower = (torch.bucketize(n, codebook, right=True, out_int32=True) - 1).clamp(0, last)
    upper = (lower + 1).clamp(max=last)
    value, low, high = (
        (n, codebook[lower], codebook[upper]) if neighbours is None else neighbours(lower, upper)
    )
    noise = uniform(n.numel(), key, n.device).view(n.shape)
    if key.spread:
        noise = torch.where(value < 0, 1 - noise, noise)
    over, gap = value - low, high - low
    if map_.bend:
        bent = over * torch.tensor(map_.bend, dtype=torch.float32, device=n.device)
        over, gap = over + bent, gap + bent
    return lowest[torch.where(noise * gap < over, upper, lower)]


def decode(codes: Tensor, map_: Map) -> Tensor:
    """The normalized float32 value of each code; codes beyond the codebook take its last value."""
    codebook = _tables(map_, codes.device)[0]
    return codebook[codes.clamp(max=codebook.numel() - 1)]


def quantize(
    x: Tensor,
    normalizer: Normalizer,
    map_: Map,
    key: RoundingKey | None = None,
    scales: Scales | None = None,
) -> tuple[Tensor, Scales]:
    """Quantize float32 `x` to int32 codes of its shape, and scales.

    A non-finite element makes its scale non-finite, so all elements of the scale decode to
    non-finite values. Checking for such elements is left to the caller. Without `scales` those of
    `x` are computed; without a `key` values are rounded to nearest.
    """
    scales = normalizer.scales(x) if scales is None else scales
    n = normalizer.normalize(x, scales)
    if key is None:
        return encode(n, map_), scales
    if normalizer.linear or map_.position_rounding:
        return encode_stochastic(n, map_, key), scales

    def neighbours(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        low = dequantize(lower, scales, normalizer, map_)
        return x, low, dequantize(upper, scales, normalizer, map_)

    return encode_stochastic(n, map_, key, neighbours), scales


def dequantize(codes: Tensor, scales: Scales, normalizer: Normalizer, map_: Map) -> Tensor:
    """Decode codes of the tensor's shape to float32."""
    return normalizer.denormalize(decode(codes, map_), scales)


def quantize_packed(
    x: Tensor,
    normalizer: Normalizer,
    map_: Map,
    key: RoundingKey | None = None,
    out: tuple[Tensor, Scales] | None = None,
) -> tuple[Tensor, Scales]:
    """As `quantize`, with packed codes; `out` are codes and scales to be written into."""
    codes, scales = quantize(x, normalizer, map_, key)
    packed = packing.pack(codes, map_.bits)
    if out is None:
        return packed, scales
    for target, part in zip((out[0], *out[1]), (packed, *scales), strict=True):
        target.copy_(part)
    return out


def dequantize_packed(
    packed: Tensor, scales: Scales, normalizer: Normalizer, map_: Map, shape: tuple[int, ...]
) -> Tensor:
    """Decode packed codes to float32 of `shape`."""
    codes = packing.unpack(packed, map_.bits, torch.Size(shape).numel()).view(shape)
    return dequantize(codes, scales, normalizer, map_)
