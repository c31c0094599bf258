"""Steps of optimizers with factored second moments: statistics of rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Setup
from benchmarks.cases.adamw import FUSED, TORCH, matches, shuffles, traffic, writing
from benchmarks.data import matrices, new_gradients, parameters
from benchmarks.limits import Needs
from qmaps import optim
from qmaps.optim import QuantizedOptimizer

FIXED = {"lr": 1e-3, "relative_step": False, "scale_parameter": False}
MOMENTUM = FIXED | {"beta1": 0.9}
WHOLE = "ours in 32 bits"


def steps(
    ours: Callable[..., QuantizedOptimizer],
    options: Mapping[str, Any],
    peers: Mapping[str, Callable[[list[Tensor]], torch.optim.Optimizer]],
    *,
    first: str | None = None,
    readings: int,
) -> Callable[[float], Setup]:
    """One of ours beside others on the same parameters.

    Args:
        ours: our class.
        options: of it.
        peers: by name.
        first: the quantizer of its first moment, if it keeps one.
        readings: how often the step reads a matrix's gradient.
    """

    def prepare(params: list[Tensor]) -> torch.optim.Optimizer:
        return ours(params, **options)

    def make(scale: float) -> Setup:
        params = parameters(matrices(scale))
        specs = [] if first is None else [first]
        nbytes = traffic(specs) + 4 * (readings - 1)
        return Setup(
            {OURS: lambda: prepare(params).step}
            | {name: lambda peer=peer: peer(params).step for name, peer in peers.items()},
            elements=sum(p.numel() for p in params),
            nbytes={OURS: nbytes},
            needs={OURS: Needs(writing(specs), divisions=len(specs), shuffles=shuffles(specs))},
            refresh=new_gradients(params),
            check=lambda: matches(prepare),
        )

    return make


def _torch(cls: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[..., Any]:
    return lambda params: cls(params, **options)


_ADAMW = {name: _torch(torch.optim.AdamW, **TORCH[name]) for name in (FUSED, "torch foreach")}
_ADAFACTOR = {"torch Adafactor, foreach": _torch(torch.optim.Adafactor, lr=1e-3, foreach=True)}

CASES = (
    Case(
        "AdamW 4-bit, factored second moment, four matrices",
        steps(optim.AdamW4bitFactor, {"lr": 1e-3}, _ADAMW, first="B128/DE@4s+sr", readings=2),
        note="beside torch's AdamW",
    ),
    Case(
        "Adafactor 8-bit, four matrices",
        steps(optim.Adafactor8bit, FIXED, _ADAFACTOR, readings=3),
    ),
    Case(
        "Adafactor 8-bit with a first moment, four matrices",
        steps(
            optim.Adafactor8bit,
            MOMENTUM,
            {WHOLE: _torch(optim.Adafactor, **MOMENTUM)},
            first="B256/DE@8s",
            readings=3,
        ),
        note="torch's Adafactor has no first moment",
    ),
    Case(
        "SM3, four matrices",
        steps(optim.SM3, {"lr": 0.1}, {}, readings=1),
        note="torch has none",
    ),
)
