"""Ablations: settings, each trained at the same points, and claims about them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from qmaps import optim
from qmaps.lab import workloads
from qmaps.lab.workloads import TrainingRun, Workload, train
from qmaps.optim.choice import StateQuantizers
from reproduction.claim import Claim

WORKLOAD = "stdlib-lm-tiny"
WINDOW = 5
"""Training losses in a row by which a run is judged; see `is_unstable`."""


@dataclass(frozen=True)
class Setting:
    """An optimizer and a model.

    Attributes:
        parts: what tells it from others, a cell for each of its study's columns.
        state_quantizers: as for the optimizer.
        kind: the optimizer's class.
        stable_embedding: whether the model's tokens go through one.
        row: its name in the paper's table, where it is another there.
        eps: times the eps of a point.
    """

    parts: tuple[str, ...]
    state_quantizers: StateQuantizers = None
    kind: type[optim.AdamW] = optim.AdamW
    stable_embedding: bool = False
    row: str = ""
    eps: float = 1.0

    @property
    def name(self) -> str:
        """The parts in a line."""
        return " | ".join(self.parts)

    def optimizer(self, model: nn.Module, workload: Workload) -> optim.AdamW:
        """The optimizer with the workload's options."""
        return self.kind(
            model.named_parameters(),
            lr=workload.lr,
            betas=workload.betas,
            eps=workload.eps,
            weight_decay=workload.weight_decay,
            state_quantizers=self.state_quantizers,
        )


@dataclass(frozen=True)
class Point:
    """Options of Adam, and the seed of weights and batches, of a training."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    seed: int = 0

    @property
    def name(self) -> str:
        """A name for a folder."""
        return (
            f"lr{self.lr:g}-betas{self.betas[0]:g}-{self.betas[1]:g}-eps{self.eps:g}-s{self.seed}"
        )


@dataclass(frozen=True)
class Study:
    """A table of a paper.

    Attributes:
        name: of its files.
        title, source: for the page.
        exhibit: the paper and the table, as `reproduction.claim` names them.
        columns: heads of the settings' parts.
        metric: what the paper measures.
        settings: its rows.
        points: where every setting is trained.
        baseline: given a setting, the name of the one that it is compared with.
        claims: what the paper reads off it, given the rows of the summary; what explains a
            difference is their detail.
    """

    name: str
    title: str
    source: str
    exhibit: tuple[str, str]
    columns: tuple[str, ...]
    metric: str
    settings: tuple[Setting, ...]
    points: tuple[Point, ...]
    baseline: Callable[[Setting], str]
    claims: Callable[[pd.DataFrame], Sequence[Claim]] = lambda _: ()


def is_unstable(run: TrainingRun) -> bool:
    """True if a loss was NaN or infinite, or training fell behind where it began.

    That is: the median of some five training losses in a row was above that of the first step. A
    step or two above it, from which the run comes back, is no instability; at these rates 32-bit
    runs have such steps too.
    """
    losses = pd.DataFrame([row for row in run.losses if row["metric"] == "loss"])
    if not losses["value"].map(math.isfinite).all():
        return True
    train = losses[losses["split"] == "train"]["value"]
    return bool((train.rolling(WINDOW).median() > train.iloc[0]).any())


def run(
    study: Study, setting: Setting, point: Point, steps: int | None, out: Path
) -> dict[str, Any]:
    """One training run, or what an earlier one left.

    Returns:
        `setting`, `lr`, `beta1`, `beta2`, `eps`, `seed`, `steps`, `loss` (final, of validation, in
        nats per byte), `unstable`, `state_mib`.
    """
    workload = replace(
        workloads.get(WORKLOAD, stable_embedding=setting.stable_embedding),
        lr=point.lr,
        betas=point.betas,
        eps=point.eps * setting.eps,
    )
    plain = setting.name.lower().replace("-0", "minus0").replace("+", "plus")
    folder = out / study.name / re.sub(r"\W+", "-", plain).strip("-") / point.name
    done = train(
        workload, setting.optimizer, out=folder, label=setting.name, seed=point.seed, steps=steps
    )
    return {
        "setting": setting.name,
        "lr": point.lr,
        "beta1": point.betas[0],
        "beta2": point.betas[1],
        "eps": workload.eps,
        "seed": point.seed,
        "steps": done.steps,
        "loss": done.final["loss"],
        "unstable": is_unstable(done),
        "state_mib": done.state_nbytes / 2**20,
    }


def summary(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """One row for each setting.

    Args:
        study: of which the runs are.
        frame: the rows of `run`.

    Returns:
        Indexed by `setting`: `runs`, `unstable` (percent), `loss` (median of the stable runs),
        `difference` (median over points, stable with both, of the loss minus the baseline's) and
        `state_mib`.
    """
    keys = ["lr", "beta1", "beta2", "eps", "seed"]
    stable = frame[~frame["unstable"]].set_index(keys)
    loss_at = {name: part["loss"] for name, part in stable.groupby("setting")}
    none = stable["loss"].iloc[:0]
    rows = []
    for setting in study.settings:
        part = frame[frame["setting"] == setting.name]
        setting_loss = loss_at.get(setting.name, none)
        other = loss_at.get(study.baseline(setting), none)
        rows.append(
            {
                "setting": setting.name,
                "runs": len(part),
                "unstable": 100 * part["unstable"].mean(),
                "loss": setting_loss.median(),
                "difference": (setting_loss - other).dropna().median(),
                "state_mib": part["state_mib"].iloc[0],
            }
        )
    return pd.DataFrame(rows).set_index("setting")
