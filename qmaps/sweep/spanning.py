"""Scales of a tensor that is read in chunks.

Scales of blocks are those of the chunk, which holds whole blocks. Others span the tensor: a first
pass finds the maxima of slices, and the ends of grids of scales. Maxima do not depend on the order,
so these scales have the bits of those of the whole tensor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from qmaps.normalize.base import Layout, Normalizer, Scales, Shape
from qmaps.normalize.geometry import Geometry, Part
from qmaps.normalize.minimum import Minimum
from qmaps.normalize.scale_format import ScaleFormat

Box = tuple[tuple[int, int], ...]
"""A range of indices of each dimension."""


def supports(normalizer: Normalizer, dims: int) -> bool:
    """Whether the scales of a tensor of `dims` dimensions can be found in chunks."""
    if isinstance(normalizer, Minimum):
        return all(supports(part, dims) for part in normalizer.parts)
    inner = normalizer.inner if isinstance(normalizer, ScaleFormat) else normalizer
    extents = inner.extents(dims)
    if extents is None or any(extent.ends for extent in extents):
        return False
    return len({bool(extent.block) for extent in extents}) == 1


def is_local(normalizer: Normalizer, dims: int) -> bool:
    """Whether every scale is of one block, so that a chunk is like a tensor of its own."""
    extents = normalizer.extents(dims)
    return extents is not None and all(extent.block for extent in extents)


def bytes_of_scales(normalizer: Normalizer, shape: Shape) -> int:
    """The bytes of the scales of a tensor that are kept between chunks; `supports` is True."""
    if isinstance(normalizer, Minimum):
        return sum(bytes_of_scales(part, shape) for part in normalizer.parts)
    inner = normalizer.inner if isinstance(normalizer, ScaleFormat) else normalizer
    if is_local(inner, len(shape)):
        return 0
    return sum(dtype.itemsize * math.prod(size) for dtype, size in inner.layout(shape))


@dataclass(frozen=True)
class Elementwise(Normalizer):
    """A scale for every element, known from elsewhere; those of `scales` are the magnitudes."""

    @property
    def spec(self) -> str:
        """See `Normalizer.spec`; it is in no registry."""
        return "elementwise"

    def layout(self, shape: Shape) -> Layout:
        """See `Normalizer.layout`."""
        return ((torch.float32, shape),)

    def scales(self, x: Tensor) -> Scales:
        """See `Normalizer.scales`."""
        return (x.abs(),)

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        """See `Normalizer.expand`."""
        return scales[0].view(shape)

    def geometry(self, shape: Shape) -> Geometry | None:
        """See `Normalizer.geometry`."""
        return Geometry((Part(1, math.prod(shape)),))


class Scaler(ABC):
    """The scales of one normalizer on one tensor, given in chunks of whole blocks."""

    @abstractmethod
    def look(self, x: Tensor, begin: int) -> None:
        """Look at a chunk in the first pass.

        Args:
            x: its elements, float32 of shape (n,).
            begin: number of the first one.
        """

    @abstractmethod
    def finish(self) -> None:
        """End the first pass."""

    @property
    def one(self) -> Scales | None:
        """The scale of all elements, after the first pass; None where there are several."""
        return None

    @abstractmethod
    def expanded(self, x: Tensor, begin: int) -> Tensor:
        """The float32 scale of each element of a chunk, after the first pass; as for `look`."""


def scaler_of(normalizer: Normalizer, shape: Shape) -> Scaler:
    """What finds the scales of a normalizer that `supports` accepts on a tensor of `shape`."""
    if isinstance(normalizer, Minimum):
        return _Smallest([scaler_of(part, shape) for part in normalizer.parts])
    inner = normalizer.inner if isinstance(normalizer, ScaleFormat) else normalizer
    if is_local(inner, len(shape)):
        return _Blocks(normalizer)
    return _Slices(normalizer, shape)


class _Smallest(Scaler):
    """The element-wise minimum."""

    def __init__(self, parts: list[Scaler]) -> None:
        self._parts = parts

    def look(self, x: Tensor, begin: int) -> None:
        for part in self._parts:
            part.look(x, begin)

    def finish(self) -> None:
        for part in self._parts:
            part.finish()

    def expanded(self, x: Tensor, begin: int) -> Tensor:
        return reduce(torch.minimum, (part.expanded(x, begin) for part in self._parts))


class _Blocks(Scaler):
    """Scales of blocks, perhaps in a format with numbers that depend on all of them."""

    def __init__(self, normalizer: Normalizer) -> None:
        self._normalizer = normalizer
        shared = isinstance(normalizer, ScaleFormat) and normalizer.shared
        self._format = normalizer if shared and isinstance(normalizer, ScaleFormat) else None
        self._ends = torch.zeros(2, dtype=torch.float32)

    def look(self, x: Tensor, begin: int) -> None:  # noqa: ARG002
        if self._format is None:
            return
        low, high = self._format.ends(self._format.inner.scales(x))
        if high > 0:
            low = torch.minimum(low, self._ends[0]) if self._ends[1] > 0 else low
            self._ends = torch.stack([low, torch.maximum(high, self._ends[1])])

    def finish(self) -> None:
        pass

    def expanded(self, x: Tensor, begin: int) -> Tensor:  # noqa: ARG002
        if self._format is None:
            scales = self._normalizer.scales(x)
        else:
            scales = self._format.stored(self._format.inner.scales(x), self._ends)
        return self._normalizer.expand(scales, tuple(x.shape))


class _Slices(Scaler):
    """Maxima of slices or of the tensor, perhaps in another format."""

    def __init__(self, normalizer: Normalizer, shape: Shape) -> None:
        self._format = normalizer if isinstance(normalizer, ScaleFormat) else None
        self._inner = self._format.inner if self._format is not None else normalizer
        self._shape = shape
        self._kept = [extent.kept for extent in self._inner.extents(len(shape)) or ()]
        self._scales = self._inner.zero_scales(shape)

    def look(self, x: Tensor, begin: int) -> None:
        for at, box in boxes(self._shape, begin, begin + x.numel()):
            own = self._inner.scales(_view(x, at, box))
            for known, found in zip(self._restricted(box), own, strict=True):
                torch.maximum(known, found, out=known)

    def finish(self) -> None:
        if self._format is not None:
            ends = self._format.ends(self._scales)
            self._scales = self._format.read(self._format.stored(self._scales, ends))

    def expanded(self, x: Tensor, begin: int) -> Tensor:
        result = torch.empty(x.shape, dtype=torch.float32)
        for at, box in boxes(self._shape, begin, begin + x.numel()):
            target = _view(result, at, box)
            target.copy_(self._inner.expand(self._restricted(box), tuple(target.shape)))
        return result

    @property
    def one(self) -> Scales | None:
        return self._scales if len(self._scales) == 1 and not self._scales[0].shape else None

    def _restricted(self, box: Box) -> Scales:
        """Views of the scales of a box."""
        return tuple(
            part[tuple(slice(*box[dim]) for dim in kept)] if kept else part
            for part, kept in zip(self._scales, self._kept, strict=True)
        )


def boxes(shape: Shape, begin: int, end: int) -> Iterator[tuple[int, Box]]:
    """The boxes that elements [begin, end) of a tensor consist of, in row-major order.

    Yields:
        The number of the box's first element, counted from `begin`, and its indices.

    >>> list(boxes((4, 3), 1, 9))
    [(0, ((0, 1), (1, 3))), (2, ((1, 3), (0, 3)))]
    """
    for first, box in _boxes(shape, begin, end):
        yield first - begin, box


def _boxes(shape: Shape, begin: int, end: int) -> Iterator[tuple[int, Box]]:
    if not shape:
        yield begin, ()
        return
    row = math.prod(shape[1:])
    whole = tuple((0, size) for size in shape[1:])
    while begin < end:
        index, within = divmod(begin, row)
        if within == 0 and end - begin >= row:
            stop = end // row
            yield begin, ((index, stop), *whole)
            begin = stop * row
        else:
            stop = min(end - index * row, row)
            for first, box in _boxes(shape[1:], within, stop):
                yield index * row + first, ((index, index + 1), *box)
            begin = index * row + stop


def _view(x: Tensor, at: int, box: Box) -> Tensor:
    """The elements of a box, as a tensor of its sizes."""
    sizes = [high - low for low, high in box]
    return x[at : at + math.prod(sizes)].view(sizes)
