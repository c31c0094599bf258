"""Codes of any width, packed without gaps.

Code i occupies bits ``i * bits`` to ``(i + 1) * bits - 1`` of the stream; bit 0 is the lowest
bit of byte 0. So a byte holds two 4-bit codes, low half first, and three bytes hold two 12-bit
codes.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from qmaps.normalize.base import Layout, Normalizer


def packed_bytes(count: int, bits: int) -> int:
    """Number of bytes of `count` codes of `bits` bits."""
    return -(-count * bits // 8)


@functools.lru_cache(maxsize=4096)
def stored(
    normalizer: Normalizer, bits: int, shape: tuple[int, ...]
) -> tuple[int, Layout, tuple[int, ...]]:
    """Storage of a quantized tensor of `shape`.

    Returns:
        Bytes of packed codes, `layout` of the scales, and number of scales in each part.
    """
    layout = normalizer.layout(shape)
    counts = tuple([math.prod(part) for _, part in layout])
    return packed_bytes(math.prod(shape), bits), layout, counts


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack integer `codes` (any shape, each below ``2**bits``) into 1-D uint8.

    >>> pack(torch.tensor([1, 2, 15]), bits=4)
    tensor([33, 15], dtype=torch.uint8)
    """
    flat = codes.reshape(-1)
    if bits == 8:
        return flat.to(torch.uint8)
    per_group, group_bytes = _group(bits)
    missing = -flat.numel() % per_group
    groups = torch.nn.functional.pad(flat.to(torch.int32), (0, missing)).view(-1, per_group)
    stream = torch.empty(len(groups), group_bytes, dtype=torch.uint8, device=codes.device)
    for byte in range(group_bytes):
        parts = [
            groups[:, i] << shift if shift >= 0 else groups[:, i] >> -shift
            for i, shift in _overlaps(byte, bits, per_group)
        ]
        stream[:, byte] = (functools.reduce(torch.bitwise_or, parts) & 0xFF).to(torch.uint8)
    return stream.view(-1)[: packed_bytes(flat.numel(), bits)]


def fill(packed: Tensor, bits: int, code: int, count: int) -> None:
    """Write `count` equal codes to 1-D uint8 `packed`, which has as many bytes as they need."""
    if code == 0:
        packed.zero_()
        return
    # Many groups at a time: copies of a few bytes each would take longer.
    per_part = _group(bits)[0] * 1024
    part = torch.full((min(per_part, count),), code, dtype=torch.int32, device=packed.device)
    pattern = pack(part, bits)
    whole = count // per_part
    parts = packed[: whole * pattern.numel()].view(whole, pattern.numel())
    parts.copy_(pattern.expand_as(parts))
    packed[parts.numel() :].copy_(pack(part[: count % per_part], bits))


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Unpack the first `count` codes of 1-D uint8 `packed`: 1-D int32 on its device."""
    if bits == 8:
        return packed[:count].to(torch.int32)
    per_group, group_bytes = _group(bits)
    missing = -packed.numel() % group_bytes
    stream = torch.nn.functional.pad(packed, (0, missing)).view(-1, group_bytes).to(torch.int32)
    codes = torch.empty(len(stream), per_group, dtype=torch.int32, device=packed.device)
    holders: list[list[Tensor]] = [[] for _ in range(per_group)]
    for byte in range(group_bytes):
        for i, shift in _overlaps(byte, bits, per_group):
            part = stream[:, byte] >> shift if shift >= 0 else stream[:, byte] << -shift
            holders[i].append(part)
    for i, parts in enumerate(holders):
        codes[:, i] = functools.reduce(torch.bitwise_or, parts) & (2**bits - 1)
    return codes.view(-1)[:count]


def _group(bits: int) -> tuple[int, int]:
    """Smallest number of codes in a whole number of bytes, and the bytes."""
    per_group = 8 // math.gcd(bits, 8)
    return per_group, per_group * bits // 8


def _overlaps(byte: int, bits: int, per_group: int) -> list[tuple[int, int]]:
    """The codes with a bit in `byte`, each with its left shift into that byte."""
    first, last = byte * 8 // bits, (byte * 8 + 7) // bits
    return [(i, i * bits - byte * 8) for i in range(first, min(last, per_group - 1) + 1)]
