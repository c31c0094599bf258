"""Maps whose codebook is computed from data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor

from qmaps.errors import BadValueError, NonFiniteError
from qmaps.maps.base import Map
from qmaps.maps.codebook import Codebook


class FitFunctions(NamedTuple):
    """The heavy parts of fits; every engine has its own, with the same bits.

    Attributes:
        quantiles: ``quantiles(values, num, offset=None)`` of finite 1-D `values`: exact ones on the
            CPU, on CUDA those of SRAM-Quantiles.
        cells: ``cells(values, weights)``, a `qmaps.maps.lloyd.Cells`.
    """

    quantiles: Callable[..., Tensor]
    cells: Callable[[Tensor, Tensor | None], Any]


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

    def fit(
        self,
        values: Tensor,
        weights: Tensor | None = None,
        functions: FitFunctions | None = None,
    ) -> Codebook:
        """The codebook fitted to `values`, frozen.

        Args:
            values: normalized values of any shape, read as float32.
            weights: importance of each value, same shape; only least-squares fits use it.
                A quantizer passes the squared scales, so that the fit minimizes the error
                of the tensor and not that of the normalized values.
            functions: those of an engine; if left out, of the engine in use.
        """
        return self.fit_each([self], values, weights, functions)[0]

    @classmethod
    def fit_each(
        cls,
        maps: Sequence[Self],
        values: Tensor,
        weights: Tensor | None = None,
        functions: FitFunctions | None = None,
    ) -> list[Codebook]:
        """The codebooks of several maps of this class fitted to the same `values`.

        Args:
            maps: at least one.
            values: normalized values of any shape, read as float32. For an empty tensor every
                codebook is all zeros.
            weights: importance of each value, same shape; see `fit`.
            functions: see `fit`.

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
            given = _functions(cls.fit_values_each, functions or in_use())
            fitted = cls.fit_values_each(maps, flat, weights, **given)
        return [
            Codebook(
                codebook.cpu(), bits=map_.bits, signed=map_.signed, label=map_.spec, per_tensor=True
            )
            for map_, codebook in zip(maps, fitted, strict=True)
        ]

    @classmethod
    def fit_values_each(
        cls,
        maps: Sequence[Self],
        values: Tensor,
        weights: Tensor | None,
        functions: FitFunctions | None = None,
    ) -> list[Tensor]:
        """`fit_values` of several maps; override it to share the work that they have in common.

        `values` are float32 of shape (n,), n at least 1, all finite; `weights` None if all count
        the same. `functions` are passed to methods that have this parameter.
        """
        functions = functions or in_use()
        return [
            map_.fit_values(values, weights, **_functions(map_.fit_values, functions))
            for map_ in maps
        ]

    @abstractmethod
    def fit_values(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """The ascending codebook fitted to 1-D non-empty float32 `values`."""


def _functions(fit: Callable[..., Any], functions: FitFunctions) -> dict[str, Any]:
    """The argument `functions` of a method, if it has this parameter."""
    return {"functions": functions} if "functions" in signature(fit).parameters else {}


def in_use() -> FitFunctions:
    """The functions of the engine in use."""
    from qmaps.ops.fit import FUNCTIONS

    return FUNCTIONS
