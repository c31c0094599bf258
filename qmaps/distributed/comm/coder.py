"""Encoding of tensors as messages of bytes, and decoding."""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from qmaps.algebra import packing
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer, quantizer
from qmaps.errors import BadValueError


class Coder:
    """Messages of a quantizer: scales, then codes.

    Args:
        q: a signed quantizer of 2 to 8 bits, or its spec; any normalizer, and a map that is not
            fitted. Tensors are sent flat, so ``row``, ``col`` and ``rank1`` become ``B128``.

    Raises:
        BadValueError: the quantizer is unsigned, fitted, of other widths, or has a low-rank part.
    """

    def __init__(self, q: Quantizer | str) -> None:
        self.quantizer = quantizer(q)
        map_ = self.quantizer.map
        if (low_rank := self.quantizer.low_rank) is not None:
            raise BadValueError(
                f"quantizer={self.quantizer.spec} has {low_rank.spec}; messages need a quantizer "
                "without a low-rank part"
            )
        if not map_.signed or map_.fitted or map_.counted:
            kind = "unsigned" if not map_.signed else "fitted to data"
            raise BadValueError(
                f"quantizer={self.quantizer.spec} is {kind}; messages need a signed map with a "
                "formula"
            )
        if not 2 <= map_.bits <= 8:
            raise BadValueError(
                f"quantizer={self.quantizer.spec} has {map_.bits} bits; messages must have 2 to 8"
            )

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.quantizer.spec

    @property
    def mark(self) -> int:
        """A number equal on ranks with the same quantizer."""
        return zlib.crc32(repr((self.name, self.quantizer)).encode())

    def nbytes(self, numel: int) -> int:
        """The size in bytes of a message of `numel` numbers."""
        return self.quantizer.nbytes((numel,)) if numel else 0

    def quantize(self, x: Tensor, key: RoundingKey) -> QuantizedTensor:
        """Quantize 1-D float32 `x`; NaN and infinity are not refused."""
        return self.quantizer.quantize_unchecked(x, key=key)

    def encode(self, x: Tensor, key: RoundingKey) -> Tensor:
        """Encode 1-D float32 `x` as 1-D uint8 of ``nbytes(x.numel())`` elements."""
        if not x.numel():
            return x.new_empty(0, dtype=torch.uint8)
        t = self.quantize(x, key)
        parts = [scale.reshape(-1).contiguous().view(torch.uint8) for scale in t.scales]
        return torch.cat([*parts, t.packed])

    def decode(self, message: Tensor, numel: int, out: Tensor | None = None) -> Tensor:
        """Decode a message of `encode` to 1-D float32 of `numel` elements, into `out` if given."""
        if not numel:
            return message.new_empty(0, dtype=torch.float32) if out is None else out
        q, start = self.quantizer, 0
        scales: list[Tensor] = []
        for dtype, shape in q.normalizer.layout((numel,)):
            size = dtype.itemsize * math.prod(shape)
            scales.append(message[start : start + size].clone().view(dtype).view(shape))
            start += size
        packed = message[start : start + packing.packed_bytes(numel, q.map.bits)]
        return QuantizedTensor(q, (numel,), packed, tuple(scales)).dequantize(out=out)
