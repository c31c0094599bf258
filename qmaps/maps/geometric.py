"""Values spaced evenly in their logarithm, for second moments."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.maps.base import Map

_OCTAVES = {2: 9.0, 3: 10.5, 8: 32.0}
"""Ratio of the largest value to the smallest, as a power of two; 16 at other widths."""


@dataclass(frozen=True)
class Geometric(Map, name="geometric"):
    """Values whose logarithms are spaced evenly: 2**-15, 2**-14, ..., 1/2 and 1 at 4 bits.

    Neighbours are 3 octaves apart at 2 bits, 1.5 at 3 bits, 1 at 4 bits, and from 1/2 at 5 bits to
    1/8 at 7 and 8 bits; they reach down to 2**-9, 2**-10.5, 2**-15 and below. From 5 bits on an
    octave is divided evenly in value, as that of a floating-point number. There is no zero.

    For averages that move by less than a gap in a step, such as second moments, round with ``+sr``
    or ``+qsr``. Rounded to nearest, such an average does not follow. Rounding to a neighbour that
    is unbiased in the value, it gets smaller in its geometric mean, as gaps below it are smaller
    than gaps above. So the upper neighbour is taken more often; see `bend`.
    """

    signs: ClassVar[tuple[bool, ...]] = (False,)
    signed: bool = False

    @property
    def gap(self) -> float:
        """Octaves from a value to the next."""
        if self.bits <= 4:
            return _OCTAVES.get(self.bits, 15.0) / float(2**self.bits - 1)
        return _OCTAVES.get(self.bits, 16.0) / float(2**self.bits)

    @property
    def bend(self) -> float:
        """Half the natural logarithm of the ratio of two neighbours."""
        return math.log(2) / 2 * self.gap

    def values(self) -> Tensor:
        octaves: Tensor = (
            torch.arange(2**self.bits, dtype=torch.float64) - (2**self.bits - 1)
        ) * self.gap
        whole = octaves.floor() if self.bits > 4 else octaves
        values: Tensor = torch.exp2(whole) * (octaves - whole + 1)
        return values
