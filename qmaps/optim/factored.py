"""Second moments as statistics of rows and columns, and the other terms of Adafactor's rule.

Of a tensor with more than two dimensions the last two are rows and columns, each matrix by itself,
as in the code of the Adafactor and 4-bit papers. Statistics keep the dimension over which they
are means, with size 1.

Source: Shazeer and Stern (2018), "Adafactor", section 3; 4-bit optimizers, section 4.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.float32 import sqrt
from qmaps.optim.reductions import column_means, rms, row_means, whole_norm
from qmaps.optim.rule import Dims, bounded_, every

Shape = tuple[int, ...]


def factors(shape: Shape) -> bool:
    """Return True if a tensor of this shape has rows and columns."""
    return len(shape) >= 2


def row_shape(shape: Shape) -> Shape:
    """The shape of the statistics of rows."""
    return (*shape[:-1], 1)


def col_shape(shape: Shape) -> Shape:
    """The shape of the statistics of columns."""
    return (*shape[:-2], 1, shape[-1])


def row_dims(dims: int) -> Dims:
    """The dimensions that the statistics of rows follow; see `qmaps.optim.rule.State`."""
    return (*every(dims)[:-1], None)


def col_dims(dims: int) -> Dims:
    """The dimensions that the statistics of columns follow; see `qmaps.optim.rule.State`."""
    return (*every(dims)[:-2], None, dims - 1)


def average(row: Tensor, col: Tensor, square: Tensor, old_weight: float, new_weight: float) -> None:
    """Update the running means of rows and columns with new squares.

    ``row = old_weight * row + new_weight * mean(square over each row)``, and `col` likewise.
    """
    row.mul_(old_weight).add_(row_means(square) * new_weight)
    col.mul_(old_weight).add_(column_means(square) * new_weight)


def relative_rows(row: Tensor) -> Tensor:
    """``row / mean(row)``, 0 where the mean is 0: times `col` it is the second moment."""
    mean = row_means(row.transpose(-1, -2), -2)
    return row / torch.where(mean == 0, torch.ones_like(mean), mean)


def decayed(param: Tensor, s: dict[str, float]) -> Tensor:
    """Decay the parameter; returns its step size alpha, 0-d."""
    rho = param.new_full((), s["rho"])
    alpha = rho
    if s["scale_parameter"]:
        alpha = torch.maximum(rms(param), param.new_full((), s["least"])) * rho
    if s["weight_decay"] != 0:
        param.mul_(1 - (alpha if s["scale_weight_decay"] else rho) * s["weight_decay"])
    return alpha


def scaled(
    x: Tensor,
    grad: Tensor,
    states: dict[str, Tensor],
    s: dict[str, float],
    names: tuple[str, str, str],
) -> Tensor:
    """`x` over the root of the second moment of `grad`, which is taken into it first."""
    whole, row, col = names
    square = bounded_(grad * grad) + s["small"]
    if whole in states:
        v = states[whole].mul_(s["kept"]).add_(square * s["rest"])
        return over(x, sqrt(v))
    average(states[row], states[col], square, s["kept"], s["rest"])
    return over(x, factored_root(states[row], states[col]))


def factored_root(row: Tensor, col: Tensor) -> Tensor:
    """``sqrt(row / mean(row)) * sqrt(col)``: the product of roots does not underflow."""
    return sqrt(relative_rows(row)) * sqrt(col)


def over(x: Tensor, denominator: Tensor) -> Tensor:
    """``x / denominator``, 0 where that is 0."""
    zero = denominator == 0
    return (x / torch.where(zero, torch.ones_like(denominator), denominator)).masked_fill(zero, 0)


def clipped(u: Tensor, d: float) -> Tensor:
    """`u` with an rms of at most `d`."""
    ratio = rms(u) / u.new_full((), d)
    return u / torch.maximum(ratio, torch.ones_like(ratio))


def confident(
    u: Tensor,
    moment: Tensor,
    row: Tensor,
    col: Tensor,
    small: float,
    old_weight: float,
    new_weight: float,
) -> Tensor:
    """CAME's confidence: a running average over the root of its mean squared distance to updates.

        q = (u - moment) * (u - moment) + small
        R = old_weight * R + new_weight * mean(q over each row), and C over each column
        moment / (sqrt(R / mean(R)) * sqrt(C))

    Source: Luo et al. (2023), "CAME: confidence-guided adaptive memory efficient optimization",
    algorithm 2.
    """
    distance = u - moment
    average(row, col, distance * distance + small, old_weight, new_weight)
    return over(moment, factored_root(row, col))


def limited(u: Tensor, last: Tensor, growth: float) -> Tensor:
    """`u` with a norm of at most `growth` times that of the last update.

        n = norm(u); limit = last * growth
        u = u * (limit / n)         where n > limit and last > 0
        last = min(n, limit)        n where last was 0

    Source: Chen et al. (2024), "Fira: can we achieve full-rank training of LLMs under low-rank
    constraint?", section 3.3 (norm-growth limiter).
    """
    n = whole_norm(u)
    limit = last * growth
    over = (n > limit) & (last > 0)
    u = u * torch.where(over, limit / torch.where(over, n, torch.ones_like(n)), torch.ones_like(n))
    last.copy_(torch.where(over, limit, n))
    return u
