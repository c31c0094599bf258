"""One scale per column."""

from collections.abc import Sequence
from dataclasses import dataclass

from qmaps.normalize.row import Slices


@dataclass(frozen=True)
class PerColumn(Slices, name="col"):
    """The largest magnitude of each ``x[..., j]``, over all other dimensions; 1-D: ``B128``.

    Source: 4-bit optimizers, section 3 ("per-column").
    """

    def dimensions(self, dims: int) -> Sequence[int]:
        return (dims - 1,)
