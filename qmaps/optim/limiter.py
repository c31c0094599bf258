"""Fira's limiter: an update must not grow much from step to step."""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.optim.reductions import whole_norm


def limited(u: Tensor, last: Tensor, growth: float) -> Tensor:
    """`u` with a norm of at most `growth` times that of the last update.

        n = norm(u); limit = last * growth
        u = u * (limit / n)         where n > limit and last > 0
        last = min(n, limit)        n where last was 0

    Args:
        u: the update, float32.
        last: the last norm, 0-d, which is set to that of the result.
        growth: at least 1.

    Source: Chen et al. (2024), "Fira: can we achieve full-rank training of LLMs under low-rank
    constraint?", section 3.3 (norm-growth limiter).
    """
    n = whole_norm(u)
    limit = last * growth
    over = (n > limit) & (last > 0)
    u = u * torch.where(over, limit / torch.where(over, n, torch.ones_like(n)), torch.ones_like(n))
    last.copy_(torch.where(over, limit, n))
    return u
