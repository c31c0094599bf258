"""The numbers of a rule that depend on the step.

They are described rather than computed, so that a device which counts the steps itself can work
them out: float64 operations in the order given, the same ones everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class Constant:
    """A number that is the same in every step.

    Attributes:
        a: the number, or a tensor with one element, which holds it.
        b: a second number, for the kinds that have one.
    """

    a: float | Tensor
    b: float = 0.0

    kind: ClassVar[int] = 0
    """What CUDA calls it (``ConstantKind`` in ``qmaps/cuda/src/begin.cuh``)."""

    def at(self, step: int) -> float:  # noqa: ARG002
        """Its value in step 1, 2, ..."""
        return float(self.a)


class Corrected(Constant):
    """``a / (1 - b^step)``: a step size over Adam's first bias correction."""

    kind: ClassVar[int] = 1

    def at(self, step: int) -> float:
        """Its value in step 1, 2, ..."""
        return float(self.a) / (1 - power(self.b, step))


class RootCorrection(Constant):
    """``sqrt(1 - b^step)``: the root of Adam's second bias correction; `a` has no meaning."""

    kind: ClassVar[int] = 2

    def at(self, step: int) -> float:
        """Its value in step 1, 2, ..."""
        return math.sqrt(1 - power(self.b, step))


class Decoupled(Constant):
    """``1 - a * b``: what decoupled weight decay `b` leaves of a parameter at learning rate `a`."""

    kind: ClassVar[int] = 3

    def at(self, step: int) -> float:  # noqa: ARG002
        """Its value in step 1, 2, ..."""
        return 1 - float(self.a) * self.b


class First(Constant):
    """`a` in the first step and `b` in all others."""

    kind: ClassVar[int] = 4

    def at(self, step: int) -> float:
        """Its value in step 1, 2, ..."""
        return float(self.a) if step == 1 else self.b


class Slowing(Constant):
    """``a / (1 + (step - 1) * b)``: Adagrad's step size under `lr_decay` `b`."""

    kind: ClassVar[int] = 5

    def at(self, step: int) -> float:
        """Its value in step 1, 2, ..."""
        return float(self.a) / (1 + (step - 1) * self.b)


def power(base: float, exponent: int) -> float:
    """`base` to an `exponent` of at least 0 in float64, by squaring: libraries differ in ``pow``.

    >>> power(0.5, 3)
    0.125
    """
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


HOST = -1
"""The kind of those that no device works out: rules that use them have no `native_rule`."""


class Power(Constant):
    """``step^a``: the weight of what is new in an average that slows down, `a` being below 0."""

    kind: ClassVar[int] = HOST

    def at(self, step: int) -> float:
        """Its value in step 1, 2, ..."""
        return math.pow(step, float(self.a))


class PowerRest(Constant):
    """``1 - step^a``: the weight of what is old in the same average."""

    kind: ClassVar[int] = HOST

    def at(self, step: int) -> float:
        """Its value in step 1, 2, ..."""
        return 1 - math.pow(step, float(self.a))


class Unbiased(Constant):
    """``(1 - a) / (1 - a^step)``: what is new in an average of decay `a` that has no bias."""

    kind: ClassVar[int] = HOST

    def at(self, step: int) -> float:
        """Its value in step 1, 2, ..."""
        return (1 - float(self.a)) / (1 - power(float(self.a), step))


class UnbiasedRest(Constant):
    """``a * (1 - a^(step - 1)) / (1 - a^step)``: what is old in the same average."""

    kind: ClassVar[int] = HOST

    def at(self, step: int) -> float:
        """Its value in step 1, 2, ..."""
        a = float(self.a)
        return a * (1 - power(a, step - 1)) / (1 - power(a, step))


class RelativeStep(Constant):
    """``min(a, 1 / sqrt(step))``: Adafactor's relative step size."""

    kind: ClassVar[int] = HOST

    def at(self, step: int) -> float:
        """Its value in step 1, 2, ..."""
        return min(float(self.a), 1 / math.sqrt(step))
