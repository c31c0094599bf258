"""Files of a training run."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from qmaps.errors import OutputError
from qmaps.storage import checkpoint, checksums
from qmaps.storage.files import (
    content_of,
    json_text,
    output_folder,
    read_record,
    replacing,
    write_record,
)

COLUMNS = ("step", "split", "metric", "value")


@dataclass
class TrainingRun:
    """Measurements of one training run.

    Attributes:
        label: name of the run.
        seed: seed of the weights and the batches.
        steps: number of requested steps.
        losses: one dict per measurement: `step` (from 1), `split` ("train" or "val"), `metric`
            (name), `value`.
        state_nbytes: bytes of the optimizer's states at the end.
    """

    label: str
    seed: int
    steps: int
    losses: list[dict[str, Any]] = field(default_factory=list)
    state_nbytes: int = 0

    def record(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Add the metrics of a step on a split, such as ``{"loss": 2.5}``, to `losses`."""
        self.losses += [
            dict(zip(COLUMNS, (step, split, metric, float(value)), strict=True))
            for metric, value in values.items()
        ]

    @property
    def final(self) -> dict[str, float]:
        """Validation metrics after the last step; empty before it."""
        last = [row for row in self.losses if (row["step"], row["split"]) == (self.steps, "val")]
        return {row["metric"]: row["value"] for row in last}

    @property
    def first_nonfinite_step(self) -> int | None:
        """The first step at which a measurement was NaN or infinite, or None."""
        return next((row["step"] for row in self.losses if not math.isfinite(row["value"])), None)


class RunFolder:
    """The files of one run.

    Every file appears whole or not at all:

    - ``run.json``: the settings, the versions of Python and torch, and the number of threads;
    - ``checkpoint.pt``, until the run is done: model, optimizer, step and losses so far;
    - ``losses.csv``: `step`, `split`, `metric`, `value`, up to the last checkpoint or the end;
    - ``model.pt``: the trained weights;
    - ``result.json``, the last to appear: the run is done, and these are its final metrics.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint.pt"
        self.losses = folder / "losses.csv"
        self.model = folder / "model.pt"
        self.result = folder / "result.json"
        self.settings = folder / "run.json"

    @classmethod
    def claim(cls, out: str | os.PathLike[str], settings: Mapping[str, Any]) -> Self:
        """Prepare a folder for a run with these settings, or go on with that of an earlier one.

        Raises:
            OutputError: `out` cannot be written, holds a run of other settings, or has a damaged
                ``run.json``.
        """
        self = cls(output_folder(out))
        # As JSON has them: a tuple is read back as a list.
        wanted = json.loads(json_text(settings))
        if not self.settings.exists():
            if self.checkpoint.exists() or self.result.exists():
                raise self._damaged(self.settings)  # nothing says of which run they are
            made_with = {
                "python": platform.python_version(),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }
            write_record(self.settings, {"settings": wanted, "made_with": made_with})
            return self
        held = self._json(self.settings).get("settings")
        if not isinstance(held, dict):
            raise self._damaged(self.settings)
        for name, value, requested in _differences(held, wanted):
            raise OutputError(
                f"out={str(self.folder)!r} holds a run with {name}={value!r}, but {requested!r} "
                "was requested; delete the folder or give another one"
            )
        return self

    def finished(self, run: TrainingRun) -> bool:
        """True if the run is done; then `losses` and `state_nbytes` of `run` are filled in.

        Raises:
            OutputError: a file of the result is missing or damaged.
        """
        if not self.result.exists():
            return False
        result = self._json(self.result)
        try:
            run.state_nbytes = int(result["state_nbytes"])
        except (KeyError, OverflowError, TypeError, ValueError):
            raise self._damaged(self.result) from None
        try:
            content = content_of(self.losses)
            if result.get("losses_xxh3", checksums.of(content)) != checksums.of(content):
                raise ValueError
            for row in csv.DictReader(io.StringIO(content.decode(), newline="")):
                run.record(int(row["step"]), row["split"], {row["metric"]: float(row["value"])})
            if not run.final:
                raise ValueError
        except (KeyError, OSError, TypeError, ValueError, csv.Error):
            raise self._damaged(self.losses) from None
        return True

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer, run: TrainingRun) -> int:
        """Load the checkpoint, if there is one, and return the number of steps done.

        Raises:
            OutputError: the checkpoint is damaged or does not fit. What was loaded until then
                stays loaded.
        """
        if not self.checkpoint.exists():
            return 0
        try:
            found = checkpoint.load(self.checkpoint)
            model.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])
            run.losses = list(found["losses"])
            return int(found["step"])
        except Exception as error:  # torch raises many kinds on damaged files
            raise OutputError(
                f"{str(self.checkpoint)!r} cannot be resumed ({type(error).__name__}); delete it "
                "to start again"
            ) from None

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, run: TrainingRun, step: int
    ) -> None:
        """Write the checkpoint and ``losses.csv`` after a step."""
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "losses": run.losses,
            "step": step,
        }
        checkpoint.save(state, self.checkpoint)
        self._write_losses(run)

    def finish(self, model: nn.Module, run: TrainingRun) -> None:
        """Write ``model.pt``, ``losses.csv`` and ``result.json``, then remove the checkpoint."""
        checkpoint.save(model.state_dict(), self.model)
        self._write_losses(run)
        write_record(
            self.result,
            {
                "label": run.label,
                "seed": run.seed,
                "steps": run.steps,
                "final": run.final,
                "first_nonfinite_step": run.first_nonfinite_step,
                "state_nbytes": run.state_nbytes,
                "losses_xxh3": checksums.of(self.losses.read_bytes()),
            },
        )
        self.checkpoint.unlink(missing_ok=True)

    def _write_losses(self, run: TrainingRun) -> None:
        with (
            replacing(self.losses) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as lines,
        ):
            table = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(run.losses)

    def _json(self, path: Path) -> dict[str, Any]:
        try:
            return read_record(path)
        except OutputError:
            raise self._damaged(path) from None

    def _damaged(self, path: Path) -> OutputError:
        return OutputError(
            f"{str(path)!r} is missing or damaged; delete {str(self.folder)!r} or give another "
            "folder"
        )


def optimizer_settings(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's class, and the options of each parameter group, as JSON has them."""
    groups = {
        f"group{number}": {
            name: _plain(value)
            for name, value in group.items()
            if name not in ("params", "param_names")
        }
        for number, group in enumerate(optimizer.param_groups)
    }
    return {"optimizer": type(optimizer).__name__, **groups}


def _plain(value: Any) -> Any:
    """`value` as JSON has it; the name of its type if JSON has none."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(member) for name, member in value.items()}
    return type(value).__name__


def _differences(
    held: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Dotted name and both values of each different setting; None where there is none."""
    for name in {**wanted, **held}:
        value, requested = held.get(name), wanted.get(name)
        if isinstance(value, dict) and isinstance(requested, dict):
            yield from _differences(value, requested, f"{prefix}{name}.")
        elif value != requested:
            yield f"{prefix}{name}", value, requested
