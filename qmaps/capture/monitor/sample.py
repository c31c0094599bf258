"""Samples of tensors, and of quantized tensors without decoding the rest."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import torch
from torch import Tensor

from qmaps.algebra.quantized import QuantizedTensor
from qmaps.distributed.shards import local
from qmaps.engines.step import codes_of
from qmaps.normalize.base import Scales
from qmaps.normalize.block import BlockWise
from qmaps.normalize.eight_bit import EightBit
from qmaps.normalize.logblock import LogBlock

RUN = 2048
"""Consecutive elements that a sample takes together: whole blocks of the usual sizes."""
BYTE = 8
"""Bits of a byte. This many codes of any width fill whole bytes."""


@functools.lru_cache(maxsize=1024)
def chosen(numel: int, most: int) -> Tensor:
    """Choose elements of a flattened tensor: runs of 2048, spread evenly over it.

    Args:
        numel: number of elements of the tensor.
        most: number of elements of the sample, at least 8; it is rounded down to whole runs.

    Returns:
        Ascending indices, int64, not to be changed; of all elements if there are no more than
        `most`.

    >>> chosen(100, 4096).numel(), chosen(10**6, 4096)[[0, 2047, 2048, -1]].tolist()
    (100, [249856, 251903, 749568, 751615])
    """
    if numel <= most:
        return torch.arange(numel)
    length = min(RUN, most) // BYTE * BYTE
    wanted, runs = most // length, numel // length
    starts = (2 * torch.arange(wanted) + 1) * runs // (2 * wanted) * length
    return (starts[:, None] + torch.arange(length)).reshape(-1)


def values(x: Tensor, index: Tensor) -> Tensor:
    """A copy of some elements of a flattened tensor in float32, on its device.

    Args:
        x: a parameter, a gradient or a state, which may be sharded, or kept as codes.
        index: indices of the elements, on the device of `x`.
    """
    codes = codes_of(x)
    if codes is not None:
        return quantized(codes, index).dequantize()
    return torch.take(local(x).detach(), index).float()


def quantized(t: QuantizedTensor, index: Tensor) -> QuantizedTensor:
    """Some elements of a quantized tensor, as a quantized tensor with a scale for each element.

    It decodes to the same values, and shares no memory with `t`.

    Args:
        t: the quantized tensor.
        index: ascending indices of the flattened tensor, from `chosen`, on the device of `t`.

    Returns:
        1-D.
    """
    q, count = t.quantizer, index.numel()
    geometry, packed = q.normalizer.geometry(t.shape), _packed(t, index)
    if geometry is None:
        scale = q.normalizer.expand(t.scales, t.shape).expand(t.shape).reshape(-1)[index]
        return QuantizedTensor(replace(q, normalizer=BlockWise(1)), (count,), packed, (scale,))
    parts = [
        t.scales[part.array].reshape(-1)[(index // part.divisor) % part.count]
        for part in geometry.parts
    ]
    if geometry.log:
        return QuantizedTensor(replace(q, normalizer=LogBlock(1)), (count,), packed, tuple(parts))
    scales = [
        scale if part.ends is None else _wide((scale, t.scales[part.ends]), count)
        for part, scale in zip(geometry.parts, parts, strict=True)
    ]
    smallest = functools.reduce(torch.minimum, scales)
    return QuantizedTensor(replace(q, normalizer=BlockWise(1)), (count,), packed, (smallest,))


def _wide(codes_and_ends: Scales, count: int) -> Tensor:
    """Scales that are stored in 8 bits, as float32."""
    return EightBit(BlockWise(1)).expand(codes_and_ends, (count,))


def _packed(t: QuantizedTensor, index: Tensor) -> Tensor:
    """The packed codes of these elements."""
    if index.numel() == math.prod(t.shape):
        return t.packed.clone()
    bits = t.quantizer.map.bits
    within = torch.arange(bits, device=index.device)
    places = (index[::BYTE] // BYTE * bits)[:, None] + within
    return t.packed[places.reshape(-1)]
