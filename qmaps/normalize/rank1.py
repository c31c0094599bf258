"""The minimum of the maxima along every dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qmaps.normalize.row import Slices


@dataclass(frozen=True)
class Rank1(Slices, name="rank1"):
    """For two dimensions ``scale[i, j] = min(max_j |x[i, j]|, max_i |x[i, j]|)``.

    For any number of dimensions, the minimum over them of the largest magnitude of the slice
    that an element lies in. An outlier row or column raises no scale but its own. 0-d and
    1-D tensors: ``B128``.

    Source: 4-bit optimizers, section 4.2 and appendix E.2 (algorithm 4).
    """

    aliases: ClassVar[tuple[str, ...]] = ("rank-1",)

    def dimensions(self, dims: int) -> Sequence[int]:
        return range(dims)
