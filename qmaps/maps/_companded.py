"""Maps that are evenly spaced in a transformed domain, and round there."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.maps.base import Map, table
from qmaps.maps.linear0 import Linear0
from qmaps.maps.nearest import thresholds


@dataclass(frozen=True)
class CompandedMap(Map):
    """The values whose transforms are those of `linear0`.

    A value takes the code whose transform is nearest to its own: each threshold is where the
    transform is halfway between those of two codes. A tie goes to the lower code.

    Attributes:
        nearest: place thresholds halfway between values, as maps without a transform do.
    """

    nearest: bool = False

    @abstractmethod
    def expanded(self, transforms: Tensor) -> Tensor:
        """The values of which these are the transforms: an odd function on [-1, 1].

        Args:
            transforms: float64 of any shape, in [-1, 1].
        """

    def values(self) -> Tensor:
        return self.expanded(self._transforms())

    def thresholds(self) -> Tensor:
        if self.nearest:
            return thresholds(table(self))
        transforms = self._transforms()
        exact = self.expanded((transforms[1:] + transforms[:-1]) / 2)
        rounded = exact.float()
        below = torch.nextafter(rounded, torch.tensor(-torch.inf))
        return torch.where(rounded.double() > exact, below, rounded)

    def _transforms(self) -> Tensor:
        return Linear0(self.bits, self.signed).values()
