"""Distances between neighbouring codes, and movements of a state out of its code."""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines import reference


def gap(state: QuantizedTensor, movement: Tensor) -> Tensor:
    """Distance from each decoded value to the next code's value, under the same scales.

    The next code lies above where `movement` is positive, else below; 0 where there is none.
    """
    q, codes = state.quantizer, state.codes()
    last = len(q.map.codebook()) - 1
    beside = torch.where(movement > 0, codes + 1, codes - 1).clamp_(0, last)
    values = reference.dequantize(beside, state.scales, q.normalizer, q.map)
    return values.sub_(state.dequantize()).abs_()


def moved(state: QuantizedTensor, movement: Tensor) -> Tensor:
    """Mark the elements whose exact state moved by more than the distance to the next code.

    False if there is no code on that side. An element is stalled if it has moved and still has its
    code.
    """
    wide = gap(state, movement)
    return (movement.abs() > wide) & (wide > 0)
