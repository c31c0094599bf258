"""The dynamic tree of 2015, from which the dynamic exponent came."""

from dataclasses import dataclass

from torch import Tensor

from qmaps.maps.base import Map, cell_midpoints, mirror


def bisection(levels: int) -> tuple[float, ...]:
    """The ``2**levels`` leaves of the bisection of [0.1, 1]: first at 0.45, then at midpoints."""
    return cell_midpoints(levels - 1, 0.1, 0.45) + cell_midpoints(levels - 1, 0.45, 1.0)


@dataclass(frozen=True)
class DynamicTree(Map, name="tree"):
    """A base-10 exponent of variable width and a bisection tree of [0.1, 1].

    With n non-sign bits and E leading zeros, ``10**-E`` times [0.1, 1] bisected F = n - 1 - E
    times (F >= 1), first at 0.45, then at midpoints. 0 and 1 besides, and -1 if signed.
    8-bit signed: 126 magnitudes from 2.75e-6 to 0.99140625. Signed from 3 bits, for with
    fewer no bit is left for a tree.

    Source: 8-bit approximations for parallelism, section 2 ("dynamic tree").
    """

    def widths(self, signed: bool) -> range:
        return range(3 if signed else 2, 9)

    def values(self) -> Tensor:
        levels = self.bits - self.signed - 1
        magnitudes = [
            leaf * 10.0**-zeros for zeros in range(levels) for leaf in bisection(levels - zeros)
        ]
        return mirror([*magnitudes, 1.0], 0.0, signed=self.signed)
