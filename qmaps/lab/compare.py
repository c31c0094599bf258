"""Training one workload with several optimizers and seeds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from qmaps.analyze.states import MIN_SIZE
from qmaps.lab.workloads import TrainingRun, Workload
from qmaps.lab.workloads.processes import Training, Trainings
from qmaps.lab.workloads.training import Hook
from qmaps.optim import AdamW
from qmaps.optim.choice import StateQuantizers


@dataclass(frozen=True)
class Contender:
    """An AdamW to be compared.

    Attributes:
        label: its name in figures and tables; its folder is named after it.
        state_quantizers: as for `qmaps.optim.AdamW`; None stands for ``torch.optim.AdamW``.
        overrides: as for `qmaps.optim.AdamW`.
        min_quantized_size: as for `qmaps.optim.AdamW`.
        key: ``recommended`` or a preset's name, under which pages list its result; or empty.
    """

    label: str
    state_quantizers: StateQuantizers = None
    overrides: Mapping[str, StateQuantizers] | None = None
    min_quantized_size: int = MIN_SIZE
    key: str = ""

    def optimizer(self, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
        """Make the optimizer of a model with the workload's options."""
        parameters = list(model.named_parameters())
        names = ("lr", "betas", "eps", "weight_decay")
        options: dict[str, Any] = {name: getattr(workload, name) for name in names}
        if self.state_quantizers is None and not self.overrides:
            return torch.optim.AdamW(parameters, **options)
        return AdamW(
            parameters,
            state_quantizers=self.state_quantizers,
            overrides=self.overrides,
            min_quantized_size=self.min_quantized_size,
            **options,
        )

    def training(
        self,
        workload: Workload,
        out: str | os.PathLike[str],
        seed: int = 0,
        steps: int | None = None,
        *,
        hooks: Sequence[Hook] = (),
        name: str | None = None,
    ) -> Training:
        """Make the training run of one seed; arguments as for `compare` and `Training`."""
        folder = f"{re.sub(r'[^a-z0-9]+', '-', self.label.lower()).strip('-')}-seed{seed}"
        options = {
            "workload": workload,
            "make_optimizer": self.optimizer,
            "label": self.label,
            "seed": seed,
            "steps": steps,
            "hooks": hooks,
        }
        return Training(self.label if name is None else name, Path(out) / folder, options)


def compare(
    workload: Workload,
    contenders: Sequence[Contender],
    *,
    out: str | os.PathLike[str],
    seeds: Sequence[int] = (0,),
    steps: int | None = None,
    hooks: dict[tuple[str, int], Sequence[Hook]] | None = None,
    progress: Callable[[str, int, int, float], None] | None = None,
    workers: int | None = None,
) -> list[TrainingRun]:
    """Train every contender with every seed, each in its own folder under `out`.

    Finished runs are not repeated, interrupted ones go on; see `qmaps.lab.workloads.train`.

    Args:
        workload: the model and data to train.
        contenders: the optimizers; figures show differences to the first.
        out: the folder of the run folders.
        seeds: seeds of the weights and the batches, each at least 0.
        steps: number of steps of each run; the workload's default if left out.
        hooks: hooks of single runs, as for `train`, by label and seed.
        progress: called after each step with a label, the step, the number of steps, and the
            training loss.
        workers: number of processes training side by side, each with one thread; a run has the
            same bits for any number of them. With 1 runs are done in this process, one after
            another; by default as well, and with torch's number of threads. A script giving
            workers needs ``if __name__ == "__main__":``, and processes must be able to import the
            classes of its workload and hooks.

    Returns:
        One finished run per seed and contender, seeds outermost.

    Raises:
        As `qmaps.lab.workloads.train`; CommunicationError also if a process was killed.
    """
    jobs = [
        contender.training(
            workload,
            out,
            seed,
            steps,
            hooks=(hooks or {}).get((contender.label, seed), ()),
            name=contender.label if len(seeds) == 1 else f"{contender.label}, seed {seed}",
        )
        for seed in seeds
        for contender in contenders
    ]
    with Trainings(workers, progress) as trainings:
        trainings.start(jobs)
        return trainings.results(jobs)


def loss_frame(runs: Sequence[TrainingRun]) -> pd.DataFrame:
    """The runs' losses for `qmaps.figures.loss_curves`.

    Args:
        runs: finished runs; at least one.

    Returns:
        One row per measured loss: `run` (label), `seed`, `step`, `split` ("train" or "val"),
        `loss`, and `difference` (the loss minus that of the first run's label at the same seed,
        split and step; NaN where there is none).
    """
    frames = []
    for run in runs:
        frame = pd.DataFrame(run.losses)
        frame = frame[frame["metric"] == "loss"].rename(columns={"value": "loss"})
        frames.append(frame.drop(columns="metric").assign(run=run.label, seed=run.seed))
    joined = pd.concat(frames, ignore_index=True)
    keys = ["seed", "split", "step"]
    first = joined[joined["run"] == runs[0].label].set_index(keys)["loss"].rename("first")
    joined = joined.join(first, on=keys)
    joined["difference"] = joined["loss"] - joined["first"]
    return joined[["run", "seed", "step", "split", "loss", "difference"]]


def summarize_losses(runs: Sequence[TrainingRun]) -> pd.DataFrame:
    """Final validation loss per contender: mean and standard deviation over seeds.

    Args:
        runs: finished runs; at least one.

    Returns:
        One row per contender: `run` (label), `seeds` (number of runs), `mean`, `std` (standard
        deviation over seeds, with n - 1; NaN for one seed), `min`, `max`, `difference` (mean over
        seeds of the loss minus that of the first run's label at the same seed),
        `difference_std` (standard deviation of those differences over seeds), `state_mib` (MiB of
        optimizer states of the first run), `nonfinite` (number of runs in which a measurement was
        NaN or infinite).
    """
    table = pd.DataFrame(
        {
            "run": run.label,
            "seed": run.seed,
            "loss": run.final["loss"],
            "state_mib": run.state_nbytes / 2**20,
            "nonfinite": run.first_nonfinite_step is not None,
        }
        for run in runs
    )
    first = table[table["run"] == runs[0].label].set_index("seed")["loss"].rename("first")
    table = table.join(first, on="seed")
    table["difference"] = table["loss"] - table["first"]
    return table.groupby("run", sort=False, as_index=False).agg(
        seeds=("seed", "count"),
        mean=("loss", "mean"),
        std=("loss", "std"),
        min=("loss", "min"),
        max=("loss", "max"),
        difference=("difference", "mean"),
        difference_std=("difference", "std"),
        state_mib=("state_mib", "first"),
        nonfinite=("nonfinite", "sum"),
    )
