"""Trust ratios: step sizes from the norms of a parameter and of its update."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qmaps.errors import BadValueError, shown
from qmaps.optim.terms import number

# Norms are float64 scalars on the parameter's device (`qmaps.optim.norms`). What is made of them is
# a few float64 operations, rounded to float32 at the end; the host waits for nothing.


def trust(ratio: Tensor, *norms: Tensor) -> Tensor:
    """`ratio` in float32, or 1 where one of the norms is 0 or the ratio overflows; NaN stays."""
    rounded = ratio.to(torch.float32)
    alone = rounded.isinf()
    for norm in norms:
        alone = alone | (norm == 0)
    return torch.where(alone, 1.0, rounded)


def at_most(ratio: Tensor, bound: float) -> Tensor:
    """The smaller of the two; NaN stays NaN."""
    return torch.where(ratio > bound, bound, ratio)


def clipped(update_norm: Tensor, param_norm: Tensor, max_unorm: float) -> Tensor:
    """The factor that bounds an update's norm by `max_unorm` times the parameter's norm.

    It is ``max_unorm * param_norm / update_norm`` where that is below 1, and 1 otherwise, also
    where one of the norms is 0.

    Args:
        update_norm: norm of the update, float64, 0-d.
        param_norm: norm of the parameter, float64, 0-d.
        max_unorm: bound of the ratio of the two, above 0.

    Returns:
        float32, 0-d.
    """
    return trust(at_most(max_unorm * param_norm / update_norm, 1.0), param_norm, update_norm)


def check_bound(group: dict[str, Any], name: str, *, or_0: bool = False) -> None:
    """Raise unless this option is None or a number above 0; 0 is allowed with `or_0`."""
    if group[name] is None:
        return
    found = number(name, group[name])
    if not (found > 0 or (or_0 and found == 0)):
        least = "at least" if or_0 else "above"
        raise BadValueError(f"{name}={shown(group[name])} must be None or {least} 0")
