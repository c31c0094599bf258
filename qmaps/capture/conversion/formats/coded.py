"""Codes, a codebook and one scale per block: the form of a state in other libraries."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from qmaps import maps
from qmaps.algebra import packing
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.errors import BadValueError
from qmaps.maps.base import Map, table
from qmaps.maps.codebook import Codebook
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
    """The quantized tensor of another library's codes; it decodes to the same bits.

    A codebook that is bit for bit one of this package's maps is that map. Any other is a
    `qmaps.Codebook`.

    Args:
        codes: integer tensor of any shape, with one code per element: an index into `codebook`.
        codebook: float32, 1-D, 2 to ``2**bits`` values in any order; values may repeat.
        scales: float32, 1-D, one per block of the flattened tensor, at least 0.
        shape: shape of the tensor.
        bits: width of a code.
        block: number of elements in a block.
        label: name of the codebook if it is none of this package's maps.

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
    """Return True if a tensor is made of codes, a codebook within -1 to 1, and one scale per block.

    It then has no low-rank part, no random numbers to take away, and no residual.

    Args:
        t: the quantized tensor.
        bits: the width that its codes must have.
        block: the block size that it must have; any if None.
    """
    normalizer = t.quantizer.normalizer
    return (
        isinstance(normalizer, BlockWise)
        and not t.quantizer.spec_extensions
        and (block is None or normalizer.size == block)
        and t.quantizer.map.bits == bits
        and not t.quantizer.map.log_domain
        and float(table(t.quantizer.map).abs().max()) <= 1
    )


def same_codes(t: QuantizedTensor, q: Quantizer) -> QuantizedTensor | None:
    """Return `t` with the codebook of `q` and the same codes, if the codebooks allow it.

    They do if both quantizers have the same block-wise normalizer and codebooks that differ by a
    factor alone. The factor goes into the scales. Values change by rounding alone, as codebooks
    may differ in their last bits.

    Returns:
        The tensor under `q`, or None where the codebooks do not allow it.
    """
    old, new = table(t.quantizer.map), table(q.map)
    if t.quantizer.spec_extensions or q.spec_extensions:
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
            known = cls(bits=bits, signed=signed)
        except BadValueError:  # the map does not have this width
            continue
        if tuple(table(known).tolist()) == values:
            return known
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
