"""`qmaps.maps.lloyd` on the native engine, with the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.engines.addresses import address
from qmaps.engines.native import core
from qmaps.maps.lloyd import SWEEPS, TOLERANCE, Cells


class NativeCells(Cells):
    """Data in ascending order, on the CPU."""

    def __init__(self, values: Tensor, weights: Tensor | None) -> None:
        self.x, self.w, self.wx, self.wxx = sort_data(values, weights)

    def refined(self, codebook: Tensor) -> Tensor:
        codebook = codebook.clone()
        at = address(self.x), address(self.w), address(self.wx), address(self.wxx)
        data = (*at, self.x.numel())
        core.refine(data, address(codebook), codebook.numel(), SWEEPS, TOLERANCE)
        return codebook

    def partition(self, cut: Tensor, size: int) -> list[int]:
        w, wx, wxx = self.w[cut], self.wx[cut], self.wxx[cut]
        ends: list[int] = core.partition(address(w), address(wx), address(wxx), len(w), size)
        return ends


def sort_data(values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`Cells.x`, `w`, `wx` and `wxx` of 1-D float32 values; equal values keep their order."""
    values = values.contiguous()
    weights = None if weights is None else weights.double().contiguous()
    n = values.numel()
    x = torch.empty(n, dtype=torch.float64)
    w, wx, wxx = (torch.empty(n + 1, dtype=torch.float64) for _ in range(3))
    core.sort_data(
        address(values),
        0 if weights is None else address(weights),
        (address(x), address(w), address(wx), address(wxx), n),
    )
    return x, w, wx, wxx
