"""Steps on bfloat16 parameters, rounded stochastically to keep small updates."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Setup
from benchmarks.cases.adamw import EIGHT, FUSED, TORCH, matches, needs, traffic
from benchmarks.data import matrices, new_gradients, parameters
from benchmarks.limits import Needs
from benchmarks.peers import BITSANDBYTES, TORCHAO, need, torchao
from qmaps.optim import AdamW8bit

NEAREST = "qmaps, to nearest"
SPLIT = 'qmaps, master_weights="bf16+8"'
TORCH_TRAFFIC = 3 * 2 + 4 * 2
"""Bytes per element: torch keeps the moments of bfloat16 parameters in bfloat16."""


def stochastic(params: list[Tensor]) -> AdamW8bit:
    """Our 8-bit optimizer."""
    return AdamW8bit(params, stochastic_rounding=True)


def beside(params: list[Tensor]) -> Setup:
    """8-bit AdamW beside torch's, with parameters rounded to nearest, and 8-bit peers."""
    return Setup(
        {
            OURS: lambda: stochastic(params).step,
            NEAREST: lambda: AdamW8bit(params).step,
            SPLIT: lambda: AdamW8bit(params, master_weights="bf16+8").step,
            FUSED: lambda: torch.optim.AdamW(params, **TORCH[FUSED]).step,
            BITSANDBYTES: lambda: need("bitsandbytes").optim.AdamW8bit(params).step,
            TORCHAO: lambda: torchao("AdamW8bit", bf16_stochastic_round=True)(params),
        },
        elements=sum(p.numel() for p in params),
        nbytes={
            OURS: traffic(EIGHT, size=2),
            NEAREST: traffic(EIGHT, size=2),
            SPLIT: traffic(EIGHT, size=2) + 2,  # a remainder is read and written
            FUSED: TORCH_TRAFFIC,
        },
        needs={
            **dict.fromkeys((OURS, NEAREST), needs(EIGHT, size=2)),
            SPLIT: needs(EIGHT, size=3),
            FUSED: Needs(written=2 + 4.0),
        },
        refresh=new_gradients(params),
    )


def make(scale: float) -> Setup:
    """`beside` on the CPU, and whether the answers are right."""
    setup = beside(parameters(matrices(scale), torch.bfloat16))
    return replace(setup, check=lambda: matches(stochastic, torch.bfloat16))


NOTE = "torch and bitsandbytes round to nearest; torch keeps its moments in bfloat16"
CASES = (
    Case(
        "AdamW 8-bit, bfloat16 rounded stochastically, four matrices",
        make,
        note=NOTE,
    ),
)
