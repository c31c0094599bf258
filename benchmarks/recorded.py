"""States and gradients of judges' trainings with 32-bit AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from benchmarks.trials import FULL
from qmaps.capture import Gradients, StateRecorder
from qmaps.lab.compare import Contender
from qmaps.lab.workloads import Workload, train
from qmaps.lab.workloads.training import Hook
from reproduction.judges import JUDGES

SEED = 1000
"""Of `record`; no trial has it."""


def record(
    work: Workload,
    folder: Path,
    steps: Sequence[int],
    gradients: Gradients,
    hooks: Sequence[Hook] = (),
) -> Path:
    """Train a workload as a whole, with states and gradients recorded under the model's names.

    Args:
        work: the workload.
        folder: where the run and its states are kept; a finished run is not repeated.
        steps: steps whose states are recorded.
        gradients: gradients to record after each of them.
        hooks: further hooks of the training.

    Returns:
        The folder of the states.
    """
    states = folder / "states"

    def recorder(optimizer: torch.optim.Optimizer, model: nn.Module) -> StateRecorder:
        return StateRecorder(optimizer, states, names=model, steps=steps, gradients=gradients)

    train(
        work,
        Contender(FULL).optimizer,
        out=folder / "run",
        label=FULL,
        seed=SEED,
        checkpoint_every=work.steps,  # a resumed run would lack its first gradients
        validate_every=work.steps,
        hooks=[recorder, *hooks],
    )
    return states


def recorded(judge: str, folder: Path, window: int | None = None) -> Path:
    """Record the states of 32-bit AdamW, seed 0, after half of a judge's steps.

    Args:
        judge: its name.
        folder: where the run and what is recorded are kept.
        window: number of gradients to record after the states; None for none.

    Returns:
        The folder of the recording.
    """
    workload = JUDGES[judge]
    half, states = workload.steps // 2, folder / "states"

    def record(optimizer: torch.optim.Optimizer, _: nn.Module) -> StateRecorder:
        return StateRecorder(optimizer, states, steps=[half], gradients=window)

    train(
        workload,
        Contender(FULL).optimizer,
        out=folder / "run",
        steps=half + (window or 0) + 1,
        hooks=[record],
    )
    return states
