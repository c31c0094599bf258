"""The optimizers of the papers' tables, each as a trial."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.trials import FULL, Trial
from qmaps import lpmm, optim
from qmaps.engines.step import MOMENTS
from qmaps.lab.compare import Contender
from qmaps.lab.workloads import Workload

NEAREST, STOCHASTIC = "nearest", "stochastic"
EIGHT_BITS = "B2048/linear0@8s+sr"
"""Parameters and gradients of LPMM-Adam."""


@dataclass(frozen=True)
class MethodTrial(Trial):
    """A run of one of the papers' optimizers.

    Its `quantizer` depends on the family: `FULL`, a pair for moments of Adam
    (``"B128/DE@4s + 32bit"``), a spec for a momentum, ``"12 stochastic"`` for LPMM, or a preset for
    the classes of `CLASSES`.

    Attributes:
        family: a key of `METHODS`.
        n: micro-batches of a step.
    """

    family: str = "AdamW"
    n: int = 1

    @property
    def key(self) -> str:
        """A hash of all inputs of the result."""
        told = f"{super().key} {self.family} {self.n}"
        return hashlib.sha256(told.encode()).hexdigest()[:24]

    def optimizer(self, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
        """The optimizer of the family."""
        return METHODS[self.family](self, model, workload)


def _adam_options(workload: Workload) -> dict[str, Any]:
    return {"lr": workload.lr, "betas": workload.betas, "eps": workload.eps}


def _moments(trial: MethodTrial) -> dict[str, str | None] | None:
    return None if trial.quantizer == FULL else pair(trial.quantizer)


def pair(text: str) -> dict[str, str | None]:
    """Quantizers of Adam's moments from ``"B128/DE@4s + 32bit"``."""
    parts = text.split(" + ")
    return {m: None if p == "32bit" else p for m, p in zip(MOMENTS, parts, strict=True)}


def _adamw(trial: MethodTrial, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    """AdamW; that of torch in 32 bits, as in the runs of `reproduction.tasks`."""
    return Contender(trial.quantizer, _moments(trial)).optimizer(model, workload)


def _factor(trial: MethodTrial, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    return optim.AdamWFactor(
        model.named_parameters(),
        weight_decay=workload.weight_decay,
        state_quantizers=_moments(trial),
        **_adam_options(workload),
    )


def _adam(trial: MethodTrial, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    return optim.Adam(
        model.named_parameters(), state_quantizers=_moments(trial), **_adam_options(workload)
    )


def _momentum(trial: MethodTrial, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    quantizer = None if trial.quantizer == FULL else trial.quantizer
    return optim.SGD(
        model.named_parameters(),
        lr=workload.lr,
        momentum=0.9,
        state_quantizers={"momentum_buffer": quantizer},
    )


def _adafactor(_: MethodTrial, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
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


def _lpmm_sgdm(trial: MethodTrial, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    momentum = None
    if trial.quantizer != FULL:
        bits, _, rounding = trial.quantizer.partition(" ")
        sr = "+sr" if rounding == STOCHASTIC else ""
        lpmm.convert(model, f"B2048/linear0@{bits}s{sr}", f"B2048/linear0@8s{sr}")
        momentum = f"B2048/DE@8s{sr}"
    return lpmm.LPMMSGD(
        model.named_parameters(),
        lr=workload.lr,
        momentum=0.9,
        accumulation_steps=trial.n,
        state_quantizers={"momentum_buffer": momentum},
        nonfinite="propagate",  # a run that diverges is a result
    )


def _lpmm_adam(trial: MethodTrial, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    """Adam of torch in 32 bits; else all of the model memory in 8."""
    if trial.quantizer == FULL:
        return torch.optim.Adam(model.parameters(), **_adam_options(workload))
    lpmm.convert(model, EIGHT_BITS, EIGHT_BITS)
    options = _adam_options(workload)
    return lpmm.LPMMAdam(model.named_parameters(), nonfinite="propagate", **options)


def _soap(trial: MethodTrial, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    """SOAP with its own betas.

    ``"A | B + C"`` has A for the first moment, B for all matrices and C for the second moment, and
    ``"A + C"`` has A for the matrices too.
    """
    quantizers = None
    if trial.quantizer != FULL:
        signed, second = trial.quantizer.split(" + ")
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


WIDTHS = ("8bit", "4bit", "paper-4bit")
"""Presets of `OptimClass` besides 32 bits."""


@dataclass(frozen=True)
class OptimClass:
    """A class of `qmaps.optim` with a few options other than its defaults.

    Attributes:
        kind: the class.
        rate: its learning rate, in units of the workload's rate, for AdamW.
        options: options with other values than the defaults.
        kinds: special classes of some presets.
    """

    kind: type[optim.QuantizedOptimizer]
    rate: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, type[optim.QuantizedOptimizer]] = field(default_factory=dict)

    def make(
        self, trial: MethodTrial, model: nn.Module, workload: Workload
    ) -> torch.optim.Optimizer:
        """The optimizer of a trial, at the rate of the workload."""
        options: dict[str, Any] = {"lr": workload.lr, **self.options}
        if trial.quantizer in self.kinds:
            return self.kinds[trial.quantizer](model.named_parameters(), **options)
        preset = "32bit" if trial.quantizer == FULL else trial.quantizer
        return self.kind(model.named_parameters(), state_quantizers=preset, **options)


CLASSES = {
    "Adam": OptimClass(optim.Adam),
    "AdamW": OptimClass(optim.AdamW),
    "SGD": OptimClass(optim.SGD, 100, {"momentum": 0.9, "nesterov": True}),
    "RMSprop": OptimClass(optim.RMSprop, 0.5, {"momentum": 0.5}),
    "Adagrad": OptimClass(optim.Adagrad, 10),
    "Lion": OptimClass(optim.Lion),
    "LAMB": OptimClass(optim.LAMB, 20),
    "LARS": OptimClass(optim.LARS, 5000),
    "AdEMAMix": OptimClass(optim.AdEMAMix),
    "AdamWFactor": OptimClass(optim.AdamWFactor, kinds={"4bit": optim.AdamW4bitFactor}),
    "SM3": OptimClass(optim.SM3, 100),
    "Adafactor": OptimClass(
        optim.Adafactor,
        options={"relative_step": False, "scale_parameter": False, "min_quantized_size": 0},
        kinds={"8bit": optim.Adafactor8bit},
    ),
}
"""Classes, and where their rates begin.

Adafactor's statistics of rows and columns are small: at the default size they stay in 32 bits.
"""

METHODS: dict[str, Callable[[MethodTrial, nn.Module, Workload], torch.optim.Optimizer]] = {
    "AdamW": _adamw,
    "AdamWFactor": _factor,
    "Adam": _adam,
    "Momentum": _momentum,
    "Adafactor": _adafactor,
    "SOAP": _soap,
    "LPMM-SGDM": _lpmm_sgdm,
    "LPMM-Adam": _lpmm_adam,
    **{f"optim.{name}": made.make for name, made in CLASSES.items()},
}
