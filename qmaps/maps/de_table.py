"""Dynamic exponent looked up in a table of equal cells, as bitsandbytes does on the CPU."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.maps.base import Map
from qmaps.maps.de import DynamicExponent

POINTS = 65536


@dataclass(frozen=True)
class DynamicExponentTable(Map, name="DE-table"):
    """The values of `DE` that are nearest to one of 65536 evenly spaced points of [-1, 1].

    On the CPU bitsandbytes 0.50 looks up the code of a normalized value in a table of these points.
    Zero is none of them; those beside it are ±1/65535. So the smallest value is 1.5625e-5 unsigned
    (245 values) and ±2.125e-5 signed (249): `DE` has zero and others below, which are not reached.
    In (0, 1], or signed in (-1, 1]; 8 bits only, since no value of up to 5 is left out.
    """

    def widths(self, signed: bool) -> range:
        return range(8, 9)

    def values(self) -> Tensor:
        values = DynamicExponent(self.bits, self.signed).values()
        points = torch.linspace(-1, 1, POINTS, dtype=torch.float64)
        if not self.signed:
            points = points[points > 0]
        reached = torch.bucketize(points, (values[1:] + values[:-1]) / 2)
        return values[sorted(set(reached.tolist()))]
