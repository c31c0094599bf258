"""Numbers below the smallest normal float32, slow on many processors."""

from __future__ import annotations

import torch

from benchmarks.case import OURS, Case, Setup
from benchmarks.cases.adamw import EIGHT, FUSED, TORCH, needs, ours, traffic
from benchmarks.data import matrices, new_gradients, parameters, quantizer, vector

ORDINARY = "qmaps, ordinary data"


def encode(scale: float) -> Setup:
    """Quantize subnormals, and ordinary numbers."""
    x, q = vector(scale), quantizer("B256/DE@8s")
    tiny = x * 1e-40
    t, u = q.quantize(tiny), q.quantize(x)
    return Setup(
        {
            OURS: lambda: lambda: q.quantize(tiny, out=t),
            ORDINARY: lambda: lambda: q.quantize(x, out=u),
        },
        elements=x.numel(),
    )


def step(scale: float) -> Setup:
    """Gradients of 1e-40 make subnormal first moments, those of 1e-20 second ones."""
    usual, tiny = parameters(matrices(scale)), parameters(matrices(scale))
    refreshes = new_gradients(usual), new_gradients(tiny, (1e-40, 1e-20))

    def refresh(number: int) -> None:
        for renew in refreshes:
            renew(number)

    return Setup(
        {
            OURS: lambda: ours(tiny, EIGHT).step,
            ORDINARY: lambda: ours(usual, EIGHT).step,
            FUSED: lambda: torch.optim.AdamW(tiny, **TORCH[FUSED]).step,
        },
        elements=sum(p.numel() for p in tiny),
        nbytes={OURS: traffic(EIGHT), ORDINARY: traffic(EIGHT)},
        needs=dict.fromkeys((OURS, ORDINARY), needs(EIGHT)),
        refresh=refresh,
    )


CASES = (
    Case("quantize subnormals B256/DE@8s", encode),
    Case("AdamW 8-bit on subnormals, four matrices", step),
)
