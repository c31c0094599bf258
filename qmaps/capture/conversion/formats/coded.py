"""Codes, a codebook and one scale per block; 8-bit floating-point numbers as codes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from qmaps import maps
from qmaps.algebra import packing
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.errors import BadValueError
from qmaps.maps.base import Map, table
from qmaps.maps.codebook import Codebook
from qmaps.maps.e4m3 import Float8E4M3
from qmaps.normalize.block import BlockWise


def from_codes(
    codes: Tensor,
    codebook: Tensor,
    scales: Tensor,
    shape: tuple[int, ...],
    *,
    bits: int,
    block: int,
    label: str,
) -> QuantizedTensor:
    """Return the quantized tensor of another library's codes; it decodes to the same bits.

    `codes` are indices of any shape into the float32 `codebook`, whose 2 to ``2**bits`` values may
    have any order and repeat; `scales` are float32, one per block of the flattened tensor. A
    codebook equal to one of this package's maps, bit for bit, becomes this map. Any other is a
    `qmaps.Codebook` of this label.

    Raises:
        BadValueError: the parts do not fit together.
    """
    if codes.is_floating_point() or codes.numel() != math.prod(shape):
        raise BadValueError(
            f"{codes.numel()} codes of {codes.dtype} do not fit a tensor of shape {shape}"
        )
    _check(codebook, 2**bits, "the codebook")
    _check(scales, -(-math.prod(shape) // block), "the scales", exactly=True)
    flat = codes.detach().cpu().reshape(-1).long()
    if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < len(codebook):
        raise BadValueError(
            f"a code is {int(flat.max())}, but the codebook has only {len(codebook)} values"
        )
    if bool((scales < 0).any()):
        raise BadValueError("a scale is negative")
    values, places = torch.unique(codebook.detach().cpu(), return_inverse=True)
    q = Quantizer(BlockWise(block), _named(tuple(values.tolist()), bits, label))
    packed = packing.pack(places[flat], bits)
    return QuantizedTensor(q, shape, packed, (scales.detach().cpu(),))


def codebook_of(map_: Map, length: int) -> Tensor:
    """Return a map's codebook, float32 and 1-D, its last value repeated up to `length` values."""
    values = table(map_)
    return torch.cat([values, values[-1:].expand(length - len(values))])


def holds(t: QuantizedTensor, bits: int, block: int | None = None) -> bool:
    """Return True for codes of these bits, a codebook within -1 to 1, and one scale per block.

    It has no low-rank part. `block` is the required block size; any if None.
    """
    normalizer = t.quantizer.normalizer
    return (
        isinstance(normalizer, BlockWise)
        and t.quantizer.low_rank is None
        and (block is None or normalizer.size == block)
        and t.quantizer.map.bits == bits
        and not t.quantizer.map.log_domain
        and float(table(t.quantizer.map).abs().max()) <= 1
    )


def same_codes(t: QuantizedTensor, q: Quantizer) -> QuantizedTensor | None:
    """Return `t` with the quantizer `q` and the same codes; None if the codebooks differ.

    They do if both quantizers have the same block-wise normalizer and codebooks that differ by a
    factor alone. The factor goes into the scales, and values change by rounding alone.
    """
    old, new = table(t.quantizer.map), table(q.map)
    if t.quantizer.low_rank is not None or q.low_rank is not None:
        return None
    if t.quantizer.normalizer != q.normalizer or not isinstance(q.normalizer, BlockWise):
        return None
    if old.shape != new.shape or t.quantizer.map.bits != q.map.bits or float(new[-1]) == 0:
        return None
    factor = float(old[-1]) / float(new[-1])
    if not torch.allclose(old.double(), new.double() * factor, rtol=1e-6, atol=0):
        return None
    scales = tuple((scale.double() * factor).float() for scale in t.scales)
    return QuantizedTensor(q, t.shape, t.packed, scales)


@lru_cache(maxsize=64)
def _named(values: tuple[float, ...], bits: int, label: str) -> Map:
    """The map of these values, ascending and distinct."""
    signed = values[0] < 0
    for name in maps.names():
        cls = maps.REGISTRY[name]
        if cls.fitted or cls.log_domain or signed not in cls.signs:
            continue
        try:
            candidate = cls(bits=bits, signed=signed)
        except BadValueError:  # the map does not have this width
            continue
        if tuple(table(candidate).tolist()) == values:
            return candidate
    return Codebook(values, bits=bits, signed=signed, label=label)


def _check(tensor: Tensor, length: int, what: str, *, exactly: bool = False) -> None:
    """Raise unless `tensor` is a float32 vector of finite numbers, of `length` or fewer."""
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.float32 or tensor.dim() != 1:
        kind = (
            f"{tensor.dtype} of shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else ""
        )
        raise BadValueError(f"{what} must be a float32 vector, got {kind or type(tensor).__name__}")
    count = len(tensor)
    if count != length if exactly else not 2 <= count <= length:
        needed = f"{length}" if exactly else f"2 to {length}"
        raise BadValueError(f"{what} must have {needed} values, got {count}")
    if not bool(tensor.isfinite().all()):
        raise BadValueError(f"{what} must be finite")


FLOAT8_DTYPE = torch.float8_e4m3fn
UNIT_FLOAT8 = Float8E4M3(bits=8, signed=True)
"""The same values with their largest scaled to 1, as blocks are normalized here."""


def _values() -> Tensor:
    values = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(FLOAT8_DTYPE).float()
    finite: Tensor = torch.unique(values[values.isfinite()])
    return finite + 0.0  # -0 becomes 0


FLOAT8 = Codebook(_values(), bits=8, signed=True, label="float8_e4m3fn")
"""The finite values as they are, -448 to 448. It decodes torchao's states to the same bits."""


def unit(q: Quantizer) -> Quantizer:
    """Return `q` with `UNIT_FLOAT8`, the map for optimizer steps, in place of `FLOAT8`."""
    return replace(q, map=UNIT_FLOAT8) if q.map == FLOAT8 else q


def encode(values: Tensor, q: Quantizer) -> QuantizedTensor:
    """Quantize, also where the codebook of `q` is `FLOAT8`."""
    t = unit(q).quantize(values)
    return t if q.map != FLOAT8 else same_codes(t, q) or t


def from_floats(codes: Tensor, scales: Tensor) -> QuantizedTensor:
    """Return the quantized tensor of float8_e4m3fn codes of any shape, and one scale per block."""
    values = codes.detach().cpu().float()
    if not bool(values.isfinite().all()):
        raise BadValueError("a code is NaN")
    block = block_size(values.numel(), scales)
    places = torch.searchsorted(table(FLOAT8), values.reshape(-1))
    packed = packing.pack(places, 8)
    q = Quantizer(BlockWise(block), FLOAT8)
    return QuantizedTensor(q, tuple(codes.shape), packed, (scales.detach().cpu(),))


def to_floats(t: QuantizedTensor) -> Tensor:
    """Return the codes of a tensor under `FLOAT8` as float8_e4m3fn, in the tensor's shape."""
    return table(FLOAT8)[t.codes().long()].to(FLOAT8_DTYPE)


def block_size(numel: int, scales: Tensor) -> int:
    """Return the number of elements in a block for float32 scales; they must divide `numel`."""
    if not isinstance(scales, Tensor) or scales.dtype != torch.float32 or scales.dim() != 1:
        raise BadValueError("scale must be a float32 vector")
    if not len(scales) or numel % len(scales):
        raise BadValueError(f"{len(scales)} scales do not divide {numel} elements")
    if not bool((scales.isfinite() & (scales >= 0)).all()):
        raise BadValueError("a scale is negative, NaN or infinite")
    return numel // len(scales)
