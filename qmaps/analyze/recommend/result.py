"""A recommendation, as text, JSON, HTML and files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze.recommend.candidates import FULL
from qmaps.analyze.recommend.snippets import CHOICE, NAMED, brief, snippets
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
from qmaps.storage.units import of_states

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


WIDTH = 80
"""Characters of a line of text; code that is to be pasted is not wrapped."""

SUMMARY, STATES = "summary.json", "states.json"
PAIRS, TENSORS = "pairs.parquet", "tensors.parquet"


@dataclass(frozen=True)
class Recommendation:
    """Verdicts on pairs of quantizers, and the choice under a budget.

    Attributes:
        choice: the quantizers of every parameter, for an optimizer or a file.
        verdict: the verdict on the choice: ``clean``, ``unproven`` (no problem was found, but not
            all trainings with such step costs kept up, gradients were simulated, or the step is
            early), ``caution`` or ``unsafe``.
        reason: the decisive measure.
        step_cost: the `step_cost` of the choice over all parameters.
        nbytes: bytes of the states of the choice, those in 32 bits included.
        full_nbytes: bytes of all states in 32 bits.
        bits_per_element: bits per state element of the parameters to quantize.
        best: the best single pair for each of 2.3, 3.3, 4.3, 6.3 and 8.3 bits per state element;
            None if no pair of at most so many bits is free of zero points and of very large
            updates.
        singles: these pairs as choices, for an optimizer or a file.
        simplest: the choice of the narrowest clean (or unproven) pair for all parameters; None if
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

    @property
    def specs(self) -> list[str]:
        """The pairs of the choice, that of most elements first."""
        chosen = self.tensors[self.tensors["chosen"]]
        numel = chosen.groupby("quantizer")["numel"].sum()
        return [str(spec) for spec in numel.sort_values(ascending=False, kind="stable").index]

    def snippets(self, file: str | os.PathLike[str] = CHOICE) -> dict[str, str]:
        """Lines to paste, by the place where they go; `file` is where the choice was saved."""
        single = None
        if self.simplest is not None and not self.simplest.codebooks():
            quantizers = self.simplest.kwargs["state_quantizers"]
            single = " + ".join(q.spec for q in quantizers.values())
        by_name = bool(self.choice.overrides)
        return snippets(self.code, os.fspath(file), by_name=by_name, single=single)

    def answer(self, file: str | os.PathLike[str] = CHOICE) -> str:
        """The answer as text: verdict, size, notes, and lines to paste."""
        presets = dict(zip(self.pairs["quantizer"], self.pairs["preset"], strict=True))
        named = [f"{spec} ({name})" if (name := presets.get(spec)) else spec for spec in self.specs]
        more = f" and {len(named) - NAMED} more pairs" * (len(named) > NAMED)
        pairs = ", ".join(named[:NAMED]) + more
        cost = magnitude(self.step_cost, self.gradients)
        quantized = of_states(self.bits_per_element / 4, 8, 1)  # two states of each element
        sentences = [
            f"{self.verdict}: {pairs}",
            f"Why: {printable(self.reason)} (step cost {cost}).",
            f"States: {self.nbytes:,} bytes, {self.full_nbytes:,} in 32 bits. Where quantized: "
            f"{quantized}.",
            *self.notes,
        ]
        text = [
            fill(sentence, WIDTH, break_long_words=False, break_on_hyphens=False)
            for sentence in sentences
        ]
        pasted = [f"# {title}\n{code}" for title, code in self.snippets(file).items()]
        return "\n\n".join(["\n".join(text), *pasted])

    def __str__(self) -> str:
        told = experience(self.verdict, self.step_cost, self.gradients)
        told = told[0].upper() + told[1:] + "."
        return "\n\n".join([self.answer(), fill(told, WIDTH, break_on_hyphens=False)])


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
