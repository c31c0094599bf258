"""Moving averages under quantizers in simulations, for what few replayed steps do not show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import Quantizer
from qmaps.analyze.replay.recursion import Recursion, share
from qmaps.capture.gradients import rows_of

ELEMENTS, COLUMNS = 4096, 1024
"""Most elements of a sample, about, and most of a row."""
MOST = 10_000
"""Most steps of a simulation."""
RUN = 16
"""Elements of which the largest does not fall; most blocks hold whole runs."""
FALL = 0.01
"""Factor of squared gradients after the fall: gradients fall tenfold."""


def sample(x: Tensor) -> Tensor:
    """Rows of a tensor, spread evenly, as a matrix; a vector gives its first elements."""
    x = x.reshape(len(x), -1)[:, :COLUMNS] if x.dim() > 1 else x.reshape(1, -1)[:, :ELEMENTS]
    rows = rows_of(x.shape, ELEMENTS)
    return (x if rows is None else x[rows]).contiguous()


def fall_ratios(
    v: Tensor, quantizers: Sequence[Quantizer], beta: float, key: RoundingKey
) -> list[float]:
    """Second moments after a fall of gradients beside others, divided by the exact ones.

    Gradients are normal with the variances `v`. Those of every other element, as on a checkerboard,
    are ten times as small, for 3 / (1 - beta) steps; the largest of each 16 elements keeps its
    variance, so that scales stay. The ratio is the geometric mean over the elements that fall and
    do not decode to 0; 1 is right, and a second moment that does not fall at all has 17.

    Args:
        v: second moments at the start, a matrix of `sample`.
        quantizers: quantizers of the second moment.
        beta: its decay.
        key: random numbers of stochastic rounding; its seed is also that of the gradients.

    Returns:
        A ratio for each quantizer; NaN if all falling elements are 0.
    """
    rows, cols = (torch.arange(size) for size in v.shape)
    falls, means = ((rows[:, None] + cols) % 2 == 0).view(-1), v.reshape(-1).clone()
    runs = torch.nn.functional.pad(means, (0, -len(means) % RUN)).view(-1, RUN)
    falls[runs.argmax(dim=1) + RUN * torch.arange(len(runs))] = False
    means[falls] *= FALL
    falls &= means > 0
    recursion = Recursion(v, quantizers, beta, key)
    for step, noise in _noise(v.numel(), math.ceil(3 / (1 - beta)), key.seed):
        recursion.advance(noise.square_().mul_(means), step, check=False)
    exact, *others = recursion.after[:, falls]
    return [float((x / exact)[x > 0].log_().mean().exp()) for x in others]


def accumulated_noise(
    deviations: Tensor, quantizers: Sequence[Quantizer], beta: float, key: RoundingKey
) -> list[float]:
    """Noise that quantizing adds to a moving average of noise, relative to the average.

    Gradients are normal with these standard deviations and the mean 0, for 10 / (1 - beta) steps.
    In the second half of them, the mean square of the difference between quantized and exact
    average, before encoding, is divided by that of the exact one. Each element counts in units of
    its deviation.

    Args:
        deviations: standard deviations of the gradients, a matrix of `sample`.
        quantizers: quantizers of the first moment.
        beta: its decay.
        key: random numbers of stochastic rounding; its seed is also that of the gradients.

    Returns:
        A ratio for each quantizer; 0 is right, and NaN if no deviation is above 0.
    """
    flat = deviations.reshape(-1)
    draw = torch.Generator().manual_seed(key.seed)
    spread = math.sqrt((1 - beta) / (1 + beta))  # of the average, by the deviation
    start = torch.randn(deviations.shape, generator=draw, dtype=torch.float32)
    start.mul_(deviations).mul_(spread)
    recursion = Recursion(start, quantizers, beta, key)
    noise_of, power = [0.0] * len(quantizers), 0.0
    units = flat.clamp(min=torch.finfo(flat.dtype).tiny)
    steps = math.ceil(10 / (1 - beta))
    for step, noise in _noise(flat.numel(), steps, key.seed + 1):
        recursion.advance(noise.mul_(flat), step, check=False)
        if step > min(steps, MOST) // 2:
            exact, *others = recursion.before
            power += float((exact / units).square_().sum())
            for place, x in enumerate(others):
                noise_of[place] += float(((x - exact) / units).square_().sum())
    return [share(added, power) for added in noise_of]


def _noise(numel: int, steps: int, seed: int) -> Iterator[tuple[int, Tensor]]:
    """Numbers of steps, and normal noise of the variance 1 for each."""
    draw = torch.Generator().manual_seed(seed)
    for step in range(1, min(steps, MOST) + 1):
        yield step, torch.randn(numel, generator=draw, dtype=torch.float32)
