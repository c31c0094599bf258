"""Maps of transformed values, such as the square root's, with rounding among the transforms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.errors import BadTypeError, BadValueError, check_bool, shown
from qmaps.maps._transforms import SquareRootOf, Transform, named, written
from qmaps.maps.base import Map, table, thresholds
from qmaps.maps.codebook import Codebook
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

    @property
    def inner(self) -> Map:
        """Map of the transforms."""
        return Linear0(self.bits, self.signed)

    def values(self) -> Tensor:
        return self.transform.expanded(self.inner.values())

    def thresholds(self) -> Tensor:
        if self.nearest:
            return thresholds(table(self))
        return thresholds_within(self.transform.expanded, self.inner.values())


def thresholds_within(expanded: Callable[[Tensor], Tensor], transforms: Tensor) -> Tensor:
    """The thresholds of a map that rounds in a transformed domain.

    They are the largest numbers that are not above the values whose transforms are halfway between
    neighbours, for ascending float64 `transforms` of the map's values. Where two values are the
    same in float32, the threshold is that of rounding to the nearest value.
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


_SQUARE_ROOT, _LINEAR = SquareRootOf(), Linear0(8)


@dataclass(frozen=True, init=False)
class Transformed(CompandedMap):
    """The values whose transforms are those of another map: the map after a transform.

    ``sqrt:DE@8u`` holds the squares of the values of ``DE@8u``. A value takes the code whose
    transform is nearest to its own: each threshold is where the transform is halfway between those
    of two neighbours; a tie goes to the lower code. With `nearest` thresholds are halfway between
    values instead. Stochastic rounding is unbiased in the value under both.

    The transforms are ``sqrt``, ``softsign`` (``2x / (1 + |x|)``), ``mu-law<mu>``, ``pow<p>``
    (``x**p``) and ``log<octaves>``, all with the sign of x. ``sqrt:linear0``, ``softsign:linear0``
    and ``mu-law255:linear0`` are the maps `sqrt`, `softsign` and `mu-law`.

    Args:
        transform: its name in specs, such as ``"sqrt"`` or ``"pow0.25"``.
        inner: a map with a formula, whose values lie in [-1, 1], and without a transform of its
            own.
        nearest: place thresholds halfway between values, not between their transforms.

    >>> from qmaps.maps import Linear, Transformed
    >>> Transformed("sqrt", Linear(2, signed=False)).codebook()
    tensor([0.0625, 0.2500, 0.5625, 1.0000])
    """

    transform: Transform = _SQUARE_ROOT
    inner: Map = _LINEAR

    def __init__(self, transform: str | Transform, inner: Map, *, nearest: bool = False) -> None:
        function = named(transform) if isinstance(transform, str) else transform
        if not isinstance(function, Transform):
            raise BadValueError(
                f"transform={shown(transform)} is none of {', '.join(written())}, such as sqrt"
            )
        if not isinstance(inner, Map):
            raise BadTypeError(f"inner={shown(inner)} must be a map")
        unsuitable = (Codebook, CompandedMap)
        if inner.fitted or inner.log_domain or isinstance(inner, unsuitable):
            raise BadValueError(
                f"inner={inner.spec} cannot follow a transform; it must be a map with a formula "
                "and without a transform of its own"
            )
        if float(table(inner).abs().max()) > 1:
            raise BadValueError(f"inner={inner.spec} has values above 1; transforms end there")
        check_bool("nearest", nearest)
        self.__dict__.update(  # as the dataclass is frozen
            bits=inner.bits, signed=inner.signed, inner=inner, transform=function, nearest=nearest
        )

    def widths(self, signed: bool) -> range:
        return self.inner.widths(signed)

    @property
    def spec(self) -> str:
        name, _, width = self.inner.spec.rpartition("@")
        fields = "nearest=true" if self.nearest else ""
        if fields and name.endswith(")"):
            name = f"{name[:-1]},{fields})"
        elif fields:
            name = f"{name}({fields})"
        return f"{self.transform.spec}:{name}@{width}"
