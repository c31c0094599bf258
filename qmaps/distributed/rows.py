"""Quantized tensors row by row, for checkpoints cut between any two rows.

A row holds the elements of one index of the first dimension, along which ``fully_shard`` splits.
Its codes fill whole bytes. It comes with the scales of its blocks, and with its phase:
the position of its beginning in its block. `torch.distributed.checkpoint` can therefore
give rows to another number of processes, where they become a shard again:

- scales of slices (`rank1`, `row`, ...) and blocks with the same beginning stay bit for bit;
- where a new shard begins inside a block, its rows are decoded and encoded again with blocks of its
  own. It happens if rows are not a multiple of blocks and shards move, and costs one rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra import packing
from qmaps.algebra.dense import unsupported_reason
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.algebra.saved import (
    FORMAT,
    check_format,
    check_values,
    described,
    quantizer_in,
    with_text,
)
from qmaps.engines import reference
from qmaps.engines.sharding.shards import Shard, is_distributed, local
from qmaps.errors import DAMAGE, BadValueError, shown
from qmaps.maps.base import Map
from qmaps.normalize.base import Minimum, Normalizer, Shape
from qmaps.normalize.block import BlockWise
from qmaps.normalize.geometry import Extent
from qmaps.normalize.logblock import LogBlock
from qmaps.normalize.range_expansion import RangeExpansion
from qmaps.normalize.scale_format import ScaleFormat

_always: ContextVar[bool] = ContextVar("rows", default=False)


@contextmanager
def by_rows() -> Iterator[None]:
    """Make state_dicts of unsharded parameters by rows as well, within the block.

    A single process can then write checkpoints of `torch.distributed.checkpoint` for several
    processes, and read those of several.
    """
    token = _always.set(True)
    try:
        yield
    finally:
        _always.reset(token)


def wanted() -> bool:
    """Return True if `by_rows` is in force."""
    return _always.get()


@dataclass(frozen=True)
class Rows:
    """Some consecutive rows of a quantized tensor.

    Attributes:
        quantizer, shape: those of the whole tensor.
        codes: uint8 of shape (rows, bytes of a row).
        scales: one tensor for each stored part of the normalizer: scales of blocks have the shape
            (rows, blocks of a row), scales of slices are as stored.
        phases: one tensor for each stored part: int32 of shape (rows,) for blocks, else empty.
    """

    quantizer: Quantizer
    shape: Shape
    codes: Tensor
    scales: tuple[Tensor, ...]
    phases: tuple[Tensor, ...]

    @staticmethod
    def of(t: QuantizedTensor) -> Rows:
        """The rows of a tensor; they share no storage with it."""
        if t.quantizer.low_rank is not None:
            raise BadValueError(
                f"{t.quantizer.spec} keeps factors of whole matrices; it cannot be saved by rows"
            )
        rows, width = _sides(t.shape)
        codes = _padded(t.codes().view(rows, width), t.quantizer.map)
        scales, phases = [], []
        for extent, scale in zip(_extents(t.quantizer, t.shape), t.scales, strict=True):
            if not extent.block:
                scales.append(scale.clone())
                phases.append(torch.zeros(0, dtype=torch.int32, device=t.device))
                continue
            begin = torch.arange(rows, device=t.device) * width
            index = (begin // extent.block)[:, None] + torch.arange(
                _blocks(width, extent.block), device=t.device
            )
            last = max(scale.numel() - 1, 0)
            scales.append(scale[index.clamp(max=last)] if rows else scale.new_zeros(index.shape))
            phases.append((begin % extent.block).to(torch.int32))
        return Rows(t.quantizer, t.shape, codes, tuple(scales), tuple(phases))

    def cut(self, shard: Shard) -> Rows:
        """The rows of a shard; `self` holds all rows."""
        first, count = shard.offsets[0], shard.local_shape[0]

        def some(x: Tensor, sliced: bool) -> Tensor:
            return x.narrow(0, first, count) if sliced else x

        extents = _extents(self.quantizer, self.shape)
        return replace(
            self,
            codes=some(self.codes, True),
            scales=tuple(
                some(scale, bool(extent.block) or 0 in extent.axes)
                for scale, extent in zip(self.scales, extents, strict=True)
            ),
            phases=tuple(some(phase, phase.numel() > 0) for phase in self.phases),
        )

    @property
    def local_shape(self) -> Shape:
        """The shape of these rows together."""
        return (len(self.codes), *self.shape[1:]) if self.shape else ()

    @property
    def aligned(self) -> bool:
        """True if blocks begin where they would in a tensor of these rows alone."""
        rows, width = _sides(self.local_shape)
        extents = _extents(self.quantizer, self.shape)
        return all(
            torch.equal(phase.cpu().long(), torch.arange(rows) * width % extent.block)
            for phase, extent in zip(self.phases, extents, strict=True)
            if extent.block
        )

    def joined(self) -> QuantizedTensor:
        """The quantized tensor of these rows; they must be `aligned`."""
        rows, width = _sides(self.local_shape)
        scales = []
        for extent, scale in zip(_extents(self.quantizer, self.shape), self.scales, strict=True):
            if extent.block:
                count = -(-rows * width // extent.block)
                block = torch.arange(count, device=scale.device)
                row = block * extent.block // max(width, 1)
                scale = scale[row, block - row * width // extent.block]
            scales.append(scale.clone())
        packed = packing.pack(self._codes(), self.quantizer.map.bits)
        return QuantizedTensor(self.quantizer, self.local_shape, packed, tuple(scales))

    def decoded(self) -> Tensor:
        """The decoded values, float32 of `local_shape`."""
        rows, width = _sides(self.local_shape)
        scales = []
        extents = _extents(self.quantizer, self.shape)
        for extent, scale, phase in zip(extents, self.scales, self.phases, strict=True):
            if extent.block:
                column = torch.arange(width, device=scale.device)
                block = (phase.long()[:, None] + column) // extent.block
                scale = scale.gather(1, block).reshape(-1) if rows * width else scale.reshape(-1)
            scales.append(scale)
        normalizer = _by_element(self.quantizer.normalizer, len(self.shape))
        codes = self._codes().view(self.local_shape)
        return reference.dequantize(codes, tuple(scales), normalizer, self.quantizer.map)

    def _codes(self) -> Tensor:
        rows, width = _sides(self.local_shape)
        map_ = self.quantizer.map
        padded = _padded_width(width, map_)
        unpacked = packing.unpack(self.codes.reshape(-1), map_.bits, rows * padded)
        return unpacked.view(rows, padded)[:, :width].reshape(-1)


def write(t: QuantizedTensor, shard: Shard | None) -> dict[str, Any]:
    """The rows of `t` as a dict of tensors, strings and numbers for `read`.

    With a `shard`, the box of `t` in the whole tensor, tensors of the dict are DTensors.
    """
    rows = Rows.of(t)
    shape = t.shape if shard is None else shard.shape
    about = {**described(t.quantizer), "format": FORMAT, "rows": list(shape)}
    arrays = {"codes": rows.codes}
    extents = _extents(t.quantizer, shape)
    along_rows = {"codes"}
    for number, (extent, scale, phase) in enumerate(
        zip(extents, rows.scales, rows.phases, strict=True)
    ):
        arrays[f"scale{number}"] = scale
        if extent.block:
            arrays[f"phase{number}"] = phase
            along_rows |= {f"scale{number}", f"phase{number}"}
        elif 0 in extent.axes:
            along_rows.add(f"scale{number}")
    if shard is not None:
        arrays = {
            name: shard.of_rows(array, split=name in along_rows).distributed(array)
            for name, array in arrays.items()
        }
    return {**about, **arrays}


def read(plain: Mapping[str, Any], shard: Shard | None) -> Rows:
    """Read the dict of `write`, or of `tensors_only` after it: the rows of a shard; None: all.

    Raises:
        BadValueError: the parts do not fit together.
    """
    try:
        plain = with_text(plain)
        check_format(plain, "the rows of a quantized tensor")
        quantizer = quantizer_in(plain)
        shape = tuple(plain["rows"])
        if not all(isinstance(size, int) for size in shape):
            raise BadValueError(
                f"rows={shown(plain['rows'])} of a quantized tensor must consist of ints"
            )
        extents = _extents(quantizer, shape)
        arrays = {name: _here(value, shard) for name, value in plain.items() if _is_array(name)}
        numbers = range(len(extents))
        nothing = torch.zeros(0, dtype=torch.int32)
        rows = Rows(
            quantizer,
            shape,
            arrays["codes"],
            tuple(arrays[f"scale{number}"] for number in numbers),
            tuple(arrays.get(f"phase{number}", nothing) for number in numbers),
        )
        if shard is not None and len(rows.codes) == _sides(shape)[0] != shard.local_shape[0]:
            _check(rows)
            rows = rows.cut(shard)
        _check(rows)
    except BadValueError:
        raise
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadValueError(f"the rows of a quantized tensor are damaged ({reason})") from None
    return rows


def _is_array(name: str) -> bool:
    return name == "codes" or name.startswith(("scale", "phase"))


def _here(value: Any, shard: Shard | None) -> Tensor:
    """The local part of a DTensor, or the full tensor where there is no shard or no split."""
    if not is_distributed(value):
        x: Tensor = value
    else:
        # If nothing is split, a process has all or nothing (`qmaps.engines.sharding.owners`).
        x = value.full_tensor() if shard is None or not shard.groups() else local(value)
    if unsupported_reason(x):
        raise TypeError("a part is not dense")
    return x


def _check(rows: Rows) -> None:
    """Raise unless sizes and dtypes fit the quantizer, and codes lie in its codebook."""
    count, width = _sides(rows.local_shape)
    map_ = rows.quantizer.map
    row_bytes = _padded_width(width, map_) * map_.bits // 8
    needed: list[tuple[str, Tensor, torch.dtype, Shape]] = [
        ("codes", rows.codes, torch.uint8, (count, row_bytes))
    ]
    layout = rows.quantizer.normalizer.layout(rows.local_shape)
    for number, (extent, (dtype, shape)) in enumerate(
        zip(_extents(rows.quantizer, rows.shape), layout, strict=True)
    ):
        size = (count, _blocks(width, extent.block)) if extent.block else shape
        needed.append((f"scale{number}", rows.scales[number], dtype, size))
        if extent.block:
            needed.append((f"phase{number}", rows.phases[number], torch.int32, (count,)))
            phase = rows.phases[number]
            if phase.numel() and not 0 <= int(phase.min()) <= int(phase.max()) < extent.block:
                raise BadValueError(
                    f"phase{number} of the rows of a quantized tensor must be between 0 and "
                    f"{extent.block - 1}"
                )
    for name, array, dtype, size in needed:
        if array.dtype != dtype or tuple(array.shape) != size:
            raise BadValueError(
                f"{name} of the rows of a quantized tensor has shape {tuple(array.shape)} and "
                f"dtype {array.dtype}; {rows.quantizer.spec} of shape {rows.shape} needs shape "
                f"{size} and dtype {dtype}"
            )
    holds = "codes of the rows of a quantized tensor hold"
    check_values(rows.quantizer, rows.scales, rows._codes, "the rows of ", holds)


def _sides(shape: Shape) -> tuple[int, int]:
    """Rows, and elements of a row."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def _blocks(width: int, block: int) -> int:
    """Largest number of blocks in a row."""
    if width % block == 0:
        return width // block
    return (width + block - 2) // block + 1


def _padded_width(width: int, map_: Map) -> int:
    """Codes of a row, filled up to whole bytes."""
    together = 8 // math.gcd(map_.bits, 8)
    return -(-width // together) * together


def _padded(codes: Tensor, map_: Map) -> Tensor:
    """Codes of shape (rows, width) packed row by row."""
    rows, width = codes.shape
    padded = _padded_width(width, map_)
    codes = torch.nn.functional.pad(codes, (0, padded - width))
    return packing.pack(codes, map_.bits).view(rows, padded * map_.bits // 8)


def _extents(quantizer: Quantizer, shape: Shape) -> tuple[Extent, ...]:
    extents = quantizer.normalizer.extents(len(shape))
    if extents is None:
        spec = quantizer.normalizer.spec
        raise BadValueError(
            f"{spec} does not tell which elements share a scale (Normalizer.extents)"
        )
    return extents


def _by_element(normalizer: Normalizer, dims: int) -> Normalizer:
    """The same with a scale for every element instead of every block."""
    if isinstance(normalizer, Minimum):
        return Minimum(*(_by_element(part, dims) for part in normalizer.parts))
    if isinstance(normalizer, ScaleFormat):
        return replace(normalizer, inner=_by_element(normalizer.inner, dims))
    if isinstance(normalizer, (LogBlock, RangeExpansion)):
        return replace(normalizer, size=1)
    extents = normalizer.extents(dims) or ()
    return BlockWise(1) if any(extent.block for extent in extents) else normalizer
