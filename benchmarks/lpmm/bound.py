"""Bounds on how far SGD with momentum in low precision is from a convex function's minimum.

Both are of E[f(mean of theta_0 ... theta_(T-1))] - f*, for an L-smooth convex f and unbiased
(stochastic) quantizers: LPMM, theorem 1, with everything in low precision, and 4-bit optimizers,
appendix H, theorem 1, with the momentum alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qmaps.errors import BadValueError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Variances E[||error||^2], summed over elements, of which each is an upper bound.

    Attributes:
        batch: sigma^2, of a micro-batch's gradient.
        accumulator: sigma_g^2, of rounding the gradient after each micro-batch.
        momentum: sigma_m^2, of rounding the momentum.
        parameter: sigma_p^2, of rounding the parameters.
    """

    batch: float = 0.0
    accumulator: float = 0.0
    momentum: float = 0.0
    parameter: float = 0.0


@dataclass(frozen=True)
class Descent:
    """SGD with momentum on an L-smooth convex function.

    Attributes:
        lr: alpha, above 0.
        momentum: beta, at least 0 and below 1.
        smoothness: L, above 0.
        distance: ||theta_0 - theta*||, at least 0.
        micro_batches: N, whose gradients are summed in a step.
    """

    lr: float
    momentum: float
    smoothness: float
    distance: float
    micro_batches: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise BadValueError(f"momentum={self.momentum!r} must be at least 0 and below 1")
        if not self.smoothness > 0:
            raise BadValueError(f"smoothness={self.smoothness!r} must be above 0")
        if self.micro_batches < 1:
            raise BadValueError(f"micro_batches={self.micro_batches!r} must be at least 1")


def lpmm_bound(steps: Sequence[int] | NDArray[np.int64], run: Descent, noise: Noise) -> Floats:
    """LPMM's bound after each number of steps.

    Args:
        steps: T, each at least 1.
        run: its `lr` is at most ``(1 - momentum) / ((N + 2) L)``. The paper's proof, with its rho
            of 1, needs half of that.
        noise: of batches and of all three quantizers.

    Returns:
        A value per T, in the function's unit.

    Raises:
        BadValueError: the theorem does not allow `lr`.

    Source: LPMM, theorem 1.

    >>> run = Descent(lr=0.1, momentum=0.5, smoothness=1.0, distance=2.0, micro_batches=2)
    >>> noise = Noise(batch=1.0, accumulator=2.0, momentum=4.0, parameter=0.01)
    >>> lpmm_bound([10, 10**9], run, noise).round(3).tolist()
    [1.575, 0.875]
    """
    n, rest = run.micro_batches, 1 - run.momentum
    _check_rate(run, rest / ((n + 2) * run.smoothness))
    floor = run.lr * (noise.batch + noise.accumulator) / rest
    floor += run.lr * noise.momentum / (2 * n * rest)
    floor += (1 + 2 * run.momentum**2) * noise.parameter / (2 * run.lr * n * rest)
    return _start(steps, run) + floor


def four_bit_bound(steps: Sequence[int] | NDArray[np.int64], run: Descent, noise: Noise) -> Floats:
    """The bound for SGD whose momentum alone is in low precision, after each number of steps.

    Args:
        steps: T, each at least 1.
        run: of one micro-batch a step, its `lr` at most ``(1 - momentum) / L``. The paper's proof
            needs half of that.
        noise: of batches and of the momentum.

    Returns:
        A value per T, in the function's unit.

    Raises:
        BadValueError: the theorem does not allow `lr`, micro-batches or the other noise.

    Source: 4-bit optimizers, appendix H, theorem 1.

    >>> run = Descent(lr=0.1, momentum=0.5, smoothness=1.0, distance=2.0)
    >>> four_bit_bound([10], run, Noise(batch=1.0, momentum=4.0)).round(3).tolist()
    [2.2]
    """
    if run.micro_batches != 1:
        raise BadValueError(
            f"micro_batches={run.micro_batches!r} must be 1; this theorem has no micro-batches"
        )
    if noise.accumulator or noise.parameter:
        raise BadValueError(
            f"{noise} has noise of gradients or parameters, which this theorem does not cover"
        )
    rest = 1 - run.momentum
    _check_rate(run, rest / run.smoothness)
    return _start(steps, run) + run.lr * (noise.batch + noise.momentum) / rest


def _check_rate(run: Descent, most: float) -> None:
    if not 0 < run.lr <= most:
        raise BadValueError(
            f"lr={run.lr!r} must be above 0 and at most {most:.4g} for this theorem to hold"
        )


def _start(steps: Sequence[int] | NDArray[np.int64], run: Descent) -> Floats:
    """Remainder of the start after T steps."""
    rest = 1 - run.momentum
    slope = run.smoothness * run.momentum / rest + rest / (run.lr * run.micro_batches)
    start: Floats = slope * run.distance**2 / (2 * np.asarray(steps, dtype=np.float64))
    return start
