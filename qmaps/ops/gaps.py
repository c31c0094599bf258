"""Distances between neighbouring codes, and movements of a state out of its code."""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.algebra.rounding import Rounding
from qmaps.engines import reference
from qmaps.maps.base import limits, table


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


def stays(q: Quantizer, codes: Tensor, factor: Tensor | float) -> Tensor | None:
    """Mark the codes that a step gives again that multiplies values by `factor`, scales unchanged.

    Args:
        q: the quantizer of the codes.
        codes: codes of any shape.
        factor: factor of each value, or of all, in (0, 1].

    Returns:
        A bool per code. The largest value never counts, as its scale follows it, and neither does
        0. None if rounding is not to the nearest, or if more than codes and scales is stored.
    """
    if q.rounding is not Rounding.NEAREST or q.low_rank is not None or q.map.log_domain:
        return None
    values = table(q.map).to(codes.device)
    x = values[codes.long()]
    new = torch.searchsorted(limits(q.map).to(codes.device), x * factor)  # thresholds below
    return (new == codes) & (x != 0) & (x.abs() < values.abs().max())
