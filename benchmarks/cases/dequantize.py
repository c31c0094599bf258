"""Dequantizing 8-bit codes to float32, into storage that is there."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.case import OURS, Case, Setup
from benchmarks.data import quantizer, vector
from benchmarks.peers import BITSANDBYTES, KERNEL, kernel, need
from benchmarks.timing import Work


def decode(spec: str) -> Callable[[float], Setup]:
    """Dequantize what `spec` made; bitsandbytes gets the same codes and scales."""

    def make(scale: float) -> Setup:
        x, q = vector(scale), quantizer(spec)
        t, block, code = q.quantize(x), q.normalizer.size, q.map.codebook()
        y, theirs = torch.empty_like(x), torch.empty_like(x)
        (absmax,) = t.scales

        def peer() -> Work:
            bnb = need("bitsandbytes.functional")
            return lambda: bnb.dequantize_blockwise(
                t.packed, absmax=absmax, code=code, blocksize=block
            )

        def bare() -> Work:
            return kernel("cdequantize_blockwise_cpu_fp32", code, t.packed, absmax, theirs, block)

        def check() -> dict[str, float]:
            try:
                bare()()
            except Exception:
                return {}
            same = (t.dequantize() == theirs).float().mean().item()
            return {"share of values equal to bitsandbytes'": same}

        nbytes = 1 + 4 + 4 / block
        return Setup(
            {OURS: lambda: lambda: t.dequantize(out=y), BITSANDBYTES: peer, KERNEL: bare},
            elements=x.numel(),
            nbytes=dict.fromkeys((OURS, KERNEL), nbytes),
            check=check,
        )

    return make


NOTE = (
    "bitsandbytes' `out=` has no kernel for CPU tensors: its function allocates, its kernel by "
    "itself does not"
)
CASES = (
    Case("dequantize B256/DE@8s", decode("B256/DE@8s"), {BITSANDBYTES: 8}, NOTE),
    Case("dequantize B2048/DE@8s", decode("B2048/DE@8s"), {BITSANDBYTES: 8}, NOTE),
)
