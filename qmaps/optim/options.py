"""The options that all optimizers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from qmaps.optim.choice import StateQuantizers


class Shared(TypedDict, total=False):
    """The options that optimizers share; `QuantizedOptimizer` has their defaults.

    `amsgrad` and `decoupled_weight_decay` are accepted only where `torch_options` has them.
    """

    maximize: bool
    state_quantizers: StateQuantizers
    overrides: Mapping[str, StateQuantizers] | None
    min_quantized_size: int
    refit_every: int
    reset_every: int | None
    nonfinite: str
    seed: int
    stochastic_rounding: bool
    master_weights: bool | str
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool
    amsgrad: bool
    decoupled_weight_decay: bool
