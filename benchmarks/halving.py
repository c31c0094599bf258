"""The search for a code in the program of the 2015 paper, as the author described it.

It is not rounding to the nearest value. The program sorts the magnitudes of the codes, sets the
smallest (0) and the largest (1) apart, halves the rest six times from index 63, and then takes the
nearer of two values: the one where it stopped, and the largest that it found below the number.
Where it stops below the number, the value above is never looked at. Every second gap is therefore
cut off instead of rounded, and on average the error is 1.5 times that of the nearest value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.maps.base import Map

START = 63
STEPS = (32, 16, 8, 4, 2, 1)
ZERO, ONE = 1.5e-6, 0.9907
"""Below the first a number becomes 0, above the second 1."""


def magnitudes(map_: Map) -> Tensor:
    """The magnitudes that are searched, sorted: all but the smallest and the largest; 1-D."""
    return map_.codebook().abs().double().unique()[1:-1]


def rounded(x: Tensor, among: Tensor) -> Tensor:
    """Round numbers to their codes' values.

    Args:
        x: numbers from 0 to 1, of any shape.
        among: `magnitudes`.

    Returns:
        Values as float64, of `x`'s shape.
    """
    x = x.double()
    last = len(among) - 1
    pivot = torch.full(x.shape, START, device=x.device)
    below = torch.zeros_like(x)
    for step in STEPS:
        value = among[pivot.clamp(max=last)]
        above = x > value
        below = torch.where(above, value, below)
        pivot = torch.where(above, pivot + step, pivot - step)
    value = among[pivot.clamp(max=last)]
    nearest = torch.where(x - below < (value - x).abs(), below, value)
    nearest = torch.where(x < ZERO, 0.0, nearest)
    return torch.where(x > ONE, 1.0, nearest)


def errors(x: Tensor, map_: Map) -> tuple[float, float]:
    """Mean absolute and mean relative error of numbers that are divided by their largest magnitude.

    Args:
        x: numbers, 1-D, not all 0. Exact zeros have no relative error.
        map_: a signed map.
    """
    magnitude = x.abs().double()
    largest = magnitude.max()
    error = (rounded(magnitude / largest, magnitudes(map_)) * largest - magnitude).abs()
    present = magnitude > 0
    return float(error.mean()), float((error[present] / magnitude[present]).mean())
