"""Maps evenly spaced in a transformed domain, with rounding there."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.maps._transforms import Transform
from qmaps.maps.base import Map, table, thresholds
from qmaps.maps.linear0 import Linear0


@dataclass(frozen=True)
class CompandedMap(Map):
    """The values with the transforms of `linear0`.

    A value takes the code whose transform is nearest to its own: each threshold is where the
    transform is halfway between those of two codes. A tie goes to the lower code.

    Attributes:
        nearest: place thresholds halfway between values, as maps without a transform do.
    """

    nearest: bool = False

    @property
    @abstractmethod
    def transform(self) -> Transform:
        """Transform under which the values are evenly spaced."""

    def values(self) -> Tensor:
        return self.transform.expanded(self._transforms())

    def thresholds(self) -> Tensor:
        if self.nearest:
            return thresholds(table(self))
        return thresholds_within(self.transform.expanded, self._transforms())

    def _transforms(self) -> Tensor:
        return Linear0(self.bits, self.signed).values()


def thresholds_within(expanded: Callable[[Tensor], Tensor], transforms: Tensor) -> Tensor:
    """The thresholds of a map that rounds in a transformed domain.

    Args:
        expanded: the inverse of the transform, on float64.
        transforms: those of the map's values, ascending, float64 of shape (size,).

    Returns:
        float32 of shape (size - 1,): the largest numbers that are not above the values whose
        transforms are halfway between neighbours. Where two values are the same in float32, that
        of rounding to the nearest value.
    """
    values = expanded(transforms).float()
    exact = expanded((transforms[1:] + transforms[:-1]) / 2)
    rounded = exact.float()
    below = torch.nextafter(rounded, rounded.new_tensor(-torch.inf))
    limits = torch.where(rounded.double() > exact, below, rounded)
    # Where values are few units in the last place apart, rounding may leave their interval.
    before = torch.nextafter(values[1:], values.new_tensor(-torch.inf))
    limits = torch.minimum(torch.maximum(limits, values[:-1]), before)
    return torch.where(values[1:] == values[:-1], thresholds(values), limits)
