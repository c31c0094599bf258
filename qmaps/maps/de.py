"""Dynamic exponent, the "dynamic" map of the 8-bit optimizers."""

from dataclasses import dataclass

from torch import Tensor

from qmaps.maps.base import Map, cell_midpoints, mirror


def decades(bits: int, signed: bool) -> list[tuple[float, ...]]:
    """For E = 0, 1, ... leading zeros, the midpoints of 2**F cells of [0.1, 1].

    F = bits - 1 - E fraction bits, one fewer where a bit holds the sign; E = 0..bits-2.
    """
    return [cell_midpoints(bits - 1 - signed - zeros) for zeros in range(bits - 1)]


def magnitudes(bits: int, signed: bool) -> list[float]:
    """Magnitudes of `DynamicExponent` but 0 and 1."""
    return [
        midpoint * 10.0**-zeros
        for zeros, midpoints in enumerate(decades(bits, signed))
        for midpoint in midpoints
    ]


@dataclass(frozen=True)
class DynamicExponent(Map, name="DE"):
    """A base-10 exponent of variable width: leading zeros count it, the rest is the fraction.

    For E leading zeros and F fraction bits, ``10**-E`` times the midpoints of ``2**F`` equal
    cells of [0.1, 1]; the two codes left are 0 and 1. Unsigned: F = bits - 1 - E, in [0, 1].
    Signed: F = bits - 2 - E, in (-1, 1]: +1 is held, -1 is not. E = 0..bits-2 in both.

    Source: 8-bit optimizers, section 1.3; 4-bit optimizers, appendix E.2.
    """

    def values(self) -> Tensor:
        return mirror(magnitudes(self.bits, self.signed), 0.0, 1.0, signed=self.signed)
