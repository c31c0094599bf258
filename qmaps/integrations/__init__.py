"""Optimizers by name, and callbacks, for trainers of other packages.

Each module needs the package of its name.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from qmaps.capture import Monitor, StateRecorder
from qmaps.capture.monitor.ranks import everyone
from qmaps.capture.parameters import state_counts, unwrapped
from qmaps.errors import BadTypeError

OF_TRAINER = ("optimizer", "out", "names", "start", "process_group")
"""Arguments that the trainer has; the others are options of the callback."""


class Recording:
    """Recorders or monitors for the time of training.

    The first process records; monitors measure on all processes together.

    Args:
        owner: the callback's name, for error messages.
        kind: what to make of the optimizer.
        out: the folder or file, or None for the default in the trainer's folder.
        options: further arguments of `kind`.

    Raises:
        BadTypeError: an option is not allowed.
    """

    def __init__(
        self,
        owner: str,
        kind: type[StateRecorder] | type[Monitor],
        out: str | os.PathLike[str] | None,
        options: dict[str, Any],
    ) -> None:
        allowed = [name for name in inspect.signature(kind).parameters if name not in OF_TRAINER]
        for name in options:
            if name not in allowed:
                raise BadTypeError(
                    f"{name} is not an option of {owner}; allowed are out, {', '.join(allowed)}"
                )
        self._kind = kind
        self._out = None if out is None else Path(out)
        self._options = options
        self._watchers: list[StateRecorder | Monitor] = []

    def begin(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        model: torch.nn.Module,
        default_folder: str | os.PathLike[str],
        global_step: int,
        *,
        is_first: bool,
    ) -> None:
        """Begin to record.

        Args:
            optimizers: the optimizers to record. A single one is recorded at the path itself,
                several at paths with the numbers 0, 1, ...
            model: the model, for the parameters' names.
            default_folder: the trainer's folder, for the default path.
            global_step: number of steps taken so far, for optimizers without counts.
            is_first: True in the first process.
        """
        self.end()
        is_monitor = self._kind is Monitor
        if not is_first and not is_monitor:
            return
        default = Path(default_folder) / ("monitor.csv" if is_monitor else "states")
        path = default if self._out is None else self._out
        for number, optimizer in enumerate(optimizers):
            out, options = path, dict(self._options)
            if is_monitor:
                options["process_group"] = everyone()
            if len(optimizers) > 1:
                numbered = f"{path.stem}-{number}{path.suffix}"
                out = path.with_name(numbered) if is_monitor else path / str(number)
            # A trainer also counts steps that the optimizer skipped.
            if not is_monitor and not state_counts(unwrapped(optimizer), {}):
                options["start"] = global_step
            watched: Any = optimizer
            self._watchers.append(self._kind(watched, out, names=model, **options))

    def end(self) -> None:
        """Stop recording; ending twice is allowed."""
        while self._watchers:
            self._watchers.pop().close()


class Recorded:
    """A trainer's callback that records between the trainer's own hooks."""

    _kind: type[StateRecorder] | type[Monitor]

    def __init__(self, out: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self._recording = Recording(type(self).__name__, self._kind, out, options)
