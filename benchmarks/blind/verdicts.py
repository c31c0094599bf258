"""Verdicts and choices of `qmaps.recommend` on a judge, with recorded gradients and without."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import torch
from torch import nn

import qmaps
from benchmarks.blind.judges import JUDGES
from benchmarks.blind.plan import CHOICES, PAIRS, slug
from benchmarks.trials import FULL
from benchmarks.version_0_3 import PRESETS
from qmaps import capture, sweep
from qmaps.analyze.recommend.result import Recommendation
from qmaps.capture import CapturedStates, Gradients, StateRecorder
from qmaps.engines.step import MOMENTS
from qmaps.lab.compare import Contender
from qmaps.lab.workloads import train
from qmaps.optim import Choice
from qmaps.storage.files import exists, output_folder

GRADIENTS = 60
"""Number of last steps whose gradients are recorded, as the documentation advises."""
SEED = 1000
"""Of the run that is recorded; no trial has it."""
COLUMNS = ("quantizer", "preset", "bits_per_element", "verdict", "reason", "step_cost",
           "update_gain", "update_noise", "largest_update", "zero_point_share")  # fmt: skip
BYTES_APART = 0.02
"""Largest difference in bytes of a mix drawn at random, relative to the recommended choice."""


def record(judge: str, folder: Path) -> tuple[CapturedStates, CapturedStates]:
    """Train a judge in 32 bits, and return its states 60 steps before the end and at the end.

    Args:
        judge: its name.
        folder: where the run is kept; a finished one is not repeated.

    Returns:
        States with the gradients of the steps after them, and those of the last checkpoint.
    """
    work, checkpoint, states = JUDGES[judge], folder / "checkpoint.pt", folder / "states"
    start = work.steps - GRADIENTS

    def recorder(optimizer: torch.optim.Optimizer, model: nn.Module) -> StateRecorder:
        gradients = Gradients(GRADIENTS)
        return StateRecorder(optimizer, states, names=model, steps=[start], gradients=gradients)

    @contextmanager
    def saver(optimizer: torch.optim.Optimizer, model: nn.Module) -> Iterator[None]:
        yield
        names = [name for name, _ in model.named_parameters()]
        torch.save({"optimizer": optimizer.state_dict(), "names": names}, checkpoint)

    if not exists(checkpoint):
        train(
            work,
            Contender(FULL).optimizer,
            out=folder / "run",
            label=FULL,
            seed=SEED,
            checkpoint_every=work.steps,  # a resumed run would lack its first gradients
            validate_every=work.steps,
            hooks=[recorder, saver],
        )
    return capture.load(states, step=start), capture.load(checkpoint)


def ask(judge: str, folder: Path, choices: Path) -> pd.DataFrame:
    """Verdicts on `PAIRS`; writes the files of `CHOICES`.

    Args:
        judge: its name.
        folder: where its recorded run is kept.
        choices: where the choices go.

    Returns:
        A row per pair and mode (``gradients`` or ``checkpoint``), with the columns `COLUMNS`, and
        `one_step`, the mean absolute error of a single update.
    """
    choices = output_folder(choices)
    rows = []
    for mode, name, states in zip(
        ("gradients", "checkpoint"), CHOICES, record(judge, output_folder(folder)), strict=False
    ):
        pairs = qmaps.recommend(states, candidates=PAIRS).pairs
        # The word of the preregistration, with its bound of 0.03: "unproven" came later.
        pairs = pairs.replace({"verdict": {"unproven": "safe"}})
        errors = sweep.summarize(sweep.run(states, PAIRS)).set_index("quantizer")["mean_abs_error"]
        rows.append(
            pairs[list(COLUMNS)].assign(
                judge=judge, mode=mode, one_step=[errors[spec] for spec in pairs["quantizer"]]
            )
        )
        recommended = qmaps.recommend(states)
        recommended.save(choices / slug(name))
        if mode == "gradients":
            for number, mix in enumerate(CHOICES[2:], 1):
                drawn(recommended, random.Random(number)).save(choices / slug(mix))
    return pd.concat(rows, ignore_index=True)


def drawn(recommended: Recommendation, draw: random.Random) -> Choice:
    """A pair for each parameter, drawn at random, with about the bytes of a recommendation.

    Pairs are drawn from the presets without zeros. Of 1,000 draws it is the first with at most 2 %
    more or fewer bytes, or else the closest.
    """
    tensors = recommended.tensors
    allowed = [spec for spec, name in PRESETS.items() if not name.startswith("paper")]
    options = tensors[tensors["quantizer"].isin(allowed)].pivot_table(
        "nbytes", "parameter", "quantizer", sort=False
    )
    goal = float(tensors.loc[tensors["chosen"], "nbytes"].sum())
    best: tuple[float, dict[str, str]] = (float("inf"), {})
    for _ in range(1000):
        picked = {name: draw.choice(allowed) for name in options.index}
        nbytes = sum(options.at[name, spec] for name, spec in picked.items())
        best = min(best, (abs(nbytes / goal - 1), picked), key=lambda option: option[0])
        if best[0] <= BYTES_APART:
            break
    overrides = {
        name: dict(zip(MOMENTS, spec.split(" + "), strict=True)) for name, spec in best[1].items()
    }
    return Choice("4bit", overrides)
