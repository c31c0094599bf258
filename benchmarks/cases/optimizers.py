"""Steps of the other optimizers with 8-bit states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Setup
from benchmarks.cases.adamw import EIGHT, FUSED, TORCH, matches, shuffles, traffic, writing
from benchmarks.data import matrices, new_gradients, parameters
from benchmarks.limits import Needs
from benchmarks.peers import BITSANDBYTES, need
from benchmarks.timing import Work
from qmaps import optim

WIDE = "qmaps, 32 bits"
RATE = {"lr": 1e-3}
MOMENTUM = RATE | {"momentum": 0.9}
LAMB = RATE | {"max_unorm": 1.0}
LARS = MOMENTUM | {"max_unorm": 0.02}
"""Options of bitsandbytes' LAMB and LARS."""
UNFUSED = {name: options for name, options in TORCH.items() if name != FUSED}


def traffic_with_norms(specs: Sequence[str | None]) -> float:
    """Bytes per element of a step with norms: those of `traffic`, and a pass before it.

    The pass reads the parameter, the gradient and the states.
    """
    return traffic(specs) + 8 + (traffic(specs) - traffic([])) / 2


def steps(
    ours: Callable[..., torch.optim.Optimizer],
    specs: Sequence[str],
    options: Mapping[str, Any],
    theirs: Callable[..., torch.optim.Optimizer] | None,
    kinds: Mapping[str, Mapping[str, bool]],
    *,
    norms: bool = False,
    wide: Callable[..., torch.optim.Optimizer] | None = None,
) -> Callable[[float], Setup]:
    """An optimizer beside those of torch and bitsandbytes of the same name.

    Args:
        ours: our class.
        specs: the quantizers of its states.
        options: options of all of them.
        theirs: torch's class; None where torch has none.
        kinds: options of torch's class, by name of the method.
        norms: read parameter, gradient and states once before the step, for their norms.
        wide: our class with states in 32 bits, where torch has no such optimizer.
    """

    def step(
        cls: Callable[..., Any], params: list[Tensor], kind: Mapping[str, bool | None]
    ) -> Work:
        work: Work = cls(params, **options, **kind).step
        return work

    nbytes = traffic_with_norms(specs) if norms else traffic(specs)

    def make(scale: float) -> Setup:
        params = parameters(matrices(scale))
        methods: dict[str, Callable[[], Work]] = {OURS: lambda: step(ours, params, {})}
        if theirs is not None:
            for name, kind in kinds.items():
                methods[name] = lambda kind=kind: step(theirs, params, kind)
        if wide is not None:
            methods[WIDE] = lambda: step(wide, params, {"state_quantizers": None})
        methods[BITSANDBYTES] = lambda: step(
            getattr(need("bitsandbytes").optim, ours.__name__), params, {}
        )
        return Setup(
            methods,
            elements=sum(p.numel() for p in params),
            nbytes={OURS: nbytes, FUSED: traffic([None])},
            needs={
                OURS: Needs(writing(specs), divisions=len(specs), shuffles=shuffles(specs)),
                FUSED: Needs(writing([None])),
            },
            refresh=new_gradients(params),
            check=lambda: matches(lambda params: ours(params, **options)),
        )

    return make


SIGNED, UNSIGNED = EIGHT
NONE = "torch has none"
CASES = (
    Case(
        "SGD with momentum 8-bit, four matrices",
        steps(optim.SGD8bit, [SIGNED], MOMENTUM, torch.optim.SGD, TORCH),
    ),
    Case(
        "RMSprop 8-bit, four matrices",
        steps(optim.RMSprop8bit, [UNSIGNED], RATE, torch.optim.RMSprop, UNFUSED),
        note="torch has no fused form",
    ),
    Case(
        "Adagrad 8-bit, four matrices",
        steps(optim.Adagrad8bit, [UNSIGNED], RATE, torch.optim.Adagrad, TORCH),
    ),
    Case(
        "Lion 8-bit, four matrices",
        steps(optim.Lion8bit, [SIGNED], RATE, None, {}),
        note=NONE,
    ),
    Case(
        "AdEMAMix 8-bit, four matrices",
        steps(optim.AdEMAMix8bit, [SIGNED, SIGNED, UNSIGNED], RATE, None, {}),
        note=NONE,
    ),
    Case(
        "LAMB 8-bit, four matrices",
        steps(optim.LAMB8bit, EIGHT, LAMB, None, {}, norms=True, wide=optim.LAMB),
        note=NONE,
    ),
    Case(
        "LARS 8-bit, four matrices",
        steps(optim.LARS8bit, [SIGNED], LARS, None, {}, norms=True, wide=optim.LARS),
        note=NONE,
    ),
)
