"""Second moments that decode to zero while their first moment does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qmaps.algebra import packing
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture.conversion.form import State, values_of
from qmaps.maps.base import table

POLICIES = ("raise", "leave")
SHOWN = 5
"""How many positions a report names."""


@dataclass(frozen=True)
class Zeros:
    """Second moments of one parameter that are zero under a non-zero first moment.

    Attributes:
        found: how many there are after encoding, before any is raised.
        inherited: how many of them are zero in the source too.
        raised: how many were raised.
        first: flat indices of the first of those found, up to `SHOWN`.
    """

    found: int
    inherited: int
    raised: int
    first: tuple[int, ...]


def handle(first: State, second: State, source: State, *, policy: str) -> tuple[State, Zeros]:
    """Find such zeros in an encoded second moment, and raise them if asked to.

    A first moment m other than 0 has seen a gradient, so the true second moment v is not 0: with
    ``beta1**2 < beta2`` the two averages satisfy ``m**2 <= C * v`` with a constant C of the
    betas. The true v was below half of the smallest value that the format has. With a zero in
    its place the next update is m / eps. "raise" puts that smallest value in its place. It is
    above the true v, so the update becomes too short, by a bounded factor.

    A zero stays where no smallest positive value is known: in a block whose scale is 0, or where
    both the encoded second moment and its source are float32.

    Args:
        first: the first moment as encoded.
        second: the second moment as encoded.
        source: the second moment before the conversion.
        policy: "raise" or "leave".

    Returns:
        The second moment, which is `second` itself where nothing was raised, and what was found.
    """
    values = values_of(second)
    zero = (values == 0) & (values_of(first) != 0)
    count = int(zero.sum())
    inherited = int((zero & (values_of(source) == 0)).sum())
    indices = tuple(zero.reshape(-1).nonzero()[:SHOWN, 0].tolist())
    raised = 0
    if count and policy == "raise":
        book = second if isinstance(second, QuantizedTensor) else source
        if isinstance(book, QuantizedTensor):
            code = _smallest(book)
            floor = _filled(book, torch.full(book.shape, code, dtype=torch.int32)).dequantize()
            zero &= floor > 0
            raised = int(zero.sum())
            if isinstance(second, QuantizedTensor):
                codes = second.codes().masked_fill(zero, code)
                second = _without(_filled(second, codes), floor.where(zero, 0.0))
            else:
                second = torch.where(zero, floor, values)
    return second, Zeros(count, inherited, raised, indices)


def _smallest(t: QuantizedTensor) -> int:
    """The code of the smallest positive value."""
    book = table(t.quantizer.map)
    # Positions in a log2 range begin at 0; that of zero is -1.
    positive = book >= 0 if t.quantizer.map.log_domain else book > 0
    return int(positive.int().argmax())


def _filled(t: QuantizedTensor, codes: Tensor) -> QuantizedTensor:
    packed = packing.pack(codes.to(torch.int32), t.quantizer.map.bits)
    return replace(t, packed=packed)


def _without(t: QuantizedTensor, added: Tensor) -> QuantizedTensor:
    """`t` with less in its residual by what its codes were raised by; `t` if it has none."""
    if not t.quantizer.error_feedback:
        return t
    *others, residual = t.beside
    less = residual.quantizer.quantize(residual.dequantize() - added)
    return replace(t, beside=(*others, less))
