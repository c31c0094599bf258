"""All cases, one file per group."""

from __future__ import annotations

from benchmarks.case import Measured
from benchmarks.cases import (
    adamw,
    bfloat16,
    dequantize,
    factored,
    memory,
    optimizers,
    quantiles,
    quantize,
    rounding,
    subnormals,
    sweep,
)

CASES: tuple[Measured, ...] = (
    *quantize.CASES,
    *dequantize.CASES,
    *adamw.CASES,
    *rounding.CASES,
    *bfloat16.CASES,
    *optimizers.CASES,
    *factored.CASES,
    *subnormals.CASES,
    *quantiles.CASES,
    *sweep.CASES,
    *memory.CASES,
)
