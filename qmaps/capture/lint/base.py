"""Findings, and the states of one parameter as the checks get them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture.conversion.optimizer_state import State

ERROR, WARNING, NOTE = "error", "warning", "note"
LEVELS = (ERROR, WARNING, NOTE)
"""The worst first."""


@dataclass(frozen=True)
class Finding:
    """A problem of one state.

    Attributes:
        level: ``error``: training from this checkpoint differs from the original training, or
            fails; ``warning``: it may; ``note``: a property of how the states are stored, or
            something else that would lose values.
        check: ``damaged``, ``nonfinite``, ``negative``, ``shape``, ``scales``, ``step``,
            ``zeroed``, ``not-installed``, ``stalled``, ``to-zero``, ``weight-decay``,
            ``dead-rows``, ``no-zero`` or ``float16``.
        parameter: name of the parameter; empty if all are meant.
        state: name of the state; empty if all are meant.
        count: number of elements, rows or, of ``no-zero``, ``not-installed``, ``to-zero`` and
            ``weight-decay``, parameters concerned; 0 if they are not counted.
        share: `count` as a fraction of the checked elements or rows; 0 if not counted.
        message: description of the problem in one line.
    """

    level: str
    check: str
    parameter: str
    state: str
    count: int
    share: float
    message: str


@dataclass(frozen=True)
class Part:
    """Contribution of one parameter to a finding about all of them.

    Parts that agree in everything but `count` and `total` become one finding. ``{share}`` in
    `message` stands for the share of all counts in all totals; without totals it is 0.
    """

    level: str
    check: str
    state: str
    message: str
    count: int
    total: int = 0

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Everything but the numbers."""
        return (self.level, self.check, self.state, self.message)


@dataclass
class Entry:
    """States of one parameter.

    Attributes:
        label: name of the parameter.
        states: values in float32, or codes and scales, by name.
        dtypes: dtype of the stored states that are floating-point numbers.
        kinds: form in which each state is stored, for messages: a dtype, or a spec.
        options: plain options of the parameter's group; empty if unknown.
        counters: stored step counters by name, of any type.
        known_weights: dtype of the parameter as its model tells it; None without a model.
        findings: problems found while reading.
        parts: contributions to findings about all parameters, found while reading.
    """

    label: str
    states: dict[str, State]
    dtypes: dict[str, torch.dtype]
    kinds: dict[str, str]
    options: Mapping[str, Any]
    counters: Mapping[str, Any]
    known_weights: torch.dtype | None = None
    findings: list[Finding] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    @property
    def weights(self) -> torch.dtype | None:
        """Dtype of the parameter; torch's optimizers store states in it. None if unknown."""
        if self.known_weights is None and {*self.dtypes.values()} == {torch.bfloat16}:
            return torch.bfloat16
        return self.known_weights

    def option(self, name: str, place: int | None = None) -> float | None:
        """A finite number among the options, or among the members of one; else None."""
        value: Any = self.options.get(name)
        if place is not None:
            is_long = isinstance(value, (list, tuple)) and len(value) > place
            value = value[place] if is_long else None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if is_number and math.isfinite(value) else None

    def quantized(self, name: str) -> QuantizedTensor | None:
        """A state with codes; None if it is stored otherwise, or not at all."""
        state = self.states.get(name)
        return state if isinstance(state, QuantizedTensor) else None

    def decay(self, name: str) -> float | None:
        """Factor by which a step decays an average; None if unknown."""
        if name == "square_avg":
            return self.option("alpha")
        place = AVERAGES[name]
        if name == "exp_avg_sq" and "exp_avg_diff" in self.states:  # Adan has an average between
            place = 2
        return self.option("betas", place)


AVERAGES = {"exp_avg_sq": 1, "exp_avg_sq_row": 1, "exp_avg_sq_col": 1, "exp_avg_slow": 2}
"""Averages over long times, and the place of their decay among ``betas``."""
