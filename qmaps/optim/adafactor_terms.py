"""The terms of Adafactor's rule."""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.normalize._float32 import sqrt
from qmaps.optim import factored
from qmaps.optim.reductions import rms


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
    """`x` over the root of the second moment of `grad`, which is taken into it first.

    Args:
        x: the gradient, or a moment of it.
        grad: the gradient.
        states: they have the first of `names`, whole, or the others: rows and columns.
        s: `small`, `kept` and `rest`.
        names: of the states.
    """
    whole, row, col = names
    square = grad * grad + s["small"]
    if whole in states:
        v = states[whole].mul_(s["kept"]).add_(square * s["rest"])
        return over(x, sqrt(v))
    factored.average(states[row], states[col], square, s["kept"], s["rest"])
    return over(x, factored_root(states[row], states[col]))


def factored_root(row: Tensor, col: Tensor) -> Tensor:
    """``sqrt(row / mean(row)) * sqrt(col)``: the product of roots does not underflow."""
    return sqrt(factored.relative_rows(row)) * sqrt(col)


def over(x: Tensor, denominator: Tensor) -> Tensor:
    """``x / denominator``, 0 where that is 0."""
    zero = denominator == 0
    return (x / torch.where(zero, torch.ones_like(denominator), denominator)).masked_fill(zero, 0)


def clipped(u: Tensor, d: float) -> Tensor:
    """`u` with an rms of at most `d`."""
    ratio = rms(u) / u.new_full((), d)
    return u / torch.maximum(ratio, torch.ones_like(ratio))


def confident(
    u: Tensor, average: Tensor, row: Tensor, col: Tensor, small: float, kept: float, rest: float
) -> Tensor:
    """CAME's confidence: an average over the root of how far updates stray from it.

        q = (u - average) * (u - average) + small
        R = kept * R + rest * mean(q over each row), and C over each column
        average / (sqrt(R / mean(R)) * sqrt(C))

    Args:
        u: the update.
        average: the running average of updates, u included.
        row: R, changed in place.
        col: C, likewise.
        small: added to squares.
        kept: weight of what is old.
        rest: weight of what is new.

    Source: Luo et al. (2023), "CAME: confidence-guided adaptive memory efficient optimization",
    algorithm 2.
    """
    apart = u - average
    factored.average(row, col, apart * apart + small, kept, rest)
    return over(average, factored_root(row, col))
