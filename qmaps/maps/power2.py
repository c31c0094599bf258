"""The square of the linear map."""

from dataclasses import dataclass

from torch import Tensor

from qmaps.maps.base import Map
from qmaps.maps.linear import Linear


@dataclass(frozen=True)
class Power2(Map, name="power2"):
    """Each value of `linear` to the power 2 with its sign kept: finer near zero, no zero.

    Unsigned: ``((i + 1) / 2**bits)**2``, in (0, 1]. Signed: in [-1, 1], symmetric.

    Source: 4-bit optimizers, released code ("power-2").
    """

    def values(self) -> Tensor:
        linear = Linear(self.bits, self.signed).values()
        return linear.abs() ** 2 * linear.sign()
