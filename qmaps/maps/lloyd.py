"""Lloyd-Max: the codebook of least squared error, the lower bound for every other map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from qmaps.maps.fitted import FitFunctions, FittedMap, in_use

BINS = 1024
"""Cells in which the starting point is optimal; refined on the data itself afterwards."""
SWEEPS = 500
TOLERANCE = 1e-9


@dataclass(frozen=True)
class LloydMax(FittedMap, name="lloyd"):
    """The ``2**bits`` values of least weighted squared error for a tensor.

    Starts from the exact optimum over a grid of about 1024 cells (dynamic programming) and
    from the high-rate optimum (density to the power 1/3), refines both by Lloyd's iteration
    on the data, and keeps the better. Within the grid's resolution this is the global
    optimum; Lloyd's iteration alone would stop in a local one.

    Source: Lloyd (1982), "Least squares quantization in PCM"; Max (1960); starting density
    after Panter and Dite (1951).
    """

    def fit_values(
        self, values: Tensor, weights: Tensor | None, functions: FitFunctions | None = None
    ) -> Tensor:
        return self.fit_values_each([self], values, weights, functions)[0]

    @classmethod
    def fit_values_each(
        cls,
        maps: Sequence[Self],
        values: Tensor,
        weights: Tensor | None,
        functions: FitFunctions | None = None,
    ) -> list[Tensor]:
        if weights is not None and not bool((weights > 0).any()):
            weights = None
        cells = (functions or in_use()).cells(values, weights)
        return [_best(cells, 2**map_.bits) for map_ in maps]


def _best(cells: Cells, size: int) -> Tensor:
    starts = [_optimum_on_grid(cells, size), _high_rate(cells, size)]
    return min((cells.refined(start) for start in starts), key=cells.error).float()


def _high_rate(cells: Cells, size: int) -> Tensor:
    """Points of density proportional to the data's density to the power 1/3."""
    x = cells.x
    edges = torch.linspace(float(x[0]), float(x[-1]), 8 * size + 1, dtype=torch.float64)
    edges = edges.to(x.device)
    cut = torch.searchsorted(x, edges[1:-1], right=True)
    cut = torch.cat([cut.new_zeros(1), cut, cut.new_tensor([x.numel()])])
    mass = cells.w[cut].diff()
    density = mass.clamp_min(float(mass.sum()) * 1e-9).pow(1 / 3).cumsum(0)
    level = (torch.arange(size, dtype=torch.float64, device=x.device) + 0.5) / size
    cell = torch.searchsorted(density, level * density[-1]).clamp(max=8 * size - 1)
    return (edges[cell] + edges[cell + 1]) / 2


def _optimum_on_grid(cells: Cells, size: int) -> Tensor:
    """The exact optimum among codebooks whose boundaries lie on a grid of the data.

    The grid joins cells of equal width with cells of equal count, so that neither sparse
    tails nor dense middles are lumped together.
    """
    n = cells.x.numel()
    bins = max(BINS, 4 * size)
    f32 = torch.float32
    by_count = torch.linspace(0, n, min(bins // 2, n) + 1, dtype=f32, device=cells.x.device).long()
    width = torch.linspace(float(cells.x[0]), float(cells.x[-1]), bins // 2 + 1, dtype=f32)
    by_width = torch.searchsorted(cells.x, width[1:-1].to(cells.x), right=True)
    cut = torch.unique(torch.cat([by_count, by_width]))
    index = cut[[0, *sorted(cells.partition(cut, size))]]
    mass, first = cells.w[index].diff(), cells.wx[index].diff()
    filled = torch.where(mass > 0, first / mass.clamp_min(torch.finfo(mass.dtype).tiny), torch.nan)
    # Unused codes repeat their left neighbour.
    values = filled[~filled.isnan()]
    padding = values[-1:].expand(size - values.numel())
    return torch.cat([values, padding]).sort().values


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
