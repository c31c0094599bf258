"""The base class of maps: a frozen set of fields and a codebook computed from them."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, ParamSpec, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from qmaps.errors import BadValueError, check_bool, check_int, check_number, shown
from qmaps.registry import refuse_built_in

P = ParamSpec("P")
T = TypeVar("T")

REGISTRY: dict[str, type[Map]] = {}
"""Every map class by its spec name."""

MOST_BEND = 2.0**20
"""Largest `Map.bend`; with it nearly every value takes the upper neighbour."""


@dataclass(frozen=True)
class Map(ABC):
    """A map from codes to values: code ``c`` stands for ``codebook()[c]``.

    Subclasses are frozen dataclasses that give a formula. Declaring one with a spec name,
    ``class Cubic(Map, name="cubic")``, makes the spec ``B128/cubic@4s`` valid everywhere.

    Attributes:
        bits: width of a code in bits; see `widths`.
        signed: whether the codebook covers [-1, 1] or [0, 1].
    """

    spec_name: ClassVar[str] = ""
    signs: ClassVar[tuple[bool, ...]] = (True, False)
    """The values of `signed` that the formula allows; the first is the default of a spec."""
    fitted: ClassVar[bool] = False
    """Whether the codebook comes from data; see `qmaps.maps.fitted`."""
    log_domain: ClassVar[bool] = False
    """Whether the codebook divides a block's log2 range; then it needs ``logB<n>``."""
    bits: int
    signed: bool = True

    def __init_subclass__(cls, *, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name is not None:
            refuse_built_in(name, cls, REGISTRY, "map")
            cls.spec_name = name
            REGISTRY[name] = cls

    def __post_init__(self) -> None:
        check_bool("signed", self.signed)
        if self.signed not in self.signs:
            allowed = "signed (s)" if self.signs[0] else "unsigned (u)"
            actual = "signed (s)" if self.signed else "unsigned (u)"
            raise BadValueError(f"{self.spec_name} must be {allowed}, got {actual}")
        check_int("bits", self.bits)
        widths = self.widths(self.signed)
        if self.bits not in widths:
            span = f"{widths[0]}" if len(widths) == 1 else f"{widths[0]} to {widths[-1]}"
            sign = "signed" if self.signed else "unsigned"
            raise BadValueError(
                f"bits={shown(self.bits)} is not allowed for {sign} {self.spec_name}; its widths "
                f"are {span} bits"
            )
        check_number("bend", self.bend)
        if not 0 <= self.bend <= MOST_BEND:
            raise BadValueError(
                f"bend={shown(self.bend)} of {self.spec_name} must be between 0 and 2**20"
            )

    @property
    def counted(self) -> bool:
        """True if the codebook is stored, and counted, with every tensor."""
        return self.fitted

    @property
    def position_rounding(self) -> bool:
        """True if stochastic rounding is unbiased in log2 ranges instead of the value."""
        return False

    @property
    def bend(self) -> float:
        """How far stochastic rounding prefers the upper of two neighbours, from 0 to 2**20.

        A value at the fraction f of the gap above its lower neighbour takes the upper one with
        probability ``(1 + bend) * f / (1 + bend * f)``: f where it is 0, so that the mean is the
        value.
        """
        return 0.0

    def widths(self, signed: bool) -> range:
        """Widths in bits allowed by the formula for this sign."""
        return range(2, 9)

    @classmethod
    def widths_of(cls, signed: bool) -> range:
        """The widths of this class with its default fields; empty if it has none of that sign.

        >>> from qmaps.maps import NormalFloat4
        >>> NormalFloat4.widths_of(signed=True)
        range(4, 5)
        """
        for bits in range(1, 17):
            with contextlib.suppress(BadValueError):
                return cls(bits=bits, signed=signed).widths(signed)
        return range(0)

    @classmethod
    def near(cls, bits: int, signed: bool | None = None) -> Self:
        """The map of this class with the width nearest to `bits`; the narrower one of two.

        Without `signed` it has the sign of a spec without one.

        >>> from qmaps.maps import NormalFloat4
        >>> str(NormalFloat4.near(8))
        'nf4@4s'
        """
        signed = cls.signs[0] if signed is None else signed
        widths = cls.widths_of(signed)
        # A class without any width raises its own error here.
        nearest = min(widths, key=lambda width: abs(width - bits), default=bits)
        return cls(bits=nearest, signed=signed)

    @abstractmethod
    def values(self) -> Tensor:
        """The codebook before rounding to float32: ascending float64, at most ``2**bits``."""

    def codebook(self) -> Tensor:
        """The codebook: ascending float32 values on the CPU, at most ``2**bits`` of them."""
        return table(self).clone()

    def thresholds(self) -> Tensor:
        """Largest float32 with the lower code, for each pair of neighbours.

        Here a value takes the nearest code, and a tie goes to the lower one. A map may place its
        thresholds elsewhere, as one does that rounds in another domain.

        Returns:
            Ascending float32 values on the CPU, one fewer than the codebook has. Each is at least
            the lower of its two neighbours and below the upper one.
        """
        return thresholds(table(self))

    def for_scales(self, *, powers_of_two: bool = False, ones: bool = False) -> Map:
        """This map under scales that are powers of two, or 1, or under others.

        A floating-point format then has values that are exact in binary, or those of the format;
        every other map is the same under all.
        """
        return self

    @property
    def spec(self) -> str:
        """The map's part of a spec, such as ``DE@8s`` or ``mantissa(offset=2)@8s``."""
        changed = [
            f"{field.name}={str(value).lower()}"
            for field in fields(self)
            if field.name not in ("bits", "signed")
            and (value := getattr(self, field.name)) != field.default
        ]
        arguments = f"({','.join(changed)})" if changed else ""
        return f"{self.spec_name}{arguments}@{self.bits}{'s' if self.signed else 'u'}"

    def __str__(self) -> str:
        return self.spec


def check_range(name: str, value: Any, low: int, high: int) -> None:
    """Raise unless the field `name` is an int from `low` to `high`."""
    check_int(name, value)
    if not low <= value <= high:
        raise BadValueError(f"{name}={shown(value)} must be between {low} and {high}")


def cached(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: keep the results for the last `maxsize` arguments, made with real tensors.

    Without a device of their own, tensors are made on the CPU. Neither ``torch.device("meta")`` as
    a context nor a mode of fake tensors reaches them, for later calls get them too.
    """

    def decorate(make: Callable[P, T]) -> Callable[P, T]:
        @functools.lru_cache(maxsize)
        @functools.wraps(make)
        def made(*args: P.args, **kwargs: P.kwargs) -> T:
            with _disable_current_modes(), torch.device("cpu"):
                return make(*args, **kwargs)

        return cast("Callable[P, T]", made)

    return decorate


@cached(512)
def table(map_: Map) -> Tensor:
    """The float32 codebook of `map_`, shared between callers: do not write to it."""
    return map_.values().to(torch.float32)


@cached(512)
def limits(map_: Map) -> Tensor:
    """The thresholds of `map_`, shared between callers: do not write to it."""
    return map_.thresholds()


def thresholds(codebook: Tensor) -> Tensor:
    """For each two ascending neighbours, the largest float32 that is not nearer to the upper one.

    Then ``code = number of thresholds below n`` is exact without any arithmetic on n. The midpoint
    is kept as an unevaluated float64 sum (two-sum), so its rounding is known. Equal neighbours take
    the threshold after them. Equal neighbours at the end of the codebook take the largest finite
    float32, which only infinity exceeds.
    """
    low, high = codebook[:-1].double(), codebook[1:].double()
    total = low + high
    virtual = total - low
    lost = (low - (total - virtual)) + (high - virtual)  # low + high == total + lost, exactly
    middle = total / 2
    rounded = middle.float()
    wide = rounded.double()
    above = (wide > middle) | ((wide == middle) & (lost < 0))
    down = torch.nextafter(rounded, rounded.new_tensor(-torch.inf))
    limits = torch.where(above, down, rounded)
    limits = torch.where(low == high, torch.finfo(torch.float32).max, limits)
    return limits.flip(0).cummin(0).values.flip(0)


def mirror(magnitudes: Sequence[float], *extra: float, signed: bool) -> Tensor:
    """Ascending float64: `magnitudes`, their negatives if `signed`, and `extra`, each once."""
    negatives = [-magnitude for magnitude in magnitudes] if signed else []
    # The first of two equal numbers stays, so that zero has no sign.
    return torch.tensor(sorted({*extra, *magnitudes, *negatives}), dtype=torch.float64)


@functools.cache
def cell_midpoints(levels: int, low: float = 0.1, high: float = 1.0) -> tuple[float, ...]:
    """The midpoints of ``2**levels`` equal cells of [`low`, `high`], ascending."""
    cells = 2**levels
    return tuple((low + (high - low) * (np.arange(cells) + 0.5) / cells).tolist())
