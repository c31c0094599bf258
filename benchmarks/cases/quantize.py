"""Quantizing float32 in blocks to 8 bits, into storage that is there."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.case import OURS, Case, Setup
from benchmarks.data import quantizer, vector
from benchmarks.peers import BITSANDBYTES, KERNEL, kernel, need
from benchmarks.timing import Work


def encode(spec: str) -> Callable[[float], Setup]:
    """Quantize under `spec`, whose codebook bitsandbytes is given as its code."""

    def make(scale: float) -> Setup:
        x, q = vector(scale), quantizer(spec)
        t, block, code = q.quantize(x), q.normalizer.size, q.map.codebook()
        absmax = torch.empty(-(-x.numel() // block))
        codes = torch.empty(x.numel(), dtype=torch.uint8)

        def peer() -> Work:
            bnb = need("bitsandbytes.functional")
            return lambda: bnb.quantize_blockwise(
                x, code=code, absmax=absmax, out=codes, blocksize=block
            )

        def bare() -> Work:
            return kernel("cquantize_blockwise_cpu_fp32", code, x, absmax, codes, block)

        def check() -> dict[str, float]:
            found = {}
            try:
                bnb = need("bitsandbytes.functional")
                theirs, _ = bnb.quantize_blockwise(x, code=code, blocksize=block)
                same = t.codes().view(-1) == theirs.view(-1).int()
                found["share of codes equal to bitsandbytes'"] = same.float().mean().item()
                if "/DE@8s" in spec:
                    apart = (bnb.create_dynamic_map(signed=True) - code).abs().max()
                    found["its dynamic map and ours differ by at most"] = apart.item()
            except Exception:
                return found
            return found

        # One read, one code; a scale for each block.
        nbytes = 4 + 1 + 4 / block
        return Setup(
            {
                OURS: lambda: lambda: q.quantize_unchecked(x, out=t),
                CHECKED: lambda: lambda: q.quantize(x, out=t),
                BITSANDBYTES: peer,
                KERNEL: bare,
            },
            elements=x.numel(),
            nbytes={OURS: nbytes, CHECKED: nbytes + 4, KERNEL: nbytes},
            check=check,
        )

    return make


CHECKED = "qmaps, checked"
NOTE = (
    "bitsandbytes does not look for NaN and infinity; ours does where it says so, which with "
    "`out=` takes a read of its own, for bad input must leave `out` as it was. The `out=` of "
    "bitsandbytes is copied into, so its kernel is timed by itself as well"
)
CASES = (
    Case("quantize B256/DE@8s", encode("B256/DE@8s"), {BITSANDBYTES: 25}, NOTE),
    Case("quantize B2048/DE@8s", encode("B2048/DE@8s"), {BITSANDBYTES: 25}, NOTE),
    Case("quantize B256/random@8s", encode("B256/random@8s"), {BITSANDBYTES: 12}, NOTE),
    Case("quantize B2048/random@8s", encode("B2048/random@8s"), {BITSANDBYTES: 12}, NOTE),
)
