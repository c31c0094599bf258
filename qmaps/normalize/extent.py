"""Groups of elements with a common scale, for the computation of scales on shards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Extent:
    """One stored part of a normalizer's scales.

    Attributes:
        block: consecutive elements per scale. Shards have blocks of their own, from their first
            element on. 0 for scales of slices.
        axes: dimensions with one scale per index, for slices; a scale is the largest magnitude
            over the other dimensions, of the whole tensor if it is sharded.
        ends: whether it holds the ends of an 8-bit grid of scales, those of the whole tensor.
    """

    block: int = 0
    axes: tuple[int, ...] = ()
    ends: bool = False

    def over(self, dims: int) -> tuple[int, ...]:
        """Dimensions, of `dims`, over which a scale is the maximum; none for blocks."""
        return () if self.block else tuple(dim for dim in range(dims) if dim not in self.axes)
