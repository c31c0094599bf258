"""Lloyd-Max: the codebook of least squared error, the lower bound for every other map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from qmaps.maps._least_squares import Cells
from qmaps.maps.fitted import FittedMap, engine

BINS = 1024
"""Cells in which the starting point is optimal; refined on the data itself afterwards."""


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

    def fit_values(self, values: Tensor, weights: Tensor | None) -> Tensor:
        return self.fit_values_each([self], values, weights)[0]

    @classmethod
    def fit_values_each(
        cls, maps: Sequence[Self], values: Tensor, weights: Tensor | None
    ) -> list[Tensor]:
        if weights is not None and not bool((weights > 0).any()):
            weights = None
        cells = engine().cells(values, weights)
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
