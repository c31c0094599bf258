"""Exact order statistics of errors that are given in chunks and not kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

HALF = 16
"""Bits of a float32, as a whole number, that the second pass looks at."""

OUT = 0x80000000
"""The bits of what does not count."""


class Ranks:
    """Nearest-rank quantiles of non-negative float32 numbers, in two passes over them.

    Such numbers are in the order of their bits. The first pass counts by the upper half of the
    bits, which tells the upper half of every quantile; the second counts by the lower half those
    that have it.

    Attributes:
        count: how many numbers the first pass has seen.
        total: their sum, those of the chunks in float64 added in the order of the chunks.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._upper = np.zeros(2 ** (31 - HALF), np.int64)
        self._lower: dict[int, NDArray[np.int64]] = {}
        self._wanted: list[tuple[int, int]] = []

    def add(self, bits: NDArray[np.uint32], total: float) -> None:
        """Count a chunk in the first pass.

        Args:
            bits: numbers as bits; those of `OUT` are left out.
            total: the sum of the others.
        """
        found = np.bincount(bits >> HALF, minlength=self._upper.size + 1)
        self._upper += found[: self._upper.size]
        self.count += int(found[: self._upper.size].sum())
        self.total += total

    def turn(self, levels: Sequence[float]) -> None:
        """End the first pass.

        Args:
            levels: of the quantiles that `values` returns, above 0 and at most 1.
        """
        if self.count == 0:
            return
        ends = np.cumsum(self._upper)
        for level in levels:
            rank = int(np.ceil(level * self.count)) - 1
            upper = int(np.searchsorted(ends, rank, side="right"))
            self._wanted.append((upper, rank - int(ends[upper] - self._upper[upper])))
            self._lower[upper] = np.zeros(2**HALF, np.int64)

    def add_again(self, bits: NDArray[np.uint32]) -> None:
        """Count a chunk in the second pass."""
        halves = bits >> HALF
        for upper, counts in self._lower.items():
            own = bits[halves == upper] & (2**HALF - 1)
            counts += np.bincount(own, minlength=counts.size)

    def values(self, levels: int) -> list[float]:
        """The quantiles in the order of their levels; NaN of nothing."""
        if self.count == 0:
            return [float("nan")] * levels
        found = []
        for upper, rank in self._wanted:
            lower = int(np.searchsorted(np.cumsum(self._lower[upper]), rank, side="right"))
            found.append(np.array((upper << HALF) | lower, np.uint32).view(np.float32))
        return [float(value) for value in found]
