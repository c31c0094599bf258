"""Errors of quantizing a tensor, on a device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.case import OURS, Setup
from benchmarks.data import normal, quantizer
from benchmarks.gpu.case import GpuCase


def sums(spec: str) -> Callable[[torch.device, int], Setup]:
    """All metrics of `spec`, without codes."""

    def make(device: torch.device, elements: int) -> Setup:
        x, q = normal((elements,), device=device), quantizer(spec)

        return Setup({OURS: lambda: lambda: q.error(x)}, elements=elements, nbytes={OURS: 4.0})

    return make


NOTE = "the reference, for no kernel measures errors; the bound is that of reading the tensor once"
CASES = tuple(
    GpuCase(f"error metrics {spec}", sums(spec), 1 << 28, 96, note=NOTE)
    for spec in ("B256/DE@8s", "B128/DE@4s")
)
