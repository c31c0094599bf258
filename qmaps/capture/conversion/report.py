"""Report of a conversion: zeros of second moments, and the added error."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra import packing
from qmaps.algebra.quantizer import QuantizedTensor, values_of
from qmaps.capture.conversion.optimizer_state import OptimizerState, State
from qmaps.maps.base import table

POLICIES = ("raise", "leave")
IN_32_BITS = "32 bits"
"""Name of the form without a quantizer."""
Zeros = tuple[int, int]
"""Zeros of a second moment under a non-zero first after encoding, and how many were raised."""


def handle(first: State, second: State, source: State, *, policy: str) -> tuple[State, Zeros]:
    """Find zeros in an encoded second moment under a non-zero first, and raise them if asked to.

    A first moment m other than 0 has seen a gradient, so the true second moment v is not 0: with
    ``beta1**2 < beta2`` the two averages satisfy ``m**2 <= C * v`` with a constant C of the betas.
    With a zero in its place the next update is m / eps. "raise" puts the format's smallest value
    there. It is above the true v, so the update becomes too short, by a bounded factor. A zero
    stays in a block whose scale is 0, and where both the encoded second moment and its source are
    float32.
    """
    values = values_of(second)
    zero = (values == 0) & (values_of(first) != 0)
    count = int(zero.sum())
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
                second = _filled(second, codes)
            else:
                second = torch.where(zero, floor, values)
    return second, (count, raised)


def _smallest(t: QuantizedTensor) -> int:
    """The code of the smallest positive value."""
    book = table(t.quantizer.map)
    # Positions in a log2 range begin at 0; that of zero is -1.
    positive = book >= 0 if t.quantizer.map.log_domain else book > 0
    return int(positive.int().argmax())


def _filled(t: QuantizedTensor, codes: Tensor) -> QuantizedTensor:
    return replace(t, packed=packing.pack(codes.to(torch.int32), t.quantizer.map.bits))


@dataclass(frozen=True)
class StateRow:
    """Conversion of one state.

    Attributes:
        parameter: the parameter's name.
        state: the state's name.
        elements: number of its elements.
        was: spec of the source's quantizer, or "32 bits".
        became: spec of the target's quantizer, or "32 bits".
        how: "same values" bit for bit, "same codes" under scales that differ in rounding,
            "decoded" to float32, or "quantized".
        max_abs_error: the largest difference between decoded values.
        mean_rel_error: the mean of |difference| / |value| over values other than 0; NaN where
            there are none.
        zeros: elements of a second moment that are 0 under a non-zero first moment, before any is
            raised.
        raised: number of those that were raised.
    """

    parameter: str
    state: str
    elements: int
    was: str
    became: str
    how: str
    max_abs_error: float
    mean_rel_error: float
    zeros: int
    raised: int


@dataclass(frozen=True)
class Report:
    """Result of a conversion.

    Attributes:
        source: the format read.
        target: the format written.
        optimizer: the family of optimizers.
        states: one row per parameter and state.
        notes: sentences for the reader.
        place: keys and numbers that lead to the state_dict in the file; empty if it is the file.
        rule: class of `qmaps.optim` whose states these are; empty if there is none.
    """

    source: str
    target: str
    optimizer: str
    states: tuple[StateRow, ...]
    notes: tuple[str, ...] = ()
    place: tuple[str | int, ...] = ()
    rule: str = ""

    @property
    def lossless(self) -> bool:
        """True if every state decodes to what it was, bit for bit."""
        return all(row.how == "same values" for row in self.states)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, tuples, strings and numbers."""
        return {**asdict(self), "lossless": self.lossless}


def report(
    source: OptimizerState,
    target: OptimizerState,
    zeros: dict[tuple[str, str], Zeros],
    formats: tuple[str, str],
) -> Report:
    """Compare two forms of the same states; `zeros` are by parameter and state."""
    states = [
        _state_row(old.label, name, state, new.states[name], zeros.get((old.label, name), (0, 0)))
        for old, new in zip(source.parameters(), target.parameters(), strict=True)
        for name, state in old.states.items()
    ]
    return Report(*formats, source.family.name, tuple(states), target.notes, rule=source.rule)


def _state_row(label: str, name: str, old: State, new: State, zeros: Zeros) -> StateRow:
    before, after = values_of(old), values_of(new)
    if before.equal(after):
        how = "same values"
    elif not isinstance(new, QuantizedTensor):
        how = "decoded"
    elif (
        isinstance(old, QuantizedTensor)
        and old.quantizer.map.bits == new.quantizer.map.bits
        and old.packed.equal(new.packed)
    ):
        how = "same codes"
    else:
        how = "quantized"
    about = (label, name, before.numel(), _spec(old), _spec(new), how)
    return StateRow(*about, *_errors(before, after), *zeros)


def _errors(before: Tensor, after: Tensor) -> tuple[float, float]:
    """Largest absolute error, and mean relative error."""
    if not before.numel():
        return 0.0, float("nan")
    error = (before.double() - after.double()).abs()
    used = before != 0
    relative = (error[used] / before[used].double().abs()).mean()
    return float(error.max()), float(relative)


def _spec(state: State) -> str:
    return state.quantizer.spec if isinstance(state, QuantizedTensor) else IN_32_BITS
