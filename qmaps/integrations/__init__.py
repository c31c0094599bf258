"""Optimizers by name, and callbacks, for trainers of other packages.

Each module needs the package of its name.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from qmaps.capture import Monitor, StateRecorder
from qmaps.capture.monitor.ranks import everyone
from qmaps.capture.parameters import state_counts
from qmaps.capture.step_hooks import unwrapped
from qmaps.errors import BadTypeError

OF_TRAINER = ("optimizer", "out", "names", "start", "process_group")
"""Arguments that the trainer has; the others are options of the callback."""


class Recorded:
    """A trainer's callback with recorders or monitors for the time of training.

    The first process records; monitors measure on all processes together.
    """

    _kind: type[StateRecorder] | type[Monitor]

    def __init__(self, out: str | os.PathLike[str] | None = None, **options: Any) -> None:
        parameters = inspect.signature(self._kind).parameters
        allowed = [name for name in parameters if name not in OF_TRAINER]
        for name in options:
            if name not in allowed:
                raise BadTypeError(
                    f"{name} is not an option of {type(self).__name__}; allowed are out, "
                    f"{', '.join(allowed)}"
                )
        self._out = None if out is None else Path(out)
        self._options = options
        self._watchers: list[StateRecorder | Monitor] = []

    def _begin(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        model: torch.nn.Module,
        default_folder: str | os.PathLike[str],
        global_step: int,
        *,
        is_first: bool,
    ) -> None:
        """Begin to record.

        Several optimizers are recorded at paths with the numbers 0, 1, ... `global_step` is for
        optimizers without step counts.
        """
        self._end()
        is_monitor = self._kind is Monitor
        if not is_first and not is_monitor:
            return
        default = Path(default_folder) / ("monitor.csv" if is_monitor else "states")
        path = default if self._out is None else self._out
        for number, optimizer in enumerate(optimizers):
            out, options = path, dict(self._options)
            if is_monitor:
                options["process_group"] = everyone()
            # A trainer also counts steps that the optimizer skipped.
            elif not state_counts(unwrapped(optimizer), {}):
                options["start"] = global_step
            if len(optimizers) > 1:
                numbered = f"{path.stem}-{number}{path.suffix}"
                out = path.with_name(numbered) if is_monitor else path / str(number)
            watched: Any = optimizer
            self._watchers.append(self._kind(watched, out, names=model, **options))

    def _end(self, error: BaseException | None = None) -> None:
        """Stop recording; ending twice is allowed. Errors are notes of one of the training."""
        stack = ExitStack()
        while self._watchers:
            stack.push(self._watchers.pop())
        stack.__exit__(None if error is None else type(error), error, None)
