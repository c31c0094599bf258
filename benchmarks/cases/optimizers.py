"""Steps of the other optimizers with 8-bit states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Setup
from benchmarks.cases.adamw import EIGHT, FUSED, TORCH, matches, traffic
from benchmarks.data import matrices, new_gradients, parameters
from benchmarks.peers import BITSANDBYTES, need
from benchmarks.timing import Work
from qmaps import optim

RATE = {"lr": 1e-3}
MOMENTUM = RATE | {"momentum": 0.9}
UNFUSED = {name: options for name, options in TORCH.items() if name != FUSED}


def steps(
    ours: Callable[..., torch.optim.Optimizer],
    spec: str,
    options: Mapping[str, Any],
    theirs: Callable[..., torch.optim.Optimizer] | None,
    kinds: Mapping[str, Mapping[str, bool]],
) -> Callable[[float], Setup]:
    """An optimizer beside that of torch and bitsandbytes' of the same name.

    Args:
        ours: our class.
        spec: the quantizer of its only state.
        options: of all of them.
        theirs: torch's class; None where torch has none.
        kinds: the forms that torch's has.
    """

    def step(cls: Callable[..., Any], params: list[Tensor], kind: Mapping[str, bool]) -> Work:
        work: Work = cls(params, **options, **kind).step
        return work

    def make(scale: float) -> Setup:
        params = parameters(matrices(scale))
        contenders: dict[str, Callable[[], Work]] = {OURS: lambda: step(ours, params, {})}
        if theirs is not None:
            for name, kind in kinds.items():
                contenders[name] = lambda kind=kind: step(theirs, params, kind)
        contenders[BITSANDBYTES] = lambda: step(
            getattr(need("bitsandbytes").optim, ours.__name__), params, {}
        )
        return Setup(
            contenders,
            elements=sum(p.numel() for p in params),
            nbytes={OURS: traffic([spec]), FUSED: traffic([None])},
            refresh=new_gradients(params),
            check=lambda: matches(lambda some: ours(some, **options)),
        )

    return make


SIGNED, UNSIGNED = EIGHT
CASES = (
    Case(
        "SGD with momentum 8-bit, four matrices",
        steps(optim.SGD8bit, SIGNED, MOMENTUM, torch.optim.SGD, TORCH),
    ),
    Case(
        "RMSprop 8-bit, four matrices",
        steps(optim.RMSprop8bit, UNSIGNED, RATE, torch.optim.RMSprop, UNFUSED),
        note="torch has no fused form",
    ),
    Case(
        "Adagrad 8-bit, four matrices",
        steps(optim.Adagrad8bit, UNSIGNED, RATE, torch.optim.Adagrad, TORCH),
    ),
    Case(
        "Lion 8-bit, four matrices",
        steps(optim.Lion8bit, SIGNED, RATE, None, {}),
        note="torch has none",
    ),
)
