"""Maps whose codebook is computed from data, and the computations that need an engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, Self

from torch import Tensor

from qmaps.errors import BadValueError, NonFiniteError
from qmaps.maps.base import Map
from qmaps.maps.codebook import Codebook


@dataclass(frozen=True)
class FittedMap(Map):
    """A map whose codebook is computed from the normalized values of a tensor."""

    fitted: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    """Whether the fit looks at weights."""

    def values(self) -> Tensor:
        """Raise: there is no codebook before `fit`."""
        raise BadValueError(
            f"{self.spec} has no codebook until it is fitted to data; "
            "call Quantizer.fit(x) or Map.fit(values)"
        )

    def fit(self, values: Tensor, weights: Tensor | None = None) -> Codebook:
        """The codebook fitted to `values`, frozen.

        Args:
            values: normalized values of any shape, read as float32.
            weights: importance of each value, same shape; only least-squares fits use it.
                A quantizer passes the squared scales, so that the fit minimizes the error
                of the tensor and not that of the normalized values.
        """
        return self.fit_each([self], values, weights)[0]

    @classmethod
    def fit_each(
        cls, maps: Sequence[Self], values: Tensor, weights: Tensor | None = None
    ) -> list[Codebook]:
        """The codebooks of several maps of this class fitted to the same `values`.

        Args:
            maps: at least one.
            values: normalized values of any shape, read as float32. For an empty tensor every
                codebook is all zeros.
            weights: importance of each value, same shape; see `fit`.

        Returns:
            One frozen codebook for each map, in the same order.

        Raises:
            NonFiniteError: `values` holds NaN or infinity.
        """
        flat = values.detach().reshape(-1).float()
        if bad := int((~flat.isfinite()).sum()):
            raise NonFiniteError(
                f"values holds {bad} NaN or infinite elements; {maps[0].spec} can only be fitted "
                "to finite values"
            )
        if flat.numel() == 0:
            fitted = [flat.new_zeros(2**map_.bits) for map_ in maps]
        else:
            weights = None if weights is None else weights.reshape(-1)
            fitted = cls.fit_values_each(maps, flat, weights)
        return [
            Codebook(
                codebook.cpu(), bits=map_.bits, signed=map_.signed, label=map_.spec, per_tensor=True
            )
            for map_, codebook in zip(maps, fitted, strict=True)
        ]

    @classmethod
    def fit_values_each(
        cls, maps: Sequence[Self], values: Tensor, weights: Tensor | None
    ) -> list[Tensor]:
        """`fit_values` of several maps; override it to share the work that they have in common.

        `values` are float32 of shape (n,), n at least 1, all finite; `weights` None if all count
        the same.
        """
        return [map_.fit_values(values, weights) for map_ in maps]

    @abstractmethod
    def fit_values(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """The ascending codebook fitted to 1-D non-empty float32 `values`."""


def engine() -> ModuleType:
    """The module with the heavy parts of fits, `quantiles` and `cells`."""
    from qmaps.ops import fit

    return fit
