"""Gradients made up from the moments of a checkpoint, where none were recorded."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def mean_and_variance(
    m: Tensor, v: Tensor, betas: tuple[float, float], taken: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of each element's gradients, as Adam's moments tell them.

    Without bias, m is an estimate of the mean whose own variance is the share
    k = (1 - beta1) (1 + beta1^t) / ((1 + beta1) (1 - beta1^t)) of the gradients' variance, and v
    one of mean^2 + variance. So the sums over the tensor of the squared means, S, and of the
    variances, N, follow from sum(v) = S + N and sum(m^2) = S + k N. The means are m, reduced by
    the factor that makes the sum of their squares S; the variances are what v leaves.

    Args:
        m: the first moment.
        v: the second moment, of the same shape, at least 0.
        betas: decay of both moments.
        taken: number t of steps taken, at least 1.

    Returns:
        Mean and variance, float64 of the same shape.
    """
    beta1, beta2 = betas
    m = m.double() / (1 - beta1**taken)
    v = v.double() / (1 - beta2**taken)
    k = (1 - beta1) * (1 + beta1**taken) / ((1 + beta1) * (1 - beta1**taken))
    total, squares = float(v.sum()), float(m.square().sum())
    noise = (total - squares) / (1 - k) if k < 1 else 0.0
    signal = min(max(total - noise, 0.0), squares)
    mean = m * (signal / squares) ** 0.5 if squares else m
    return mean, (v - mean.square()).clamp_(min=0)


def simulated(
    m: Tensor,
    v: Tensor,
    betas: tuple[float, float],
    taken: int,
    steps: int,
    seed: tuple[int, int],
) -> Iterator[Tensor]:
    """Draw gradients that are normal and independent of one another.

    Real gradients have heavier tails and depend on the updates, so this is a substitute for
    recorded ones.

    Args:
        m: the first moment, float32.
        v: the second moment, float32 of the same shape, at least 0.
        betas: decay of both moments.
        taken: number of steps taken, at least 1.
        steps: number of gradients to draw.
        seed: two numbers; equal seeds give equal gradients.

    Returns:
        An iterator over float32 tensors of the shape of `m`.
    """
    mean, variance = mean_and_variance(m, v, betas, taken)
    location, scale = mean.float(), variance.sqrt().float()
    generator = torch.Generator().manual_seed((seed[0] * 1_000_003 + seed[1]) % 2**63)
    for _ in range(steps):
        drawn = torch.randn(m.shape, generator=generator, dtype=torch.float32)
        yield drawn.mul_(scale).add_(location)
