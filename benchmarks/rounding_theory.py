r"""Rounding under an exponential moving average, on codes of equal distance.

The state is q = Q(y) with y = q + w and w = (1 - beta) (z - q), where z is the averaged value, with
normal noise of standard deviation sigma. Q rounds to multiples of a gap d. All functions take and
return multiples of the gap: ``noise`` is sigma / d, and variances are in units of d^2. ``jitter``
is the standard deviation of w, about (1 - beta) sigma / d. The sums over k are Fourier series of
the rounding error.
"""

from __future__ import annotations

import math


def stall_radius(beta: float) -> float:
    """Largest distance from its target, in gaps, of a state stuck under nearest rounding.

    It stalls where (1 - beta) |z - q| <= d / 2, or |z - q| <= d / (2 (1 - beta)).

    >>> round(stall_radius(0.9)), round(stall_radius(0.999))
    (5, 500)
    """
    return 0.5 / (1 - beta)


def kept_movement(jitter: float) -> float:
    """The share of its movement kept by nearest rounding, under noise of the state.

    It is the slope of E[Q(w)] in the mean of w, 1 + 2 sum over k of (-1)^k exp(-2 (pi k jitter)^2).
    The effective beta is 1 - (1 - beta) times it.

    >>> [round(kept_movement(jitter), 3) for jitter in (0.1, 0.2, 0.3, 0.5)]
    [0.0, 0.175, 0.663, 0.986]
    """
    if jitter < 0.05:  # the series converges slowly; the state does not move once in 10^20 steps
        return 0.0
    return 1 + 2 * sum(
        (-1.0) ** k * math.exp(-2 * (math.pi * k * jitter) ** 2) for k in range(1, _terms(jitter))
    )


def nearest_variance(jitter: float) -> float:
    """Mean square, in d^2, of the error of one rounding to nearest; 1/12 for much jitter.

    It is 1/12 + sum over k of (-1)^k exp(-2 (pi k jitter)^2) / (pi k)^2.

    >>> round(12 * nearest_variance(1), 6)
    1.0
    """
    if jitter < 0.05:
        return jitter**2  # it rounds to where it was
    return 1 / 12 + sum(
        (-1.0) ** k * math.exp(-2 * (math.pi * k * jitter) ** 2) / (math.pi * k) ** 2
        for k in range(1, _terms(jitter))
    )


def stochastic_variance(jitter: float) -> float:
    """Variance, in d^2, of one stochastic rounding; 1/6 for much jitter.

    For the fraction f of a gap it is f (1 - f), on average 1/6 - sum over k of
    exp(-2 (pi k jitter)^2) / (pi k)^2. For little jitter it is about sqrt(2 / pi) jitter: small
    updates rarely move a state away from its code.

    >>> round(6 * stochastic_variance(1), 6), round(stochastic_variance(0.001) * 1000, 2)
    (1.0, 0.8)
    """
    if jitter < 0.05:  # E[f] - E[f^2], where w does not reach the next code
        return math.sqrt(2 / math.pi) * jitter - jitter**2
    return 1 / 6 - sum(
        math.exp(-2 * (math.pi * k * jitter) ** 2) / (math.pi * k) ** 2
        for k in range(1, _terms(jitter))
    )


def amplification(beta: float, steps: float = math.inf) -> float:
    """By how much an average accumulates independent errors: (1 - beta^(2t)) / (1 - beta^2).

    Args:
        beta: the decay.
        steps: number t of roundings.

    >>> round(amplification(0.9), 2), round(amplification(0.999)), round(amplification(0.999, 100))
    (5.26, 500, 91)
    """
    return (1 - math.pow(beta, 2 * steps)) / (1 - beta**2)


def stochastic_error(beta: float, noise: float) -> float:
    """Variance, in d^2, of a stochastically rounded average about the exact one, in the long run.

    V = amplification * stochastic_variance(jitter) with jitter^2 = (1 - beta)^2 (2 noise^2 /
    (1 + beta) + V), because z - q varies by z, by the exact average, and by the error. It is at
    most about 1 / (6 (1 - beta^2)). For little jitter it is E|z - q| / (1 + beta) and does not grow
    with 1 / (1 - beta). The formula is a mean over all positions of the average between two codes,
    and assumes a normal z - q; this is accurate to 10 % for beta of at least 0.9.

    >>> round(stochastic_error(0.999, 0), 2), round(stochastic_error(0.999, 10), 2)
    (0.16, 4.02)
    """
    variance = 0.0
    for _ in range(200):  # a contraction: each time the error shrinks by more than half
        jitter = (1 - beta) * math.sqrt(2 * noise**2 / (1 + beta) + variance)
        variance = amplification(beta) * stochastic_variance(jitter or 1e-12)
    return variance


def _terms(jitter: float) -> int:
    """One more than the number of terms above float64's precision."""
    return 2 + math.ceil(math.sqrt(20) / (math.pi * jitter))
