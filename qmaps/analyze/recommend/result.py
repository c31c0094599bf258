"""A recommendation, as text, JSON, HTML and files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze.recommend.candidates import FULL
from qmaps.analyze.recommend.verdict import UNMEASURED, early, experience, follows, magnitude
from qmaps.errors import OutputError, printable
from qmaps.optim import Choice
from qmaps.storage.files import (
    exists,
    json_text,
    read_frame,
    read_record,
    records,
    write_frame,
    write_record,
)
from qmaps.storage.locks import FolderLock

PLAIN = (
    *("verdict", "reason", "step_cost", "bits_per_element", "nbytes", "full_nbytes"),
    *("gradients", "min_quantized_size"),
)
"""Attributes of a recommendation that its summary has as they are."""
HALF = 0.5
"""Share of stalled elements from which on a parameter is named."""
SIMULATED = """Gradients were not recorded; they were simulated with the mean and variance that the
moments tell. To replay real ones, record them while training:
qmaps.capture.StateRecorder(optimizer, folder, gradients=60).""".replace("\n", " ")
NAMED = 3
"""Names in a note, where not all are given."""


def brief(names: Iterable[str], count: int = NAMED) -> str:
    """The first names, with escapes for control characters; of more only the number is given."""
    listed = [printable(name) for name in names]
    more = f" and {len(listed) - count} more tensors" * (len(listed) > count)
    return ", ".join(listed[:count]) + more


@dataclass(frozen=True)
class Recommendation:
    """Verdicts on pairs of quantizers, and the choice under a budget.

    Attributes:
        choice: the quantizers of every parameter, for an optimizer or a file.
        verdict: the verdict on the choice: ``safe``, ``unproven`` (no problem was found, but not
            all trainings with such step costs kept up, gradients were simulated, or the step is
            early), ``caution`` or ``unsafe``.
        reason: the decisive measure.
        step_cost: the `step_cost` of the choice over all parameters.
        nbytes: bytes of the states of the choice, those in 32 bits included.
        full_nbytes: bytes of all states in 32 bits.
        bits_per_element: of both moments of the parameters to quantize.
        best: the best single pair for each of 2.3, 3.3, 4.3, 6.3 and 8.3 bits per element; None if
            no pair of at most so many bits is free of zero points and of very large updates.
        singles: these pairs as choices, for an optimizer or a file.
        simplest: the choice of the narrowest safe (or unproven) pair for all parameters; None if
            there is none.
        gradients: ``recorded``, ``simulated`` or ``mixed``.
        min_quantized_size: parameters of at most this many elements stay in 32 bits.
        beta2: the largest decay of a second moment.
        options: options such as lr by parameter name; empty if the parameters have no names.
        pairs: a row per candidate; see `run`.
        tensors: a row per parameter and candidate; see `run`.
    """

    choice: Choice
    verdict: str
    reason: str
    step_cost: float
    nbytes: int
    full_nbytes: int
    bits_per_element: float
    best: dict[float, Pair | None]
    singles: dict[float, Choice]
    simplest: Choice | None
    gradients: str
    min_quantized_size: int
    beta2: float
    options: Mapping[str, Mapping[str, Any]] = field(repr=False)
    pairs: pd.DataFrame = field(repr=False)
    tensors: pd.DataFrame = field(repr=False)

    @property
    def code(self) -> str:
        """Python code for the optimizer with the parameter groups of the run."""
        return self.choice.code_for(self.options)

    @property
    def notes(self) -> list[str]:
        """Sentences on the gradients, and on problematic parameters."""
        rows = self.tensors[self.tensors["chosen"]]
        step, in_32_bits = int(rows["step"].iloc[0]), rows["quantizer"] == FULL.spec
        notes = [SIMULATED] * (self.gradients != "recorded")
        if early(step, self.beta2):
            averaged = f"{1 / (1 - self.beta2):,.0f}"
            notes.append(
                f"Step {step} is early: second moments average about {averaged} gradients and have "
                "seen few. Ask again with a later step."
            )
        if len(slow := rows.loc[[not follows(row) for row in records(rows)], "fall_ratio_second"]):
            notes.append(
                f"Second moments end at {slow.iloc[0]:.2g} times the exact ones where gradients "
                "fall beside others; B256/geometric@8u+qsr follows, for example."
            )
        unsafe = (rows["verdict"] == "unsafe") & ~in_32_bits
        loses_zero = self.pairs.loc[~self.pairs["keeps_zero"], "quantizer"]
        stalled = "moments did not follow the exact ones within the replay in"
        named = {
            "Not measured: the replayed rows have no updates in": rows["verdict"] == UNMEASURED,
            "Zero points: second moments decode to 0 where first moments do not in":
                rows["zero_point_share"] > 0,
            "Not for masked weights: a weight whose gradient is always 0 would move in":
                rows["quantizer"].isin(loses_zero),
            f"Slow states: most first {stalled}": rows["stalled_share_first"] > HALF,
            f"Slow states: most second {stalled}": rows["stalled_share_second"] > HALF,
            "States stay in 32 bits in": in_32_bits,
        }  # fmt: skip
        for text, where in {"Unsafe by themselves:": unsafe, **named}.items():
            names = rows.loc[where, "parameter"]
            count = NAMED if text in named else len(names)
            notes += [f"{text} {brief(names, count)}."] * int(where.any())
        return notes

    def summary(self) -> dict[str, Any]:
        """All but the frames, as values for JSON."""
        return {
            "choice": json.loads(self.choice.to_json()),
            **{name: getattr(self, name) for name in PLAIN},
            "best": {str(limit): pair and pair.spec for limit, pair in self.best.items()},
            "simplest": self.simplest and self.simplest.code_for(self.options),
            "singles": {
                str(limit): choice.code_for(self.options) for limit, choice in self.singles.items()
            },
            "code": self.code,
            "notes": self.notes,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the choice to a file for `qmaps.load_choice`; see `Choice.save`."""
        self.choice.save(path)

    def __str__(self) -> str:
        lines = [
            f"{self.verdict}: {printable(self.reason)} "
            f"(step cost {magnitude(self.step_cost, self.gradients)})",
            experience(self.verdict, self.step_cost, self.gradients),
            f"states: {self.nbytes:,} bytes, {self.full_nbytes:,} in 32 bits; "
            f"{self.bits_per_element:.2f} bits per element of quantized parameters",
        ]
        return "\n".join([*lines, *self.notes, "", self.code])


CHOICE, SUMMARY, STATES = "choice.json", "summary.json", "states.json"
PAIRS, TENSORS = "pairs.parquet", "tensors.parquet"


def write(
    recommendation: Recommendation,
    out: str | os.PathLike[str],
    *,
    states: dict[str, Any] | None = None,
) -> None:
    """Write a recommendation to a folder: the choice, a summary, and both frames.

    ``choice.json`` is removed first and written last: where it is, the other files belong to it.

    Args:
        recommendation: the recommendation.
        out: the folder, created if need be.
        states: identity of its states, for `holds`.

    Raises:
        OutputError: the folder cannot be written, or another process writes to it.
    """
    with FolderLock(out, "recommendation"):
        folder = Path(out)
        for name in (CHOICE, STATES):
            (folder / name).unlink(missing_ok=True)
        write_frame(folder / PAIRS, recommendation.pairs)
        write_frame(folder / TENSORS, recommendation.tensors)
        write_record(folder / SUMMARY, recommendation.summary())
        if states is not None:
            write_record(folder / STATES, states)
        recommendation.save(folder / CHOICE)


def holds(out: str | os.PathLike[str], states: dict[str, Any]) -> bool:
    """True if a folder has a whole recommendation for states with this identity."""
    folder = Path(out)
    if not all(exists(folder / name) for name in (CHOICE, STATES)):
        return False
    try:
        for name in (PAIRS, TENSORS):
            read_frame(folder / name)
        read_record(folder / SUMMARY)
        written: dict[str, Any] = read_record(folder / STATES)
    except OutputError:  # damaged
        return False
    return bool(written == json.loads(json_text(states)))
