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
    """`ratio` in float32; 1 where one of the norms is 0, and so says nothing of a step's size."""
    alone = torch.zeros_like(ratio, dtype=torch.bool)
    for norm in norms:
        alone = alone | (norm == 0)
    return torch.where(alone, 1.0, ratio).to(torch.float32)


def at_most(ratio: Tensor, bound: float) -> Tensor:
    """The smaller of the two; NaN stays NaN."""
    return torch.where(ratio > bound, bound, ratio)


def clipped(update_norm: Tensor, param_norm: Tensor, max_unorm: float) -> Tensor:
    """What an update is multiplied by for its norm to be at most `max_unorm` of the parameter's.

    Its ratio, ``max_unorm * param_norm / update_norm``, where that is below 1; otherwise 1, and
    where one of the norms is 0.
    """
    return trust(at_most(max_unorm * param_norm / update_norm, 1.0), param_norm, update_norm)


def check_bound(group: dict[str, Any], name: str) -> None:
    """Raise unless this option is None or a number above 0."""
    if group[name] is not None and not number(name, group[name]) > 0:
        raise BadValueError(f"{name}={shown(group[name])} must be None or above 0")
