"""Least-squares fits of codebooks (`qmaps.maps.lloyd`)."""

from __future__ import annotations

import torch
from torch import Tensor

SWEEPS = 500
TOLERANCE = 1e-9


class Cells:
    """Data in ascending order; any interval can be a code's cell.

    Prefix sums give its moments by two look-ups: x of shape (n,), w, wx and wxx of (n + 1,), all
    float64 and summed one by one in that order.
    """

    def __init__(self, values: Tensor, weights: Tensor | None) -> None:
        self.x, order = values.double().sort(stable=True)
        w = torch.ones_like(self.x) if weights is None else weights.double()[order]
        zero = w.new_zeros(1)
        self.w = torch.cat([zero, w.cumsum(0)])
        self.wx = torch.cat([zero, (w * self.x).cumsum(0)])
        self.wxx = torch.cat([zero, (w * self.x * self.x).cumsum(0)])

    def split(self, codebook: Tensor) -> Tensor:
        """Indices where the data changes from one code to the next, with both ends."""
        inner = torch.searchsorted(self.x, (codebook[:-1] + codebook[1:]) / 2, right=True)
        return torch.cat([inner.new_zeros(1), inner, inner.new_tensor([self.x.numel()])])

    def error(self, codebook: Tensor) -> float:
        """The weighted sum of squared errors of the nearest codes, added one by one."""
        cut = self.split(codebook)
        w, wx, wxx = (prefix[cut].diff() for prefix in (self.w, self.wx, self.wxx))
        return float((wxx - 2 * codebook * wx + codebook**2 * w).cumsum(0)[-1])

    def refined(self, codebook: Tensor) -> Tensor:
        """Alternate nearest codes and weighted means until the error stops falling."""
        error = self.error(codebook)
        for _ in range(SWEEPS):
            cut = self.split(codebook)
            w, wx = self.w[cut].diff(), self.wx[cut].diff()
            # A code that no element uses stays where it is.
            moved = torch.where(w > 0, wx / w.clamp_min(torch.finfo(w.dtype).tiny), codebook)
            moved = moved.sort().values
            lower = self.error(moved)
            if not lower < error:
                return codebook
            done = error - lower <= TOLERANCE * error
            codebook, error = moved, lower
            if done:
                break
        return codebook

    def partition(self, cut: Tensor, size: int) -> list[int]:
        """Find the `size` intervals of the lowest cost; returns their upper cuts, last first.

        Among equals an interval starts at the first.
        """
        w, wx, wxx = (prefix[cut] for prefix in (self.w, self.wx, self.wxx))
        # cost[i, j]: squared error of one code for everything between cuts i and j.
        mass = w[None, :] - w[:, None]
        first = wx[None, :] - wx[:, None]
        cost = (wxx[None, :] - wxx[:, None]) - first**2 / mass.clamp_min(torch.finfo(w.dtype).tiny)
        cost = cost.clamp_min(0)
        # Only forward intervals exist; an empty one means that a code is not used.
        cost.masked_fill_(torch.ones_like(cost, dtype=torch.bool).tril(-1), float("inf"))

        best = cost[0]
        chosen = []
        for _ in range(size - 1):
            best, start = (best[:, None] + cost).min(dim=0)
            chosen.append(start)
        ends = [cut.numel() - 1]
        for start in reversed(chosen):
            ends.append(int(start[ends[-1]]))
        return ends
