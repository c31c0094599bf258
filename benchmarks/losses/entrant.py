"""The optimizers of the papers' tables, each as a trial."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks import families
from benchmarks.families import pair
from benchmarks.lpmm.__main__ import Contender as LPMMContender
from benchmarks.trials import FULL, Trial
from qmaps import lpmm, optim
from qmaps.lab.compare import Contender
from qmaps.lab.workloads import Workload

NEAREST, STOCHASTIC = "nearest", "stochastic"
EIGHT_BITS = "B2048/linear0@8s+sr"
"""Parameters and gradients of LPMM-Adam."""


@dataclass(frozen=True)
class Entrant(Trial):
    """A run of one of the papers' optimizers.

    Its `quantizer` is `FULL`, or what its family takes: a pair for moments of Adam
    (``"B128/DE@4s + 32bit"``), a spec for a momentum, ``"12 stochastic"`` for LPMM, a preset for
    the classes of `CLASSES`.

    Attributes:
        family: a key of `FAMILIES`.
        n: micro-batches of a step.
    """

    family: str = "AdamW"
    n: int = 1

    @property
    def key(self) -> str:
        """A hash of all that decides the result."""
        told = f"{super().key} {self.family} {self.n}"
        return hashlib.sha256(told.encode()).hexdigest()[:24]

    def optimizer(self, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
        """That of the family."""
        return FAMILIES[self.family](self, model, workload)


def _adam_options(workload: Workload) -> dict[str, Any]:
    return {"lr": workload.lr, "betas": workload.betas, "eps": workload.eps}


def _moments(entrant: Entrant) -> dict[str, str | None] | None:
    return None if entrant.quantizer == FULL else pair(entrant.quantizer)


def _adamw(entrant: Entrant, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    """AdamW, that of torch in 32 bits, as in the judges' own runs."""
    return Contender(entrant.quantizer, _moments(entrant)).optimizer(model, workload)


def _factor(entrant: Entrant, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    return optim.AdamWFactor(
        model.named_parameters(),
        weight_decay=workload.weight_decay,
        state_quantizers=_moments(entrant),
        **_adam_options(workload),
    )


def _adam(entrant: Entrant, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    return optim.Adam(
        model.named_parameters(), state_quantizers=_moments(entrant), **_adam_options(workload)
    )


def _momentum(entrant: Entrant, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    quantizer = None if entrant.quantizer == FULL else entrant.quantizer
    return optim.SGD(
        model.named_parameters(),
        lr=workload.lr,
        momentum=0.9,
        state_quantizers={"momentum_buffer": quantizer},
    )


def _adafactor(_: Entrant, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    """With a first moment, and the betas of Adam, as the 8-bit paper has it."""
    return optim.Adafactor(
        model.named_parameters(),
        lr=workload.lr,
        beta1=workload.betas[0],
        beta2=workload.betas[1],
        relative_step=False,
        scale_parameter=False,
        weight_decay=workload.weight_decay,
    )


def _lpmm_sgdm(entrant: Entrant, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    if entrant.quantizer == FULL:
        return LPMMContender(n=entrant.n, rate=1).make(model, workload)
    bits, _, rounding = entrant.quantizer.partition(" ")
    return LPMMContender(int(bits), rounding == STOCHASTIC, entrant.n, rate=1).make(model, workload)


def _lpmm_adam(entrant: Entrant, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    """Adam of torch in 32 bits; else all of the model memory in 8."""
    if entrant.quantizer == FULL:
        return torch.optim.Adam(model.parameters(), **_adam_options(workload))
    lpmm.convert(model, EIGHT_BITS, EIGHT_BITS)
    options = _adam_options(workload)
    return lpmm.LPMMAdam(model.named_parameters(), nonfinite="propagate", **options)


def _soap(entrant: Entrant, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    """SOAP with its own betas.

    ``"A | B + C"`` has A for the first moment, B for all matrices and C for the second moment, and
    ``"A + C"`` has A for the matrices too.
    """
    quantizers = None
    if entrant.quantizer != FULL:
        signed, second = entrant.quantizer.split(" + ")
        first, _, matrices = signed.partition(" | ")
        quantizers = pair(f"{first} + {second}")
        spec = None if matrices == "32bit" else matrices or first
        quantizers |= {f"{name}_{dim}": spec for name in ("gram", "basis") for dim in range(2)}
    return optim.SOAP(
        model.named_parameters(),
        lr=workload.lr,
        eps=workload.eps,
        weight_decay=workload.weight_decay,
        state_quantizers=quantizers,
    )


def _of_class(
    family: families.Family, entrant: Entrant, model: nn.Module, workload: Workload
) -> torch.optim.Optimizer:
    width = families.WIDTHS[0] if entrant.quantizer == FULL else entrant.quantizer
    return replace(family, rate=1.0).make(width, model, workload)


def _with(family: families.Family, **options: Any) -> families.Family:
    return replace(family, options={**family.options, **options})


CLASSES = families.FAMILIES | {
    "Adafactor": _with(families.FAMILIES["Adafactor"], min_quantized_size=0)
}
"""Classes of `qmaps.optim` with their defaults but for a few options, and where rates begin.

Adafactor's statistics of rows and columns are small: at the default size they stay in 32 bits.
"""

FAMILIES: dict[str, Callable[[Entrant, nn.Module, Workload], torch.optim.Optimizer]] = {
    "AdamW": _adamw,
    "AdamWFactor": _factor,
    "Adam": _adam,
    "Momentum": _momentum,
    "Adafactor": _adafactor,
    "SOAP": _soap,
    "LPMM-SGDM": _lpmm_sgdm,
    "LPMM-Adam": _lpmm_adam,
    **{f"optim.{name}": partial(_of_class, family) for name, family in CLASSES.items()},
}
