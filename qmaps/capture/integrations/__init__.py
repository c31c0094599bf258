"""Callbacks for trainers of other packages; each module needs the package of its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qmaps.capture import Monitor, StateRecorder
from qmaps.capture.parameters import state_counts, unwrapped
from qmaps.errors import BadTypeError

Watcher = StateRecorder | Monitor


@dataclass(frozen=True)
class Kind:
    """Kind of a callback: recording or monitoring.

    Attributes:
        options: arguments of the recorder or monitor for the callback's user; the trainer has the
            others.
        default: default path in the trainer's folder.
        begin: makes a recorder or monitor from the optimizer, the path, the model, the number of
            steps taken so far, and the options.
    """

    options: tuple[str, ...]
    default: str
    begin: Callable[..., Watcher]

    def path(self, out: Path, number: int) -> Path:
        """Return the path for one of several optimizers: a folder in `out`, or a file beside it."""
        if Path(self.default).suffix:
            return out.with_name(f"{out.stem}-{number}{out.suffix}")
        return out / str(number)


def _record(
    optimizer: torch.optim.Optimizer,
    out: Path,
    model: torch.nn.Module,
    global_step: int,
    **options: Any,
) -> StateRecorder:
    counts = state_counts(unwrapped(optimizer), {})
    start = (
        None if counts else global_step
    )  # a trainer also counts steps that the optimizer skipped
    return StateRecorder(optimizer, out, names=model, start=start, **options)


def _monitor(
    optimizer: Any,
    out: Path,
    model: torch.nn.Module,
    global_step: int,  # noqa: ARG001 - optimizers of qmaps count their steps
    **options: Any,
) -> Monitor:
    return Monitor(optimizer, out, names=model, **options)


CAPTURE = Kind(
    ("every", "steps", "parameters", "states", "max_bytes", "gradients"), "states", _record
)
MONITOR = Kind(
    ("every", "window", "sample", "parameters", "log", "thresholds"), "monitor.csv", _monitor
)


class Recording:
    """Recorders or monitors for the time of training.

    Args:
        owner: the callback's name, for error messages.
        kind: recording or monitoring.
        out: the folder or file, or None for the default in the trainer's folder.
        options: arguments in ``kind.options``.

    Raises:
        BadTypeError: an option is none of these.
    """

    def __init__(
        self, owner: str, kind: Kind, out: str | os.PathLike[str] | None, options: dict[str, Any]
    ) -> None:
        for name in options:
            if name not in kind.options:
                allowed = ", ".join(kind.options)
                raise BadTypeError(
                    f"{name} is not an option of {owner}; allowed are out, {allowed}"
                )
        self._kind = kind
        self._out = None if out is None else Path(out)
        self._options = options
        self._watchers: list[Watcher] = []

    def begin(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        model: torch.nn.Module,
        default_folder: str | os.PathLike[str],
        global_step: int,
    ) -> None:
        """Begin to record.

        Args:
            optimizers: the optimizers to record. A single one is recorded at the path itself,
                several at paths with the numbers 0, 1, ...
            model: the model, for the parameters' names.
            default_folder: the trainer's folder, for the default path.
            global_step: number of steps taken so far, for optimizers without counts.
        """
        self.end()
        kind = self._kind
        path = self._out if self._out is not None else Path(default_folder) / kind.default
        for number, optimizer in enumerate(optimizers):
            out = path if len(optimizers) == 1 else kind.path(path, number)
            self._watchers.append(kind.begin(optimizer, out, model, global_step, **self._options))

    def end(self) -> None:
        """Stop recording; ending twice is allowed."""
        while self._watchers:
            self._watchers.pop().close()
