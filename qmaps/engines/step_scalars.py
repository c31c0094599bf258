"""Step scalars: the numbers of an update rule for one step.

They are described rather than computed, so a device with a step count of its own can compute
them. Every engine does the same float64 operations in the same order.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class StepScalar:
    """A number equal in every step.

    Attributes:
        a: the number, or a tensor with one element.
        b, c: further numbers of some kinds.
    """

    a: float | Tensor
    b: float = 0.0
    c: float = 0.0

    kind: ClassVar[int] = 0
    """The number of its class in `KINDS`, by which CUDA kernels know it."""

    def __init_subclass__(cls) -> None:
        cls.kind = len(KINDS)
        KINDS.append(cls)

    def at(self, step: int) -> float:
        """Its value in step 1, 2, ..."""
        return float(self.a)


KINDS: list[type[StepScalar]] = [StepScalar]
"""Every kind of number, in the order of the classes below.

CUDA's ``enum StepScalarKind`` is made from it; ``qmaps/cuda/src/prologue.cuh`` has a case for each.
"""


class Corrected(StepScalar):
    """``a / (1 - b^step)``: a step size over Adam's first bias correction."""

    def at(self, step: int) -> float:
        return float(self.a) / (1 - power(self.b, step))


class RootCorrection(StepScalar):
    """``sqrt(1 - b^step)``: the root of Adam's second bias correction; `a` has no meaning."""

    def at(self, step: int) -> float:
        return math.sqrt(1 - power(self.b, step))


class Decoupled(StepScalar):
    """``1 - a * b``: a parameter's factor under decoupled weight decay `b`; `a` is `lr`."""

    def at(self, step: int) -> float:
        return 1 - float(self.a) * self.b


class First(StepScalar):
    """`a` in the first step and `b` in all others."""

    def at(self, step: int) -> float:
        return float(self.a) if step == 1 else self.b


class Slowing(StepScalar):
    """``a / (1 + (step - 1) * b)``: Adagrad's step size under `lr_decay` `b`."""

    def at(self, step: int) -> float:
        return float(self.a) / (1 + (step - 1) * self.b)


class Warmed(StepScalar):
    """`a` times ``step / b``, and `a` from step `b` on: AdEMAMix's share of the slow average."""

    def at(self, step: int) -> float:
        return float(self.a) * (step / self.b) if step < self.b else float(self.a)


class Lengthened(StepScalar):
    """The growing decay of an average: from `b` to the larger `a`, reached in step `c`.

    The time in which weights halve, ``log(0.5) / log(decay)``, grows linearly:

        share = step / c
        decay = exp(1 / ((1 - share) / log(b) + share / log(a)))

    with `log` and `exp` of this module, and ``1 / log(0)`` 0.
    """

    def at(self, step: int) -> float:
        last = float(self.a)
        if step >= self.c:
            return last
        share = step / self.c
        first = 1 / log(self.b) if self.b > 0 else 0.0
        decay = exp(1 / ((1 - share) * first + share * (1 / log(last))))
        return min(decay, last)


class LengthenedRest(Lengthened):
    """1 minus the growing decay: the weight of the new value."""

    def at(self, step: int) -> float:
        return 1 - super().at(step)


def power(base: float, exponent: int) -> float:
    """`base` to an `exponent` of at least 0 in float64, by squaring: libraries differ in ``pow``.

    >>> power(0.5, 3)
    0.125
    """
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base = base * base  # no `*=`, which would change a tensor
        exponent >>= 1
    return result


# ln 2 in two parts: products of the first with integers below 2^20 are exact.
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10


def log(x: float) -> float:
    """The natural logarithm of `x` in (0, 1] in float64, by IEEE operations in one order.

    x = m * 2^e with m in [sqrt(1/2), sqrt(2)); s = (m - 1) / (m + 1); z = s * s; the series of
    2 * artanh(s) to its twelfth term by Horner's rule; the error is below 1e-15 of the result.

    >>> round(log(0.5), 15)
    -0.693147180559945
    """
    exponent = 0.0
    while x < 0.7071067811865476:
        x = x * 2  # no `*=`, which would change a tensor
        exponent -= 1
    s = (x - 1) / (x + 1)
    z = s * s
    series = 0.0
    for k in range(23, 0, -2):
        series = series * z + 1 / k
    return exponent * _LN2_HIGH + (2 * s * series + exponent * _LN2_LOW)


def exp(y: float) -> float:
    """The exponential of `y` at most 0 in float64, by IEEE operations in one order.

    k = -y / ln 2, rounded; f = y + k * ln 2; the series of e^f to its fifteenth power by Horner's
    rule, halved k times; the error is below 1e-15 of the result. 0 below -745.

    >>> exp(-1.0)
    0.36787944117144233
    """
    if y < -745:
        return 0.0
    k = int(-y * 1.4426950408889634 + 0.5)
    f = (y + k * _LN2_HIGH) + k * _LN2_LOW
    result = 1.0
    for n in range(15, 0, -1):
        result = result * f / n + 1
    for _ in range(k):
        result *= 0.5
    return result


class Power(StepScalar):
    """``step^a``: the weight of the new value in a slowing average; `a` is at most 0.

    ``exp(a * -log(1 / step))`` with `log` and `exp` of this module.
    """

    def at(self, step: int) -> float:
        return exp(float(self.a) * -log(1 / step))


class PowerRest(Power):
    """``1 - step^a``: the weight of the old value in the same average."""

    def at(self, step: int) -> float:
        return 1 - super().at(step)


class Unbiased(StepScalar):
    """``(1 - a) / (1 - a^step)``: the new value's weight in an unbiased average of decay `a`."""

    def at(self, step: int) -> float:
        return (1 - float(self.a)) / (1 - power(float(self.a), step))


class UnbiasedRest(StepScalar):
    """``a * (1 - a^(step - 1)) / (1 - a^step)``: the weight of the old value in the average."""

    def at(self, step: int) -> float:
        a = float(self.a)
        return a * (1 - power(a, step - 1)) / (1 - power(a, step))


class RelativeStep(StepScalar):
    """``min(a, 1 / sqrt(step))``: Adafactor's relative step size."""

    def at(self, step: int) -> float:
        return min(float(self.a), 1 / math.sqrt(step))


class NesterovGradient(StepScalar):
    """``a * (1 - mu_t) / (1 - product)``: NAdam's step size for the gradient.

    ``mu_t`` is `nesterov_momentum` of `b` (beta1) and `c` (momentum_decay) in step t.
    """

    def product(self, step: int, before: float | None) -> float:
        """The product of momenta up to a step, rounded to float32.

        Without `before`, the product up to the step before, it is that of the same `b` and `c`.
        """
        if before is None:
            before = nesterov_product(self.b, self.c, step - 1)
        return ctypes.c_float(before * nesterov_momentum(self.b, self.c, step)).value

    def at(self, step: int, before: float | None = None) -> float:
        weight = 1 - nesterov_momentum(self.b, self.c, step)
        return float(self.a) * weight / (1 - self.product(step, before))


class NesterovMoment(NesterovGradient):
    """``a * mu_{t+1} / (1 - product * mu_{t+1})``: NAdam's step size for the first moment."""

    def at(self, step: int, before: float | None = None) -> float:
        following = nesterov_momentum(self.b, self.c, step + 1)
        return float(self.a) * following / (1 - self.product(step, before) * following)


class AveragedRest(StepScalar):
    """The old average's weight when a value of weight ``w_t`` enters: 1 - w_t / (w_1 + ... + w_t).

    ``w_i = min(1, i / a)^b``, and 1 if `a` is 0; `b` is 0, 1 or 2. Sums are in closed form.
    """

    def at(self, step: int) -> float:
        growing = min(float(step), float(self.a))
        total = growing
        if growing > 0 and self.b > 0:
            total = (growing + 1) / 2
            if self.b > 1:
                total = total * (2 * growing + 1) / (3 * growing)
        return 1 - 1 / (total + (step - growing))


def values_at(
    scalars: Iterable[float | StepScalar], step: int, before: float | None = None
) -> list[float]:
    """The values of scalars in step 1, 2, ...; `before` is NAdam's product before it."""
    return [
        scalar.at(step, before)
        if isinstance(scalar, NesterovGradient)
        else scalar.at(step)
        if isinstance(scalar, StepScalar)
        else scalar
        for scalar in scalars
    ]


def product_after(
    scalars: Iterable[float | StepScalar], step: int, before: float | None
) -> float | None:
    """The product of momenta up to a step, of NAdam; None if no scalar has one."""
    nesterov = (scalar for scalar in scalars if isinstance(scalar, NesterovGradient))
    return next((scalar.product(step, before) for scalar in nesterov), None)


_LOG_096 = log(0.96)

NESTEROV_END = 2.0**-60
"""`nesterov_product` multiplies no further below this: 1 minus it is 1."""


def nesterov_momentum(beta1: float, decay: float, step: int) -> float:
    """NAdam's momentum in a step, ``beta1 * (1 - 0.96^(step * decay) / 2)``, in float64.

    The power is ``exp(step * decay * log(0.96))`` with `log` and `exp` of this module.
    """
    return beta1 * (1 - 0.5 * exp(step * decay * _LOG_096))


def nesterov_product(beta1: float, decay: float, step: int) -> float:
    """The product of `nesterov_momentum` over the steps from 1 to `step`.

    It ends with the first product of at most `NESTEROV_END`, or with a power where the momentum
    does not change any more.

    >>> nesterov_product(0.9, 0.0, 2)
    0.2025
    """
    product, momentum = 1.0, -1.0
    for number in range(1, step + 1):
        last, momentum = momentum, nesterov_momentum(beta1, decay, number)
        if momentum == last:
            return product * power(momentum, step - number + 1)
        product *= momentum
        if product <= NESTEROV_END:
            break
    return product
