"""All cases on a device, the most wanted first, should time run out."""

from __future__ import annotations

from benchmarks.gpu.case import GpuCase
from benchmarks.gpu.cases import adamw, metrics, quantiles, quantize

CASES: tuple[GpuCase, ...] = (
    *adamw.CASES,
    *quantize.CASES,
    *quantiles.CASES,
    *metrics.CASES,
    *adamw.GRAPHS,
)
