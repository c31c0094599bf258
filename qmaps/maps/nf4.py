"""The 4-bit normal float of QLoRA."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.maps.base import Map

QLORA_NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


@dataclass(frozen=True)
class NormalFloat4(Map, name="nf4"):
    """Sixteen quantiles of the normal distribution with an exact zero, in [-1, 1].

    4 bits, signed. Values as the paper prints them, for they round differently when computed.

    Source: QLoRA (Dettmers et al., 2023), appendix E.
    """

    signs: ClassVar[tuple[bool, ...]] = (True,)

    def widths(self, signed: bool) -> range:
        return range(4, 5)

    def values(self) -> Tensor:
        return torch.tensor(QLORA_NF4, dtype=torch.float64)
