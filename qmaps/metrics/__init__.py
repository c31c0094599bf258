"""Error metrics of one quantized tensor, one file each.

A metric is a function named as its file: ``metric(x, decoded, codes, size) -> float`` with
float32 `x` and `decoded` of one shape, their int32 `codes`, and the `size` of the codebook.
Sums are taken in float64. An empty tensor gives NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from qmaps._discover import modules

Metric = Callable[[Tensor, Tensor, Tensor, int], float]

METRICS: dict[str, Metric] = {}
"""Every metric by name."""

for _module in modules(__name__, list(__path__)):
    _name = _module.__name__.rpartition(".")[2]
    METRICS[_name] = getattr(_module, _name)


def measure(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> dict[str, float]:
    """Every metric of one tensor.

    Args:
        x: float32 values of any shape.
        decoded: what they became, same shape.
        codes: their codes, same shape, int32.
        size: number of values of the codebook.
    """
    if x.numel() == 0:
        return dict.fromkeys(METRICS, math.nan)
    return {name: metric(x, decoded, codes, size) for name, metric in METRICS.items()}
