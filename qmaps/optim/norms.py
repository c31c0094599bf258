"""Norms of whole tensors, with the same bits on every engine, and trust ratios made of them.

A sum of many numbers depends on its order. This one depends on the number of elements alone, not
on threads, devices or launches: every engine gets the same float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qmaps.engines.sharding import over_shards
from qmaps.errors import BadValueError, shown
from qmaps.float32 import padded, tree
from qmaps.optim.rule import number

CHUNK = 4096
"""Elements whose squares are added first; a power of two."""
_PIECE = 256 * CHUNK  # float64 copies are no larger than this


def square_sum(x: Tensor) -> Tensor:
    """The sum of the squares of float32 `x`, a float64 scalar on its device.

    Elements in row-major order are squared exactly in float64, and zeros fill the last
    chunk of 4096. Each chunk is added as a balanced tree, the first half to the second, element by
    element, until one number is left. The chunks' sums, filled up with zeros to a power of two,
    are added by the same tree. Of a shard the sum is that of the whole tensor
    (`qmaps.engines.sharding.over_shards`).
    """
    sums = []
    for piece in torch.split(x.detach().reshape(-1), _PIECE):
        filled = padded(piece.double().square(), 0, -piece.numel() % CHUNK)
        sums.append(tree(filled.view(-1, CHUNK)))
    return over_shards.total(tree(torch.cat(sums)))


def norm(x: Tensor) -> Tensor:
    """The square root of `square_sum`.

    >>> float(norm(torch.tensor([[3.0], [-4.0]])))
    5.0
    """
    return square_sum(x).sqrt()


# Norms are float64 scalars on the parameter's device. Trust ratios are computed from them in
# float64 and rounded to float32 at the end; the host waits for nothing.


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
    """The factor to bound an update's norm by `max_unorm` times the parameter's norm.

    It is ``max_unorm * param_norm / update_norm`` where that is below 1, and 1 otherwise, also
    where one of the norms is 0.
    """
    return trust(at_most(max_unorm * param_norm / update_norm, 1.0), param_norm, update_norm)


def check_bound(group: dict[str, Any], name: str, *, or_0: bool = False) -> None:
    """Raise unless this option is None or a number above 0; 0 is allowed with `or_0`."""
    if group[name] is None:
        return
    bound = number(name, group[name])
    if not (bound > 0 or (or_0 and bound == 0)):
        least = "at least" if or_0 else "above"
        raise BadValueError(f"{name}={shown(group[name])} must be None or {least} 0")
