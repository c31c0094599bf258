"""Transforms before a map: odd functions that grow from -1 to 1, given by their inverses."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.maps.base import check_range


@dataclass(frozen=True)
class Transform(ABC):
    """A transform T with T(0) = 0 and T(1) = 1, as its inverse."""

    name: ClassVar[str]
    number: ClassVar[str | None] = None
    """The name of its number, which follows the name in a spec."""
    integral: ClassVar[bool] = True
    """True if the number is an int."""

    @abstractmethod
    def expanded(self, transforms: Tensor) -> Tensor:
        """The values with these transforms.

        Args:
            transforms: float64 of any shape, in [-1, 1].
        """

    @property
    def spec(self) -> str:
        """Its name and number, such as ``mu-law255``."""
        if self.number is None:
            return self.name
        return f"{self.name}{repr(getattr(self, self.number)).removesuffix('.0')}"


@dataclass(frozen=True)
class SquareRootOf(Transform):
    """``sqrt(x)``: finer near zero."""

    name: ClassVar[str] = "sqrt"

    def expanded(self, transforms: Tensor) -> Tensor:
        return transforms * transforms.abs()


@dataclass(frozen=True)
class SoftsignOf(Transform):
    """``2x / (1 + |x|)``: four times as fine at zero as at 1."""

    name: ClassVar[str] = "softsign"

    def expanded(self, transforms: Tensor) -> Tensor:
        return transforms / (2 - transforms.abs())


@dataclass(frozen=True)
class MuLawOf(Transform):
    """``log(1 + mu x) / log(1 + mu)``, with the sign of x.

    Attributes:
        mu: from 1 to 1048576; the larger, the finer near zero.
    """

    name: ClassVar[str] = "mu-law"
    number: ClassVar[str | None] = "mu"
    mu: int = 255

    def __post_init__(self) -> None:
        check_range("mu", self.mu, 1, 2**20)

    def expanded(self, transforms: Tensor) -> Tensor:
        grown = (transforms.abs() * math.log1p(self.mu)).expm1() / self.mu
        return grown * transforms.sign()


@dataclass(frozen=True)
class PowerOf(Transform):
    """``x**p``, with the sign of x.

    Attributes:
        p: from 1/64 to 64; below 1 finer near zero, above 1 finer near 1.
    """

    name: ClassVar[str] = "pow"
    number: ClassVar[str | None] = "p"
    integral: ClassVar[bool] = False
    p: float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.p, bool) or not isinstance(self.p, (int, float)):
            raise BadTypeError(f"p={shown(self.p)} must be a float")
        if not 1 / 64 <= self.p <= 64:
            raise BadValueError(f"p={shown(self.p)} must be between 1/64 and 64")
        object.__setattr__(self, "p", float(self.p))  # the way a frozen dataclass does it

    def expanded(self, transforms: Tensor) -> Tensor:
        return transforms.abs() ** (1 / self.p) * transforms.sign()


@dataclass(frozen=True)
class LogarithmOf(Transform):
    """``1 + log2(x) / octaves`` of x from ``2**-octaves`` to 1, with the sign of x; 0 of 0.

    Attributes:
        octaves: from 1 to 120.
    """

    name: ClassVar[str] = "log"
    number: ClassVar[str | None] = "octaves"
    octaves: int = 16

    def __post_init__(self) -> None:
        check_range("octaves", self.octaves, 1, 120)

    def expanded(self, transforms: Tensor) -> Tensor:
        return ((transforms.abs() - 1) * self.octaves).exp2() * transforms.sign()


TRANSFORMS: tuple[type[Transform], ...] = (
    SquareRootOf, SoftsignOf, MuLawOf, PowerOf, LogarithmOf
)  # fmt: skip


def written() -> list[str]:
    """Forms of the transforms in specs."""
    return [cls.name if cls.number is None else f"{cls.name}<{cls.number}>" for cls in TRANSFORMS]


def named(text: str) -> Transform | None:
    """The transform named `text`, such as ``sqrt`` or ``mu-law15``."""
    for cls in TRANSFORMS:
        pattern = re.escape(cls.name)
        if cls.number is not None:
            pattern += r"(\d{1,9})" if cls.integral else r"(\d+(?:\.\d+)?)"
        match = re.fullmatch(pattern, text, re.IGNORECASE | re.ASCII)
        if match is not None:
            kind = int if cls.integral else float
            return cls(*map(kind, match.groups()))
    return None
