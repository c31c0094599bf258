"""`qmaps.engines.least_squares` on the native engine, with the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.engines.addresses import address
from qmaps.engines.least_squares import SWEEPS, TOLERANCE, Cells
from qmaps.engines.native import core


class NativeCells(Cells):
    """Data in ascending order, on the CPU."""

    def __init__(self, values: Tensor, weights: Tensor | None) -> None:
        weights = None if weights is None else weights.double()
        self.x, self.w, self.wx, self.wxx = sort_data(values, weights)

    def refined(self, codebook: Tensor) -> Tensor:
        """The result of Lloyd's iteration on an ascending float64 codebook."""
        cells = (self.x, self.w, self.wx, self.wxx)
        return refine(cells, codebook, SWEEPS, TOLERANCE)

    def partition(self, cut: Tensor, size: int) -> list[int]:
        """Return the upper cuts of the `size` intervals of the lowest cost, last first."""
        return partition(self.w[cut], self.wx[cut], self.wxx[cut], size)


def sort_data(values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sorted data and prefix sums over it.

    Args:
        values: 1-D float32 on the CPU, finite.
        weights: float64 of the same shape; None weighs all alike.

    Returns:
        Float64 `x` of shape (n,), ascending, and the prefix sums of w, w x and w x x in its
        order, of shape (n + 1,). Equal values keep their order.
    """
    values = values.contiguous()
    weights = None if weights is None else weights.contiguous()
    n = values.numel()
    x = torch.empty(n, dtype=torch.float64)
    w, wx, wxx = (torch.empty(n + 1, dtype=torch.float64) for _ in range(3))
    core.sort_data(
        address(values),
        0 if weights is None else address(weights),
        (address(x), address(w), address(wx), address(wxx), n),
    )
    return x, w, wx, wxx


def partition(w: Tensor, wx: Tensor, wxx: Tensor, size: int) -> list[int]:
    """The ends of the `size` intervals of least cost, the last one first.

    Args:
        w: prefix sums of the weights w at the cuts between cells: contiguous float64 of shape
            (cuts,).
        wx: prefix sums of w x, like `w`.
        wxx: prefix sums of w x x, like `w`.
        size: number of intervals.

    Returns:
        `size` indices of cuts.
    """
    ends: list[int] = core.partition(address(w), address(wx), address(wxx), len(w), size)
    return ends


def refine(
    cells: tuple[Tensor, Tensor, Tensor, Tensor], codebook: Tensor, sweeps: int, tolerance: float
) -> Tensor:
    """Lloyd's iteration: alternate nearest codes and weighted means.

    Args:
        cells: `x`, `w`, `wx` and `wxx` as `sort_data` returns them: contiguous float64 on the CPU.
        codebook: contiguous, ascending float64 of shape (size,); it is not changed.
        sweeps: the largest number of iterations.
        tolerance: iteration stops once the error falls by at most this fraction of itself.

    Returns:
        The new codebook, float64 of shape (size,).
    """
    codebook = codebook.clone()
    x, w, wx, wxx = cells
    core.refine(
        (address(x), address(w), address(wx), address(wxx), x.numel()),
        address(codebook),
        codebook.numel(),
        sweeps,
        tolerance,
    )
    return codebook
