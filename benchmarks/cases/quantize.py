"""Quantizing float32 in blocks to 8 bits, into existing storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Setup
from benchmarks.data import block_size, quantizer, vector
from benchmarks.limits import Needs, encoding
from benchmarks.peers import BITSANDBYTES, KERNEL, kernel, need
from benchmarks.timing import Work


def beside(x: Tensor, spec: str) -> Setup:
    """Quantize `x` under `spec`; bitsandbytes gets its codebook as the code."""
    q = quantizer(spec)
    t, block, code = q.quantize(x), block_size(q), q.map.codebook().to(x.device)

    def peer() -> Work:
        bnb = need("bitsandbytes.functional")
        absmax, codes = _storage(x, block)
        return lambda: bnb.quantize_blockwise(
            x, code=code, absmax=absmax, out=codes, blocksize=block
        )

    def check() -> dict[str, float]:
        works = {}
        try:
            bnb = need("bitsandbytes.functional")
            theirs, _ = bnb.quantize_blockwise(x, code=code, blocksize=block)
            same = t.codes().view(-1) == theirs.view(-1).int()
            works["share of codes equal to bitsandbytes'"] = same.float().mean().item()
            if "/DE@8s" in spec:
                apart = (bnb.create_dynamic_map(signed=True) - code.cpu()).abs().max()
                works["its dynamic map and ours differ by at most"] = apart.item()
        except Exception:
            return works
        return works

    # One read, one code; a scale for each block.
    nbytes = 4 + 1 + 4 / block
    # A division by the scale.
    needs = Needs(written=nbytes - 4, divisions=1, shuffles=encoding(q))
    return Setup(
        {
            OURS: lambda: lambda: q.quantize_unchecked(x, out=t),
            CHECKED: lambda: lambda: q.quantize(x, out=t),
            BITSANDBYTES: peer,
        },
        elements=x.numel(),
        # The codes that are overwritten are read and written elsewhere, in case input is bad.
        nbytes={OURS: nbytes, CHECKED: nbytes + 2},
        needs={OURS: needs, CHECKED: replace(needs, written=needs.written + 1)},
        check=check,
    )


def encode(spec: str) -> Callable[[float], Setup]:
    """`beside` on the CPU, where bitsandbytes' kernel can be called by itself."""

    def make(scale: float) -> Setup:
        x, q = vector(scale), quantizer(spec)
        setup, block = beside(x, spec), block_size(q)

        def bare() -> Work:
            absmax, codes = _storage(x, block)
            code = q.map.codebook()
            return kernel("cquantize_blockwise_cpu_fp32", code, x, absmax, codes, block)

        return replace(
            setup,
            methods={**setup.methods, KERNEL: bare},
            nbytes={**setup.nbytes, KERNEL: setup.nbytes[OURS]},
            needs={**setup.needs, KERNEL: Needs(written=setup.needs[OURS].written)},
        )

    return make


def _storage(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """For the scales and codes of `x`."""
    absmax = torch.empty(-(-x.numel() // block), device=x.device)
    return absmax, torch.empty(x.numel(), dtype=torch.uint8, device=x.device)


CHECKED = "qmaps, checked"
NOTE = (
    "bitsandbytes does not look for NaN and infinity; ours does where it says so, and with `out=` "
    "keeps the codes that it overwrites, for bad input must leave `out` as it was. The `out=` of "
    "bitsandbytes is copied into, so its kernel is timed by itself as well"
)
CASES = (
    Case("quantize B256/DE@8s", encode("B256/DE@8s"), note=NOTE, goal=0.75),
    Case("quantize B2048/DE@8s", encode("B2048/DE@8s"), note=NOTE, goal=0.75),
    Case("quantize B256/random@8s", encode("B256/random@8s"), note=NOTE, goal=0.75),
    Case("quantize B2048/random@8s", encode("B2048/random@8s"), note=NOTE, goal=0.75),
)
