"""Dequantizing 8-bit codes to float32, into existing storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Setup
from benchmarks.data import block_size, quantizer, vector
from benchmarks.limits import Needs, decoding
from benchmarks.peers import BITSANDBYTES, KERNEL, kernel, need
from benchmarks.timing import Work


def beside(x: Tensor, spec: str) -> Setup:
    """Dequantize the codes of `x` under `spec`; bitsandbytes gets the same codes and scales."""
    q = quantizer(spec)
    t, block, code = q.quantize(x), block_size(q), q.map.codebook().to(x.device)
    y = torch.empty_like(x)
    (absmax,) = t.scales

    def peer() -> Work:
        bnb = need("bitsandbytes.functional")
        out = {"out": torch.empty_like(x)} if x.is_cuda else {}
        return lambda: bnb.dequantize_blockwise(
            t.packed, absmax=absmax, code=code, blocksize=block, **out
        )

    nbytes = 1 + 4 + 4 / block
    return Setup(
        {OURS: lambda: lambda: t.dequantize(out=y), BITSANDBYTES: peer},
        elements=x.numel(),
        nbytes={OURS: nbytes},
        needs={OURS: Needs(written=4, shuffles=decoding(q))},
    )


def decode(spec: str) -> Callable[[float], Setup]:
    """`beside` on the CPU, where bitsandbytes' kernel can be called by itself."""

    def make(scale: float) -> Setup:
        x, q = vector(scale), quantizer(spec)
        setup = beside(x, spec)
        t, block, code = q.quantize(x), block_size(q), q.map.codebook()
        theirs = torch.empty_like(x)

        def bare() -> Work:
            absmax = t.scales[0]
            return kernel("cdequantize_blockwise_cpu_fp32", code, t.packed, absmax, theirs, block)

        def check() -> dict[str, float]:
            try:
                bare()()
            except Exception:
                return {}
            same = (t.dequantize() == theirs).float().mean().item()
            return {"share of values equal to bitsandbytes'": same}

        return replace(
            setup,
            methods={**setup.methods, KERNEL: bare},
            nbytes={**setup.nbytes, KERNEL: setup.nbytes[OURS]},
            needs={**setup.needs, KERNEL: Needs(written=4)},
            check=check,
        )

    return make


NOTE = (
    "bitsandbytes' `out=` has no kernel for CPU tensors: its function allocates, its kernel by "
    "itself does not"
)
CASES = (
    Case("dequantize B256/DE@8s", decode("B256/DE@8s"), note=NOTE, goal=0.75),
    Case("dequantize B2048/DE@8s", decode("B2048/DE@8s"), note=NOTE, goal=0.75),
)
