"""Even steps of log2 within a block, without zero."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.maps.log2 import Log2


@dataclass(frozen=True)
class Log2NonZero(Log2, name="log2-0"):
    """`log2` without its zero: all codes are positions in a block's log2 range.

    Codes 0..2**bits-1 are evenly spaced in log2 from the lower to the upper end of the range of a
    ``logB<n>``. Zeros and values below the lower end take that; a block of zeros stays zeros.
    Unsigned.

    Source: SOLO, Xu et al., 2025 (package solow 0.2.0, "qema"); there code 0 is the upper end.

    Attributes:
        in_log: whether stochastic rounding (``+sr``) is unbiased in log2 of the value, as SOLO's,
            and not in the value.
    """

    def values(self) -> Tensor:
        steps = 2**self.bits - 1
        return torch.arange(steps + 1, dtype=torch.float64).div(steps)
