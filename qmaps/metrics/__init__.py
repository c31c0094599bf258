"""Error metrics of one quantized tensor, one file each.

A file has ``from_sums(sums) -> float``, which computes the metric from the `Sums` of a tensor in
float64. If all files do, the native engine quantizes and measures in one pass, and the decoded
tensor never exists.

A metric that needs more than the sums is a function named as its file:
``metric(x, decoded, codes, size) -> float`` with float32 `x` and `decoded` of one shape, their
int32 `codes`, and the `size` of the codebook. An empty tensor gives NaN.

Over several tensors a metric named ``max_...`` is the largest, and any other the mean weighted by
size (`qmaps.sweep.summarize`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

from torch import Tensor

from qmaps.errors import BadValueError
from qmaps.metrics._sums import Sums
from qmaps.registry import modules, refuse_built_in

__all__ = ["METRICS", "SUMMED", "Metric", "Sums", "measure", "measure_sums", "register"]

Metric = Callable[[Tensor, Tensor, Tensor, int], float]
"""Function of a tensor, its decoded values, its codes and the number of values of the codebook."""

METRICS: dict[str, Metric] = {}
"""Every metric by name."""

SUMMED: dict[str, Callable[[Sums], float]] = {}
"""Those that can be computed from sums."""


def register(
    name: str, metric: Metric | None, from_sums: Callable[[Sums], float] | None = None
) -> None:
    """Make a metric known: `Quantizer.error`, sweeps and the laboratory then have it.

    Args:
        name: name of the metric, and of its column in tables.
        metric: computes it from float32 values, the decoded values, their codes and the size of
            the codebook; not needed with `from_sums`.
        from_sums: computes it from the sums of a tensor, where these are enough.

    Raises:
        BadValueError: a metric of qmaps has the name, in any letter case, or there is no function.
    """
    refuse_built_in(name, metric or from_sums, METRICS, "metric")
    SUMMED.pop(name, None)
    if from_sums is not None:
        SUMMED[name] = from_sums
        metric = metric or wraps(from_sums)(lambda *values: from_sums(Sums.of(*values)))
    if metric is None:
        raise BadValueError(f"metric {name!r} needs a function {name} or from_sums")
    METRICS[name] = metric


for _module in modules(__name__, list(__path__)):
    _name = _module.__name__.rpartition(".")[2]
    register(_name, getattr(_module, _name, None), getattr(_module, "from_sums", None))


def measure(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> dict[str, float]:
    """Every metric of one tensor.

    Args:
        x: float32 values of any shape.
        decoded: the decoded values, float32 of the same shape.
        codes: their codes, int32 of the same shape.
        size: number of values in the codebook.

    Returns:
        Values by metric name; all of them NaN if `x` is empty.
    """
    if x.numel() == 0:
        return dict.fromkeys(METRICS, math.nan)
    sums = Sums.of(x, decoded, codes, size)
    return {
        name: SUMMED[name](sums) if name in SUMMED else metric(x, decoded, codes, size)
        for name, metric in METRICS.items()
    }


def measure_sums(sums: Sums) -> dict[str, float]:
    """Every metric in `SUMMED`, computed from the sums of one tensor."""
    return {name: metric(sums) for name, metric in SUMMED.items()}
