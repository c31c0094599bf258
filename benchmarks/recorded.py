"""States and gradients in the middle of a judge's training."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmarks.trials import FULL
from qmaps.capture import StateRecorder
from qmaps.lab.compare import Contender
from qmaps.lab.workloads import train
from reproduction.judges import JUDGES


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
