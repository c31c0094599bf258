"""What a recommendation holds, and how it shows itself."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze.recommend.loss import SCALE
from qmaps.errors import printable
from qmaps.maps import _html
from qmaps.optim import Choice

SHOWN = ("quantizer", "preset", "bits_per_element", "verdict", "reason")


@dataclass(frozen=True)
class Recommendation:
    """Verdicts on pairs of quantizers, and the choice under a budget.

    Attributes:
        choice: the quantizers of every parameter, for an optimizer or a file.
        verdict: the verdict on the choice: ``safe``, ``caution`` or ``unsafe``.
        reason: the measure that decided it.
        step_cost: the `step_cost` of the choice over all parameters.
        loss: nats of validation loss above 32 bits that go with this step cost on one small
            fine-tuned model (`qmaps.analyze.recommend.loss.NATS`); NaN with zero points or very
            large updates. Your model's may differ.
        nbytes: what the states of the choice take, those that stay in 32 bits included.
        full_nbytes: what all take in 32 bits.
        bits_per_element: of both moments of the parameters that may be quantized.
        best: the best single pair for each of 2.3, 3.3, 4.3, 6.3 and 8.3 bits per element; None if
            no pair of at most so many bits is free of zero points and of very large updates.
        singles: these pairs as choices, for an optimizer or a file.
        simplest: the choice of the narrowest pair that is safe for all parameters; None if there
            is none.
        gradients: ``recorded``, ``simulated`` or ``mixed``.
        min_quantized_size: parameters of at most this many elements stay in 32 bits.
        pairs: a row per candidate; see `run`.
        tensors: a row per parameter and candidate; see `run`.
    """

    choice: Choice
    verdict: str
    reason: str
    step_cost: float
    loss: float
    nbytes: int
    full_nbytes: int
    bits_per_element: float
    best: dict[float, Pair | None]
    singles: dict[float, Choice]
    simplest: Choice | None
    gradients: str
    min_quantized_size: int
    pairs: pd.DataFrame = field(repr=False)
    tensors: pd.DataFrame = field(repr=False)

    @property
    def code(self) -> str:
        """Python code that makes the optimizer, to paste."""
        return self.choice.code

    def summary(self) -> dict[str, Any]:
        """All but the frames, in values that JSON has."""
        return {
            "choice": json.loads(self.choice.to_json()),
            "verdict": self.verdict,
            "reason": self.reason,
            "step_cost": self.step_cost,
            "loss": self.loss,
            "bits_per_element": self.bits_per_element,
            "nbytes": self.nbytes,
            "full_nbytes": self.full_nbytes,
            "gradients": self.gradients,
            "min_quantized_size": self.min_quantized_size,
            "best": {str(limit): pair and pair.spec for limit, pair in self.best.items()},
            "simplest": self.simplest and self.simplest.code,
            "singles": {str(limit): own.code for limit, own in self.singles.items()},
            "code": self.code,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the choice to a file that `qmaps.load_choice` reads; see `Choice.save`."""
        self.choice.save(path)

    def __str__(self) -> str:
        lines = [
            f"{self.verdict}: {printable(self.reason)} (step cost {self.step_cost:.2g})",
            f"states: {self.nbytes:,} bytes, {self.full_nbytes:,} in 32 bits; "
            f"{self.bits_per_element:.2f} bits per element of quantized parameters",
        ]
        if "loss" in self.choice.provenance.get("budget", {}):
            lines.insert(1, f"predicted loss: {self.loss:.2g} nats, {SCALE}")
        if self.gradients != "recorded":
            lines.append("gradients were not recorded; they were simulated from the moments")
        return "\n".join([*lines, "", self.code])

    def _repr_html_(self) -> str:
        """What notebooks show."""
        rows = self.pairs[list(SHOWN)].to_dict("records")
        texts = [{**row, "bits_per_element": f"{row['bits_per_element']:.2f}"} for row in rows]
        table = [[str(row[name]) for name in SHOWN] for row in texts]
        header = ("pair", "preset", "bits per element", "verdict", "reason")
        note = str(self).split("\n\n")[0]
        title = f"Recommendation: {self.verdict}"
        return _html.grid(title, header, table, note) + self.choice._repr_html_()
