"""States whose codes are 8-bit floating-point numbers, with codebook values up to 448."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qmaps.algebra import packing
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.capture.conversion.formats.coded import same_codes
from qmaps.errors import BadValueError
from qmaps.maps.base import table
from qmaps.maps.codebook import Codebook
from qmaps.maps.e4m3 import Float8E4M3
from qmaps.normalize.block import BlockWise

DTYPE = torch.float8_e4m3fn
UNIT = Float8E4M3(bits=8, signed=True)
"""The same values with their largest scaled to 1, as blocks are normalized here."""


def _values() -> Tensor:
    values = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(DTYPE).float()
    finite: Tensor = torch.unique(values[values.isfinite()])
    return finite + 0.0  # -0 becomes 0


RAW = Codebook(_values(), bits=8, signed=True, label="float8_e4m3fn")
"""The finite values as they are, -448 to 448. It decodes torchao's states to the same bits."""


def unit(q: Quantizer) -> Quantizer:
    """Return `q` with `UNIT` as its map if that is `RAW`; optimizer steps can encode by `UNIT`."""
    return replace(q, map=UNIT) if q.map == RAW else q


def encode(values: Tensor, q: Quantizer) -> QuantizedTensor:
    """Quantize, also where the codebook of `q` is `RAW`."""
    t = unit(q).quantize(values)
    return t if q.map != RAW else same_codes(t, q) or t


def from_floats(codes: Tensor, scales: Tensor) -> QuantizedTensor:
    """Return the quantized tensor of 8-bit floats and scales.

    Args:
        codes: float8_e4m3fn of any shape.
        scales: float32, 1-D, one per block; their number divides that of the codes.

    Raises:
        BadValueError: a code is NaN, or the blocks do not divide the tensor.
    """
    values = codes.detach().cpu().float()
    if not bool(values.isfinite().all()):
        raise BadValueError("a code is NaN")
    block = block_size(values.numel(), scales)
    places = torch.searchsorted(table(RAW), values.reshape(-1))
    packed = packing.pack(places, 8)
    q = Quantizer(BlockWise(block), RAW)
    return QuantizedTensor(q, tuple(codes.shape), packed, (scales.detach().cpu(),))


def to_floats(t: QuantizedTensor) -> Tensor:
    """Return the codes of a tensor under `RAW` as float8_e4m3fn, in the tensor's shape."""
    return table(RAW)[t.codes().long()].to(DTYPE)


def block_size(numel: int, scales: Tensor) -> int:
    """Return the number of elements in a block, where all blocks have the same number.

    Args:
        numel: number of elements of the tensor.
        scales: float32, 1-D, one per block, finite and at least 0.

    Raises:
        BadValueError: the blocks do not divide the tensor, or `scales` is not as described.
    """
    if not isinstance(scales, Tensor) or scales.dtype != torch.float32 or scales.dim() != 1:
        raise BadValueError("scale must be a float32 vector")
    if not len(scales) or numel % len(scales):
        raise BadValueError(f"{len(scales)} scales do not divide {numel} elements")
    if not bool((scales.isfinite() & (scales >= 0)).all()):
        raise BadValueError("a scale is negative, NaN or infinite")
    return numel // len(scales)
