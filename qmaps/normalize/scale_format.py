"""Scales stored in other formats than float32."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.errors import SpecError
from qmaps.normalize.base import Layout, Minimum, Normalizer, Scales, Shape, refuse_combined
from qmaps.normalize.geometry import Extent, Geometry
from qmaps.normalize.scale_kind import ScaleKind
from qmaps.registry import refuse_built_in

SUFFIXES: dict[str, type[ScaleFormat]] = {}
"""Every scale format by its suffix, such as ``x8``."""


@dataclass(frozen=True)
class ScaleFormat(Normalizer):
    """``inner`` with its scales in another format.

    One declared with a suffix, ``class Half(ScaleFormat, suffix="xhalf")``, is found in specs
    after the name of any dividing normalizer: ``B32xhalf``, ``rowxhalf``.
    """

    suffix: ClassVar[str] = ""
    dtype: ClassVar[torch.dtype]
    """Of each stored scale."""
    kind: ClassVar[ScaleKind | None] = None
    """Format for engines, FLOAT32 for codes of a grid; None means that no engine reads it."""
    shared: ClassVar[int] = 0
    """Float32 numbers that are stored besides, which depend on all scales of the tensor."""
    inner: Normalizer

    def __init_subclass__(cls, *, suffix: str | None = None) -> None:
        super().__init_subclass__()
        if suffix is not None:
            refuse_built_in(suffix, cls, SUFFIXES, "format of scales")
            cls.suffix = suffix
            SUFFIXES[suffix] = cls

    def __post_init__(self) -> None:
        refuse_combined([self.inner], f"'{self.suffix}'")
        if isinstance(self.inner, (ScaleFormat, Minimum)):
            raise SpecError(
                f"{self.inner.spec} cannot be followed by '{self.suffix}'; '{self.suffix}' follows "
                "the name of one normalizer"
            )

    @property
    def spec(self) -> str:
        return f"{self.inner.spec}{self.suffix}"

    @property
    def clips(self) -> bool:
        return self.inner.clips

    def layout(self, shape: Shape) -> Layout:
        parts = tuple((self.dtype, part) for _, part in self.inner.layout(shape))
        return (*parts, (torch.float32, (self.shared,))) if self.shared else parts

    def geometry(self, shape: Shape) -> Geometry | None:
        inner = self.inner.geometry(shape)
        if inner is None or self.kind is None:
            return None
        ends = inner.arrays if self.shared else None
        parts = tuple(replace(part, stored=self.kind, ends=ends) for part in inner.parts)
        return replace(inner, parts=parts, arrays=inner.arrays + (self.shared > 0))

    def extents(self, dims: int) -> tuple[Extent, ...] | None:
        inner = self.inner.extents(dims)
        if inner is None or not self.shared:
            return inner
        return (*inner, Extent())

    def scales(self, x: Tensor) -> Scales:
        parts = self.inner.scales(x)
        return self.stored(parts, self.ends(parts))

    def ends(self, parts: Sequence[Tensor]) -> Tensor:
        """The smallest and the largest nonzero float32 scale."""
        joined = torch.cat([part.reshape(-1) for part in parts])
        if not self.shared:
            return joined.new_zeros(2)  # which `stored` does not look at
        positive = joined[joined != 0]
        if positive.numel():
            return torch.stack([positive.amin(), positive.amax()])  # NaN wins both comparisons
        return joined.new_zeros(2)

    @abstractmethod
    def stored(self, parts: Sequence[Tensor], ends: Tensor) -> Scales:
        """Float32 scales in the parts of `layout`; `ends` are those of the whole tensor."""

    @abstractmethod
    def read(self, scales: Scales) -> Scales:
        """The float32 values of stored scales, in the parts of ``inner``."""

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        return self.inner.expand(self.read(scales), shape)


@dataclass(frozen=True)
class FloatScales(ScaleFormat):
    """A format with independent scales: by default the nearest numbers of `dtype`."""

    @property
    def clips(self) -> bool:
        return not self.powers_of_two or self.inner.clips

    def stored(self, parts: Sequence[Tensor], ends: Tensor) -> Scales:
        return tuple(self.rounded(part) for part in parts)

    def read(self, scales: Scales) -> Scales:
        return tuple(self.widened(part) for part in scales)

    def rounded(self, scale: Tensor) -> Tensor:
        """Non-negative float32 scales as `dtype`."""
        return nearest_float(scale, self.dtype)

    def widened(self, stored: Tensor) -> Tensor:
        """The float32 values of stored scales."""
        return stored.float()


def nearest_float(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest number of float16 or bfloat16, a tie going to the even one.

    A finite scale stays finite: it becomes at most the largest number of the dtype. A nonzero scale
    becomes at least the smallest number.
    """
    info = torch.finfo(dtype)
    floor = torch.where(scale > 0, info.smallest_normal * info.eps, 0.0)
    bounded = torch.where(scale.isfinite(), scale.clamp(max=info.max), scale)
    return torch.maximum(bounded, floor).to(dtype)
