"""The base class of normalizers: the scales of a tensor, and the scale of each element."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from qmaps.errors import BadTypeError, SpecError
from qmaps.maps.base import Map
from qmaps.normalize.geometry import Extent, Geometry, Part
from qmaps.registry import refuse_built_in

if TYPE_CHECKING:
    from qmaps.algebra.quantizer import Quantizer

Shape = tuple[int, ...]
Layout = tuple[tuple[torch.dtype, Shape], ...]
Scales = tuple[Tensor, ...]

REGISTRY: list[type[Normalizer]] = []
"""Every normalizer class that a spec can name."""


@dataclass(frozen=True)
class Normalizer(ABC):
    """Divides a tensor by scales so that a map's codebook, [-1, 1] or [0, 1], covers it.

    Subclasses are frozen dataclasses. One declared with a spec name,
    ``class Diagonal(Normalizer, name="diagonal")``, is found in specs under that name; one
    with parameters overrides `parse` as well.
    """

    spec_name: ClassVar[str] = ""
    """How the error for an unknown spec shows this normalizer."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names that specs may use."""
    log_domain: ClassVar[bool] = False
    """Whether it spans a log2 range, for maps of the same kind, instead of dividing."""
    linear: ClassVar[bool] = True
    """Whether an element decodes to a value of the codebook times its scale."""

    def __init_subclass__(cls, *, name: str | None = None, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if name is not None:
            by_name = {label: n for n in REGISTRY for label in (n.spec_name, *n.aliases)}
            refuse_built_in(name, cls, by_name, "normalizer")
            cls.spec_name = name
            REGISTRY.append(cls)

    @classmethod
    def parse(cls, text: str) -> Normalizer | None:
        """The normalizer named `text` (without suffixes and ``&``), or None."""
        names = (cls.spec_name, *cls.aliases)
        return cls() if text.lower() in {name.lower() for name in names} else None

    @property
    @abstractmethod
    def spec(self) -> str:
        """The normalizer's part of a spec, such as ``B128``."""

    @abstractmethod
    def layout(self, shape: Shape) -> Layout:
        """Data type and shape of each stored part of the scales of a tensor of `shape`."""

    def zero_scales(self, shape: Shape, device: torch.device | str = "cpu") -> Scales:
        """Scales of a tensor of zeros, in the parts of `layout`."""
        layout = self.layout(shape)
        return tuple([torch.zeros(size, dtype=dtype, device=device) for dtype, size in layout])

    @abstractmethod
    def scales(self, x: Tensor) -> Scales:
        """Scales of float32 `x`, in the parts of `layout`."""

    @abstractmethod
    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        """Float32 scale of each element, of a shape broadcastable to `shape`."""

    def geometry(self, shape: Shape) -> Geometry | None:
        """The same as `expand` in numbers, for the fast engines; None leaves it to `reference`."""
        return None

    @property
    def clips(self) -> bool:
        """True if an element can be larger than its scale after rounding."""
        return False

    @property
    def ones(self) -> bool:
        """True if every scale is 1; see `Map.for_scales`."""
        return False

    @property
    def alone(self) -> bool:
        """True if it combines neither with others under ``&`` nor with a format of scales."""
        return self.ones or not self.linear

    @property
    def powers_of_two(self) -> bool:
        """True if every scale is a power of two; see `Map.for_scales`."""
        return False

    def extents(self, dims: int) -> tuple[Extent, ...] | None:
        """Extent of each stored part in a tensor of `dims` dimensions.

        None if shards of a tensor cannot have such scales.
        """
        return None

    def normalize(self, x: Tensor, scales: Scales) -> Tensor:
        """``x / scale`` in one float32 division; 0 where the scale is 0."""
        scale = self.expand(scales, tuple(x.shape))
        return torch.where(scale == 0, torch.zeros_like(x), x / scale)

    def denormalize(self, values: Tensor, scales: Scales) -> Tensor:
        """``values * scale`` in one float32 product."""
        return values * self.expand(scales, tuple(values.shape))

    def __and__(self, other: Normalizer) -> Minimum:
        if not isinstance(other, Normalizer):
            kind = type(other).__name__
            raise BadTypeError(f"{self.spec} & {kind}: '&' needs a normalizer on its right")
        return Minimum(self, other)

    def __truediv__(self, map_: Map) -> Quantizer:
        if not isinstance(map_, Map):
            kind = type(map_).__name__
            raise BadTypeError(
                f"{self.spec} / {kind}: '/' needs a map on its right, such as one of qmaps.maps"
            )
        from qmaps.algebra.quantizer import Quantizer

        return Quantizer(self, map_)

    def __str__(self) -> str:
        return self.spec


@dataclass(frozen=True, init=False)
class Minimum(Normalizer):
    """``A & B``: each element is divided by the smaller of its scales under A and under B.

    Both bound the element's magnitude, so nothing clips. All scales are stored.

    Source: 4-bit optimizers, section 4.2 (rank-1).
    """

    parts: tuple[Normalizer, ...]

    def __init__(self, *parts: Normalizer) -> None:
        refuse_combined(parts, "'&'")
        flat = [p for part in parts for p in (part.parts if isinstance(part, Minimum) else (part,))]
        object.__setattr__(self, "parts", tuple(flat))  # the way a frozen dataclass does it

    @property
    def spec(self) -> str:
        return "&".join(part.spec for part in self.parts)

    def layout(self, shape: Shape) -> Layout:
        return tuple(entry for part in self.parts for entry in part.layout(shape))

    def geometry(self, shape: Shape) -> Geometry | None:
        joined: tuple[Part, ...] = ()
        arrays = 0
        for part in self.parts:
            if (part_geometry := part.geometry(shape)) is None:
                return None
            joined += part_geometry.shifted(arrays)
            arrays += part_geometry.arrays
        return Geometry(joined, arrays)

    @property
    def clips(self) -> bool:
        return any(part.clips for part in self.parts)

    @property
    def powers_of_two(self) -> bool:
        return all(part.powers_of_two for part in self.parts)

    def extents(self, dims: int) -> tuple[Extent, ...] | None:
        all_extents = [part.extents(dims) for part in self.parts]
        if any(extents_of is None for extents_of in all_extents):
            return None
        return tuple(extent for extents_of in all_extents for extent in extents_of or ())

    def scales(self, x: Tensor) -> Scales:
        return tuple(scale for part in self.parts for scale in part.scales(x))

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        expanded = []
        for part in self.parts:
            count = len(part.layout(shape))
            expanded.append(part.expand(scales[:count], shape))
            scales = scales[count:]
        return reduce(torch.minimum, expanded)


@lru_cache(maxsize=4096)
def geometry_of(normalizer: Normalizer, shape: Shape) -> Geometry | None:
    """`Normalizer.geometry`, remembered."""
    return normalizer.geometry(shape)


def largest(x: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """The largest magnitude over `dims` (all if None), 0 where there are no elements."""
    dimensions = [] if dims is None else [d for d in range(x.dim()) if d not in dims]
    if x.numel() == 0:
        return x.new_zeros([x.shape[d] for d in dimensions])
    return x.abs().amax() if dims is None else x.abs().amax(dim=tuple(dims))


def refuse_combined(parts: Sequence[Normalizer], role: str) -> None:
    """Raise if one of `parts` does not divide by maxima, as `role` requires."""
    for part in parts:
        if part.alone:
            maps = ", with the maps log2 and log2-0" if part.log_domain else ""
            raise SpecError(f"{part.spec} cannot be combined with {role}; it works alone{maps}")
