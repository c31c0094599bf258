"""Even steps of log2 between a block's smallest and largest magnitude."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.maps.base import Map


@dataclass(frozen=True)
class Log2(Map, name="log2"):
    """Positions in a block's log2 range; goes with ``logB<n>`` and with nothing else.

    Code 0 is exact zero; codes 1..2**bits-1 are evenly spaced in log2 from the block's
    smallest to its largest non-zero magnitude. The codebook holds those positions, 0 to 1,
    and -1 for zero. Unsigned.

    Source: 8-bit Adafactor, "log-space quantization".

    Attributes:
        in_log: whether stochastic rounding (``+sr``) is unbiased in log2 of the value, as SOLO's,
            and not in the value.
    """

    signs: ClassVar[tuple[bool, ...]] = (False,)
    log_domain: ClassVar[bool] = True

    signed: bool = False
    in_log: bool = False

    @property
    def position_rounding(self) -> bool:
        return self.in_log

    def values(self) -> Tensor:
        steps = 2**self.bits - 2
        positions = torch.arange(steps + 1, dtype=torch.float64) / steps
        return torch.cat([torch.tensor([-1.0], dtype=torch.float64), positions])
