"""One scale per row."""

from dataclasses import dataclass

from qmaps.normalize._slices import Slices


@dataclass(frozen=True)
class PerRow(Slices, name="row"):
    """The largest magnitude of each ``x[i]``, over all other dimensions; 1-D: ``B128``.

    Source: 4-bit optimizers, section 3 ("per-row").
    """

    def dimension(self, dims: int) -> int:
        return 0
