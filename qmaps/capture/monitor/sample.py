"""Samples of tensors, and of quantized tensors without decoding the rest."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.sharding.shards import local
from qmaps.engines.step import codes_of
from qmaps.maps.base import cached
from qmaps.normalize.base import Normalizer, Scales
from qmaps.normalize.block import BlockWise
from qmaps.normalize.eight_bit import EightBit
from qmaps.normalize.logblock import LogBlock
from qmaps.normalize.range_expansion import RangeExpansion
from qmaps.normalize.scale_kind import ScaleKind

RUN = 256
"""Consecutive elements that a sample takes together."""
BYTE = 8
"""Bits of a byte. This many codes of any width fill whole bytes."""


class Places:
    """Sampled elements of a flattened tensor: at most `size` in runs of 256, spread evenly.

    Their number is a multiple of 8, so their codes fill whole bytes. `index` has their ascending
    indices, int64: all but the last 7 at most if there are no more than `size`. Derived indices are
    cached, and must not be changed.
    """

    def __init__(self, numel: int, size: int, device: torch.device | str = "cpu") -> None:
        if numel <= size:
            index = torch.arange(numel // BYTE * BYTE)
        else:
            length = min(RUN, size) // BYTE * BYTE
            wanted, runs = size // length, numel // length
            starts = (2 * torch.arange(wanted) + 1) * runs // (2 * wanted) * length
            index = (starts[:, None] + torch.arange(length)).reshape(-1)
        self.index = index.to(device)
        self._cached: dict[tuple[int, ...], Tensor] = {}

    def __len__(self) -> int:
        return self.index.numel()

    def bytes_of(self, bits: int) -> Tensor:
        """Indices of the bytes with the codes of these elements."""
        if (bits,) not in self._cached:
            offsets = torch.arange(bits, device=self.index.device)
            index = (self.index[::BYTE] // BYTE * bits)[:, None] + offsets
            self._cached[bits,] = index.reshape(-1)
        return self._cached[bits,]

    def scales_of(self, divisor: int, count: int) -> Tensor:
        """Indices of the scales of these elements; see `qmaps.normalize.geometry`."""
        if (divisor, count) not in self._cached:
            self._cached[divisor, count] = (self.index // divisor) % count
        return self._cached[divisor, count]


places = cached(256)(Places)
"""The `Places` of these arguments, made once."""


def values(x: Tensor | QuantizedTensor, at: Places) -> Tensor:
    """Return a copy of some elements of a tensor, state or gradient in float32."""
    if (codes := codes_of(x)) is not None:
        x = codes
    if isinstance(x, QuantizedTensor):
        return joined([(x, at)]).dequantize()
    return torch.take(local(x).detach(), at.index).float()


def kind(t: QuantizedTensor) -> Hashable:
    """Return the shared properties of quantized tensors for `joined`."""
    q = t.quantizer
    return q.map, q.rounding, _single(q.normalizer), t.device


def _single(normalizer: Normalizer) -> Normalizer:
    """The same with a scale for each element."""
    if isinstance(normalizer, (LogBlock, RangeExpansion)):
        return replace(normalizer, size=1)
    return BlockWise(1)


def joined(tensors: Sequence[tuple[QuantizedTensor, Places]]) -> QuantizedTensor:
    """Return some elements of several quantized tensors of one `kind`, one tensor after the other.

    The result is 1-D with a scale for each element. It decodes to the same values, and shares no
    memory with the tensors.
    """
    q = tensors[0][0].quantizer
    packed = torch.cat([t.packed[at.bytes_of(q.map.bits)] for t, at in tensors])
    parts = zip(*(_scales(t, at) for t, at in tensors), strict=True)
    scales = tuple(torch.cat(part) for part in parts)
    return QuantizedTensor(
        replace(q, normalizer=_single(q.normalizer)),
        (sum(len(at) for _, at in tensors),),
        packed,
        scales,
    )


def split(t: QuantizedTensor, sizes: Sequence[int]) -> list[QuantizedTensor]:
    """Undo `joined`, for these numbers of elements; the results share memory with `t`."""
    bits = t.quantizer.map.bits
    packed = torch.split(t.packed, [size * bits // BYTE for size in sizes])
    scales = zip(*(torch.split(part, list(sizes)) for part in t.scales), strict=True)
    return [
        QuantizedTensor(t.quantizer, (size,), codes, parts)
        for size, codes, parts in zip(sizes, packed, scales, strict=True)
    ]


def _scales(t: QuantizedTensor, at: Places) -> Scales:
    """The scale of each element; of ``logB`` the lower and the upper end of its range."""
    normalizer = t.quantizer.normalizer
    if isinstance(normalizer, RangeExpansion):
        size = min(normalizer.size, max(1, math.prod(t.shape)))
        return tuple(part[at.index // size] for part in t.scales)
    geometry = normalizer.geometry(t.shape)
    # A normalizer of another package, or a format of scales that is not a log2 grid.
    if geometry is None or any(part.stored is not ScaleKind.FLOAT32 for part in geometry.parts):
        expanded = normalizer.expand(t.scales, t.shape).expand(t.shape)
        return (torch.take(expanded, at.index),)
    parts = [
        t.scales[part.array].reshape(-1)[at.scales_of(part.divisor, part.count)]
        for part in geometry.parts
    ]
    if geometry.log:
        return tuple(parts)
    of_elements = EightBit(BlockWise(1))  # 8-bit codes of scales, to float32
    wide = [
        scale if at_ends is None else of_elements.expand((scale, t.scales[at_ends]), (len(at),))
        for scale, at_ends in zip(parts, (part.ends for part in geometry.parts), strict=True)
    ]
    return (functools.reduce(torch.minimum, wide),)
