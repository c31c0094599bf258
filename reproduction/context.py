"""The inputs of figures and tables: captured states, training runs, tables of other commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from qmaps import capture
from qmaps.capture import CapturedStates, StateRecorder
from qmaps.errors import QmapsError
from qmaps.lab import Contender, compare
from qmaps.lab.workloads import TrainingRun, Workload
from qmaps.storage.files import exists
from reproduction import workloads
from reproduction.workloads.minilm import MiniLM

BASE = Contender("32-bit AdamW")

Progress = Callable[[str, int, int, str], None]


class NotYetError(QmapsError):
    """A table of another command does not exist yet."""

    def __init__(self, file: str, command: str) -> None:
        super().__init__(f"{file} is not there yet; `{command}` makes it")


@dataclass(frozen=True)
class Size:
    """The amount of work.

    Attributes:
        headline: the workload of figures of states.
        grid: the workload of grids and of spreads over seeds.
        seeds: number of seeds of `grid`.
        steps: steps of each training run; the workload's own number if None.
        pretrained_steps: steps of `MiniLM`, for installations with its weights; its moments settle
            in 20 steps, and a step takes seconds.
    """

    headline: str
    grid: str
    seeds: int
    steps: int | None
    pretrained_steps: int | None = None


FULL = Size("stdlib-lm", "stdlib-lm-tiny", 5, None, pretrained_steps=20)
QUICK = Size("stdlib-lm-tiny", "stdlib-lm-tiny", 2, 40, pretrained_steps=4)


@dataclass
class Context:
    """The inputs of frames, and their folders.

    Attributes:
        runs: folder of training runs and captured states; existing ones are reused.
        reports: folder of the tables of other commands.
        size: the amount of work.
        user_states: a user's captured states, shown in place of ours.
        progress: called with a stage, its steps done, their number, and a note.
    """

    runs: Path
    reports: Path = Path("reports")
    size: Size = FULL
    user_states: Sequence[CapturedStates] = ()
    progress: Progress | None = None
    _kept: dict[tuple[str, int], CapturedStates] = field(default_factory=dict, repr=False)

    @property
    def quick(self) -> bool:
        """True if the size is the small one."""
        return self.size != FULL

    @cached_property
    def states(self) -> CapturedStates:
        """States of the headline workload, or the user's first states."""
        return self.user_states[0] if self.user_states else self.captured(self.size.headline, 0)

    @cached_property
    def several(self) -> list[CapturedStates]:
        """States of several seeds, or all of the user's states."""
        if self.user_states:
            return list(self.user_states)
        return [self.captured(self.size.grid, seed) for seed in range(self.size.seeds)]

    @cached_property
    def pretrained(self) -> CapturedStates | None:
        """States of fine-tuned pretrained weights; None with a user's states, or without them."""
        if self.user_states or MiniLM().missing():
            return None
        return self.captured(MiniLM.name, 0)

    def captured(self, name: str, seed: int) -> CapturedStates:
        """The last states of a workload trained by 32-bit AdamW, trained first if needed."""
        if (name, seed) not in self._kept:
            folder = self.runs / "states" / f"{name}-seed{seed}"
            steps = self.steps(name)

            def record(optimizer: torch.optim.Optimizer, _: nn.Module) -> StateRecorder:
                return StateRecorder(optimizer, folder, steps=lambda step: step == steps)

            self.trained(name, [BASE], [seed], hooks={(BASE.label, seed): [record]})
            self._kept[name, seed] = capture.load(folder)
        return self._kept[name, seed]

    def steps(self, name: str) -> int:
        """Training steps of a workload."""
        size = self.size
        chosen = size.pretrained_steps if name == MiniLM.name else size.steps
        return chosen or workloads.get(name).steps

    def trained(
        self,
        name: str | Workload,
        contenders: Sequence[Contender],
        seeds: Sequence[int],
        *,
        folder: str = "",
        hooks: Any = None,
    ) -> list[TrainingRun]:
        """Training runs, each done once; see `qmaps.lab.compare`.

        Args:
            name: name of the workload, or of a variant of one.
            contenders: optimizers.
            seeds: seeds of weights and batches.
            folder: folder below the workload's, for variants.
            hooks: see `qmaps.lab.compare`.
        """
        work = workloads.get(name) if isinstance(name, str) else name

        def advance(label: str, step: int, total: int, loss: float) -> None:
            if self.progress:
                self.progress(f"train {work.name} {label}", step, total, f"loss {loss:.3f}")

        return compare(
            work,
            contenders,
            out=self.runs / "train" / work.name / folder,
            seeds=seeds,
            steps=self.steps(work.name),
            hooks=hooks,
            progress=advance,
        )

    def table(self, file: str, command: str) -> pd.DataFrame:
        """A CSV file among `reports`.

        Raises:
            NotYetError: it does not exist.
        """
        return pd.read_csv(self.file(file, command))

    def json(self, file: str, command: str) -> dict[str, Any]:
        """A JSON object among `reports`.

        Raises:
            NotYetError: it does not exist.
        """
        content: dict[str, Any] = json.loads(self.file(file, command).read_text(encoding="utf-8"))
        return content

    def file(self, name: str, command: str) -> Path:
        """A file among `reports`; `command` makes it.

        Raises:
            NotYetError: it does not exist.
        """
        path = self.reports / name
        if not exists(path):
            raise NotYetError(f"{self.reports.name}/{name}", command)
        return path
