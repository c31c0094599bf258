"""The codebook of least expected loss for the values of a moving average, by dynamic programming.

Whatever the rounding, what a value x costs depends only on the two codes a <= x <= b beside it, so
the total is a sum over neighbouring codes, and the best codes are a shortest path through a grid of
possible values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CELLS = 4096
"""Different values that samples are reduced to, about; each stands for its neighbourhood."""
POINTS = 512
"""Possible values of codes at first, at least."""
FINER = 1024
"""Possible values of codes in a refined grid, about."""
ROUNDS = 3
"""Refinements of the grid at most."""
REACH = 16
"""How many times farther than on average two neighbouring codes may be, in possible values."""
SMALLEST = 1e-20
"""Unsigned codes are at least this large."""
GUARD = 0.95
"""The second largest code of an unsigned codebook for rounding to nearest is at least this."""


@dataclass(frozen=True)
class Loss:
    """What an error costs.

    Attributes:
        of: the loss of values that decode to codes, element-wise: 0 where both are equal.
        curvature: half the second derivative of the loss with respect to the code, where it is the
            value.
    """

    of: Callable[[Array, Array], Array]
    curvature: Callable[[Array], Array]


SQUARED = Loss(lambda x, c: (x - c) ** 2, np.ones_like)
"""(x - c)^2, the loss of a first moment: the update is proportional to it."""


def of_inverse_root(beta: float) -> Loss:
    """The loss of a second moment: the squared relative error of the next update.

    The next update divides by the root of y = beta c + (1 - beta) z, where z averages x. The loss
    is (sqrt(x / y) - 1)^2 with z = x, which keeps it finite for codes far below x.

    Args:
        beta: the decay, in [0, 1).
    """

    def of(x: Array, c: Array) -> Array:
        return (np.sqrt(x / (beta * c + (1 - beta) * x)) - 1) ** 2

    return Loss(of, lambda x: (beta / (2 * x)) ** 2)


@dataclass(frozen=True)
class Samples:
    """Weighted normalized values in ascending order.

    Attributes:
        x: the values, of shape (n,), n at least 1.
        weights: importance of each, at least 0, with a sum of 1.
        pull: mean distance of what the moving average takes in from the value, E|z - x|, in the
            same unit; at least 0.
    """

    x: Array
    weights: Array
    pull: Array

    @classmethod
    def of(
        cls, x: Array, weights: Array | None = None, pull: Array | None = None, *, signed: bool
    ) -> Samples:
        """Sort samples, and replace those of a small cell by their weighted means.

        Cells of equal count are joined with cells of equal width, or of equal ratio if unsigned.

        Args:
            x: values of shape (n,), in [-1, 1] if `signed`, else in [0, 1]; unsigned values of 0
                are left out. If none is left, 1 is taken.
            weights: importance of each, at least 0; equal if left out or all 0.
            pull: as the attribute; 0 if left out.
            signed: whether the codebook is to be signed.
        """
        x = np.asarray(x, np.float64)
        parts = np.stack(
            [
                x,
                np.ones_like(x) if weights is None else np.asarray(weights, np.float64),
                np.zeros_like(x) if pull is None else np.asarray(pull, np.float64),
            ]
        )
        if not signed:
            parts = parts[:, x > 0]
        if not parts.shape[1]:
            parts = np.array([[1.0], [1.0], [0.0]])
        x, weights, pull = parts[:, np.argsort(parts[0], kind="stable")]
        if not weights.sum() > 0:
            weights = np.ones_like(x)
        weights = weights / weights.sum()
        if len(x) > CELLS:
            scale = x if signed else np.log(x)
            edges = np.linspace(scale[0], scale[-1], CELLS // 2)[:-1]
            even = np.linspace(0, len(x) - 1, CELLS // 2, dtype=int)
            starts = np.union1d(np.searchsorted(scale, edges), even)
            mass = weights + 1e-12 / len(x)  # so that each cell has a mean
            total = np.add.reduceat(mass, starts)
            x, pull = (np.add.reduceat(mass * each, starts) / total for each in (x, pull))
            weights = total / total.sum()
        return cls(x, weights, pull)


def expected_loss(codes: Array, x: Array, weights: Array, *, loss: Loss, stochastic: bool) -> float:
    """The weighted mean loss of rounding values once.

    Args:
        codes: the codebook, ascending, of shape (N,).
        x: values of shape (n,); those outside the codebook get its end code.
        weights: importance of each value, of shape (n,), at least 0, with a sum above 0.
        loss: the loss.
        stochastic: round to either neighbour, unbiased; otherwise to the nearest code, and of
            two equally near ones to the lower, as quantizers do.
    """
    inside = np.clip(x, codes[0], codes[-1])
    upper = np.clip(np.searchsorted(codes, inside), 1, len(codes) - 1)
    a, b = codes[upper - 1], codes[upper]
    share = (inside - a) / (b - a)
    if not stochastic:
        share = (inside > (a + b) / 2).astype(float)
    losses = (1 - share) * loss.of(x, a) + share * loss.of(x, b)
    return float(np.average(losses, weights=weights))


def best(
    samples: Samples, size: int, *, loss: Loss, beta: float, stochastic: bool, signed: bool
) -> Array:
    r"""The codebook that a moving average x = beta x + (1 - beta) z loses least with.

    Rounding to nearest: the loss of one rounding. With `SQUARED` the inner values are those of
    Lloyd and Max.

    Stochastic rounding: errors accumulate. Their variance in the long run is at most that of one
    rounding, (x - a)(b - x), times 1 / (1 - beta^2). But a state that sits on a code and is pulled
    by little is rarely rounded away; then it is ((b - a) E|z - x| + 2 (x - a)(b - x)) / (1 + beta)
    (`qmaps.analyze.replay.theory`). Between two codes the smaller of both is taken. The second
    grows with b - a and not with its square, so the density of codes is that of the samples to the
    power 1/2, where Lloyd and Max have 1/3.

    The largest magnitude of a block is always a code: 1, and -1 of a signed codebook. If it were
    not, the largest element of a block would shrink in every step. An unsigned codebook for
    rounding to nearest also has a code between `GUARD` and 1. If it had not, several elements would
    have the code 1 together, and the scale would follow the largest of what each takes in. Zero may
    be a code of a signed codebook only.

    The optimum is exact among the values of a grid, which is then refined about the codes found.

    Args:
        samples: the values.
        size: number of codes: at least 3 if `signed`, else 2.
        loss: the loss.
        beta: the decay of the moving average, in [0, 1).
        stochastic: whether the quantizer rounds stochastically.
        signed: whether the codebook is signed.

    Returns:
        Ascending values of shape (size,), in [-1, 1] or in (0, 1].

    Source: dynamic programming after Bruce (1965), "Optimum quantization"; the variance of one
    stochastic rounding as in ZipML (Zhang et al., 2017).
    """
    solve = partial(on_grid, samples, loss=loss, beta=beta, stochastic=stochastic, signed=signed)
    points = _grid(samples, max(POINTS, 4 * size), signed)
    codes, least = solve(points, size)
    for _ in range(ROUNDS):
        points = _refined(points, codes)
        codes, cost = solve(points, size)
        done = least - cost <= 1e-4 * least
        least = cost
        if done:
            break
    return codes


def on_grid(
    samples: Samples,
    points: Array,
    size: int,
    *,
    loss: Loss,
    beta: float,
    stochastic: bool,
    signed: bool,
) -> tuple[Array, float]:
    """As `best`, among possible values.

    Args:
        samples: the values.
        points: possible codes, ascending, of shape (g,), g at least `size`. The last is 1, and the
            first of a signed codebook is -1.
        size: number of codes.
        loss: the loss.
        beta: the decay of the moving average.
        stochastic: whether the quantizer rounds stochastically.
        signed: whether the codebook is signed.

    Returns:
        The codes, and what they cost.
    """
    between, first = costs(samples, points, loss=loss, beta=beta, stochastic=stochastic)
    if signed:
        first = np.where(points == points[0], first, np.inf)
    elif not stochastic and size > 2 and (points[:-1] >= GUARD).any():
        between[points < GUARD, -1] = np.inf
    cost, path = _path(between, first, size)
    return points[path], cost


def costs(
    samples: Samples, points: Array, *, loss: Loss, beta: float, stochastic: bool
) -> tuple[Array, Array]:
    """What samples cost between two neighbouring codes, and below the first code.

    Args:
        samples: the values.
        points: possible codes, ascending, of shape (g,).
        loss: the loss.
        beta: the decay of the moving average.
        stochastic: whether the quantizer rounds stochastically.

    Returns:
        The cost of the samples between points a and b, of shape (g, g), infinite unless a < b; and
        of those up to each point if it is the first code, of shape (g,).
    """
    x = samples.x[:, None]
    table = samples.weights[:, None] * loss.of(x, points[None, :])
    zero = np.zeros((1, len(points)))
    # total[k, c]: what the first k samples cost if they decode to point c.
    total = np.concatenate([zero, table.cumsum(axis=0)])
    place = np.searchsorted(samples.x, points, side="right")
    here = total[place]  # [p, c]: the samples up to point p
    own = here.diagonal()
    a, b = points[:, None], points[None, :]
    if stochastic:
        moment = np.concatenate([zero, (x * table).cumsum(axis=0)])[place]
        mine = moment.diagonal()
        gap = np.where(b > a, b - a, 1)
        lower = b * (here.T - own[:, None]) - (moment.T - mine[:, None])
        upper = (mine[None, :] - moment) - a * (own[None, :] - here)
        once = (lower + upper) / gap
        stirred = samples.weights * samples.pull * loss.curvature(samples.x)
        # From above: a curvature like 1 / x^2 makes the sum from below too large to subtract from.
        stir = np.r_[stirred[::-1].cumsum()[::-1], 0.0][place]
        rarely = (gap * (stir[:, None] - stir[None, :]) + 2 * once) / (1 + beta)
        between = np.minimum(once / (1 - beta**2), rarely)
    else:
        middle = np.searchsorted(samples.x, (a + b) / 2, side="right")
        number = np.arange(len(points))
        lower = total[middle, number[:, None]] - own[:, None]
        between = lower + own[None, :] - total[middle, number[None, :]]
    return np.where(b > a, np.maximum(between, 0), np.inf), own


def _grid(samples: Samples, count: int, signed: bool) -> Array:
    """Possible values of codes: some evenly spread over the range, some by weight."""
    if signed:
        even = np.r_[np.linspace(-1, 1, count // 2), 0.0]
    else:
        low = min(0.5, max(SMALLEST, samples.x[0]))
        even = np.r_[np.geomspace(low, 1, count // 2), GUARD, 1.0]
    level = (np.arange(count // 2) + 0.5) / (count // 2)
    heavy = samples.x[np.searchsorted(np.cumsum(samples.weights)[:-1], level)]
    return np.unique(np.r_[even, heavy[(heavy > even.min()) & (heavy < 1)]])


def _refined(points: Array, codes: Array) -> Array:
    """Possible values about each code, up to the possible values that were next to it."""
    at = np.searchsorted(points, codes)
    finer = min(8, max(2, FINER // (2 * len(codes))))
    parts = np.arange(finer) / finer
    ends = [points[np.maximum(at - 1, 0)], points[np.minimum(at + 1, len(points) - 1)]]
    found = [codes[:, None] + parts * (end - codes)[:, None] for end in ends]
    return np.unique(np.concatenate([codes, *(each.ravel() for each in found)]))


def _path(between: Array, first: Array, size: int) -> tuple[float, list[int]]:
    """The cheapest way of `size` points to the last one.

    Between neighbouring codes lie at most `reach` points, which saves most of the work. If the way
    needs all of them, it is looked for again with more.
    """
    count = len(first)
    reach = min(count - 1, max(2, REACH * count // size))
    while True:
        cost, path = _within(between, first, size, reach)
        if reach == count - 1 or (np.isfinite(cost) and max(np.diff(path)) < reach):
            return cost, path
        reach = min(count - 1, 2 * reach)


def _within(between: Array, first: Array, size: int, reach: int) -> tuple[float, list[int]]:
    """The cheapest way of `size` points to the last one in steps of at most `reach` points."""
    count = len(first)
    point = np.arange(count)
    before = point[:, None] + np.arange(-reach, 0)
    steps = np.where(before < 0, np.inf, between[np.maximum(before, 0), point[:, None]])
    none = np.full(reach, np.inf)
    total, choices = first, []
    for _ in range(size - 1):
        earlier = np.lib.stride_tricks.sliding_window_view(np.r_[none, total[:-1]], reach)
        sums = earlier + steps
        choice = sums.argmin(axis=1)
        total = sums[point, choice]
        choices.append(before[point, choice])
    path = [count - 1]
    for choice in reversed(choices):
        path.append(int(choice[path[-1]]))
    return float(total[-1]), path[::-1]
