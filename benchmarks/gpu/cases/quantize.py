"""Quantizing and dequantizing on a device, into existing storage."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.case import OURS, Setup
from benchmarks.cases import dequantize, quantize
from benchmarks.data import block_size, normal, quantizer
from benchmarks.gpu.case import GpuCase
from benchmarks.peers import BITSANDBYTES, need
from benchmarks.timing import Work

FULL, NEEDED = 1 << 28, 48
GOAL = 0.8
NOTE = (
    "`quantize_unchecked` is timed; where it says so `quantize`, which looks for NaN and infinity "
    "in a read of its own and waits for the answer. bitsandbytes does not look for them"
)


def on(work: Callable[[Tensor, str], Setup], spec: str) -> Callable[[torch.device, int], Setup]:
    """A work of `spec` on normal numbers on the device."""
    return lambda device, elements: work(normal((elements,), device=device), spec)


def encode4(x: Tensor, spec: str) -> Setup:
    """Quantize to 4 bits; bitsandbytes has one such map."""
    q = quantizer(spec)
    t, block = q.quantize(x), block_size(q)

    def peer() -> Work:
        bnb = need("bitsandbytes.functional")
        return lambda: bnb.quantize_4bit(x, blocksize=block, quant_type="nf4")

    peers = {BITSANDBYTES: peer} if "nf4" in spec else {}
    return Setup(
        {OURS: lambda: lambda: q.quantize_unchecked(x, out=t), **peers},
        elements=x.numel(),
        nbytes=dict.fromkeys((OURS, *peers), 4 + 0.5 + 4 / block),
    )


def decode4(x: Tensor, spec: str) -> Setup:
    """Dequantize from 4 bits."""
    q = quantizer(spec)
    t, y, block = q.quantize(x), torch.empty_like(x), block_size(q)

    def peer() -> Work:
        bnb = need("bitsandbytes.functional")
        codes, state = bnb.quantize_4bit(x, blocksize=block, quant_type="nf4")
        return lambda: bnb.dequantize_4bit(codes, state)

    peers = {BITSANDBYTES: peer} if "nf4" in spec else {}
    return Setup(
        {OURS: lambda: lambda: t.dequantize(out=y), **peers},
        elements=x.numel(),
        nbytes=dict.fromkeys((OURS, *peers), 4 + 0.5 + 4 / block),
    )


EIGHT = ("B256/DE@8s", "B2048/DE@8s", "B256/random@8s", "B2048/random@8s")
FOUR = ("B128/DE@4s", "B64/nf4@4s")
ALLOCATES = "bitsandbytes allocates what it returns"

CASES = (
    *(
        GpuCase(f"quantize {spec}", on(quantize.beside, spec), FULL, NEEDED, GOAL, note=NOTE)
        for spec in EIGHT
    ),
    *(
        GpuCase(f"dequantize {spec}", on(dequantize.beside, spec), FULL, NEEDED, GOAL)
        for spec in EIGHT
    ),
    *(
        GpuCase(f"quantize {spec}", on(encode4, spec), FULL, NEEDED, note=ALLOCATES)
        for spec in FOUR
    ),
    *(
        GpuCase(f"dequantize {spec}", on(decode4, spec), FULL, NEEDED, note=ALLOCATES)
        for spec in FOUR
    ),
)
