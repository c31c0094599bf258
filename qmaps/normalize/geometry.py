"""The position of each element's scale, as numbers for any engine, and its extent for shards.

Element i, counted in row-major order, takes scale ``(i // divisor) % count`` of each part, and
of these the smallest. So a block-wise normalizer has the block size as divisor, and a row or
column the product of the dimensions after its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from qmaps.normalize.scale_kind import ScaleKind


@dataclass(frozen=True)
class Part:
    """One list of scales.

    Attributes:
        divisor: consecutive elements per scale.
        count: number of scales.
        array: index of its stored part (see `Normalizer.layout`).
        ends: which holds what all its scales share: the two ends of their log2 grid, or the
            number that those in E4M3 are multiples of; None where they share nothing.
        stored: the format of scales, if not codes of a log2 grid.
    """

    divisor: int
    count: int
    array: int = 0
    ends: int | None = None
    stored: ScaleKind = ScaleKind.FLOAT32

    @property
    def plain(self) -> bool:
        """True if the scales are stored in float32."""
        return self.ends is None and self.stored is ScaleKind.FLOAT32


def slice_part(shape: tuple[int, ...], dimension: int, array: int = 0) -> Part:
    """One scale per index of `dimension`, which is not negative."""
    return Part(max(1, math.prod(shape[dimension + 1 :])), shape[dimension], array)


@dataclass(frozen=True)
class Geometry:
    """All parts of a normalizer for one shape.

    Attributes:
        parts: at least one. Where `log`, the lower and the upper ends of each block's range in
            log2 instead of scales; with a `ratio`, the scale of each block and its exponent.
        arrays: number of stored parts.
        log: whether it spans log2 ranges, or expands ranges by powers (see `ratio`).
        quantile: where their lower ends are among the block's values; 0 is the smallest.
        ratio: ratio of the expanded range of blocks; 0 without powers.
    """

    parts: tuple[Part, ...]
    arrays: int = 1
    log: bool = False
    quantile: float = 0.0
    ratio: float = 0.0

    def shifted(self, by: int) -> tuple[Part, ...]:
        """The parts where `by` stored parts come before."""
        return tuple(
            replace(
                part,
                array=part.array + by,
                ends=None if part.ends is None else part.ends + by,
            )
            for part in self.parts
        )


@dataclass(frozen=True)
class Extent:
    """One stored part of a normalizer's scales.

    Attributes:
        block: consecutive elements per scale. Shards have blocks of their own, from their first
            element on. 0 for scales of slices.
        axes: dimensions with one scale per index, for slices; a scale is the largest magnitude
            over the other dimensions, of the whole tensor if it is sharded. Without `block` and
            `axes`: the ends of an 8-bit grid of scales.
    """

    block: int = 0
    axes: tuple[int, ...] = ()

    def over(self, dims: int) -> tuple[int, ...]:
        """Dimensions, of `dims`, over which a scale is the maximum; none for blocks."""
        return () if self.block else tuple(dim for dim in range(dims) if dim not in self.axes)
