"""Errors of quantizing a tensor, on a device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.case import OURS, Setup, UnavailableError
from benchmarks.data import normal, quantizer
from benchmarks.gpu.case import GpuCase
from benchmarks.timing import Work
from qmaps.ops import dispatch

PUBLIC = "qmaps, Quantizer.error"


def sums(spec: str) -> Callable[[torch.device, int], Setup]:
    """Sums for all metrics of `spec`, without codes."""

    def make(device: torch.device, elements: int) -> Setup:
        x, q = normal((elements,), device=device), quantizer(spec)

        def measured() -> object:
            return dispatch.measure(x, q.normalizer, q.map, keep=False)

        def ours() -> Work:
            if measured() is None:
                raise UnavailableError("the engine in use has no such kernel")
            return measured

        return Setup(
            {OURS: ours, PUBLIC: lambda: lambda: q.error(x)},
            elements=elements,
            nbytes={OURS: 4.0, PUBLIC: 4.0},
        )

    return make


NOTE = (
    "`qmaps.ops.dispatch.measure`; the bound is that of reading the tensor once. "
    "`Quantizer.error` is what users call: the same, and metrics from it, or the reference where "
    "there is no kernel"
)
CASES = tuple(
    GpuCase(f"error metrics {spec}", sums(spec), 1 << 28, 96, note=NOTE)
    for spec in ("B256/DE@8s", "B128/DE@4s")
)
