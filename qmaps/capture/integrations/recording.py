"""The common part of the capture callbacks of all trainers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from qmaps.capture import StateRecorder
from qmaps.errors import BadTypeError

OPTIONS = ("every", "steps", "parameters", "states", "max_bytes", "gradients")
"""Arguments of `StateRecorder` that are a callback's too; a trainer knows the others."""


class Recording:
    """Recorders that begin and end with training.

    Args:
        owner: the callback's name, for error messages.
        out: the folder, or None for ``states`` in the trainer's own folder.
        options: the arguments of `StateRecorder` that `OPTIONS` names.

    Raises:
        BadTypeError: an option is none of these.
    """

    def __init__(
        self, owner: str, out: str | os.PathLike[str] | None, options: dict[str, Any]
    ) -> None:
        for name in options:
            if name not in OPTIONS:
                allowed = ", ".join(OPTIONS)
                raise BadTypeError(
                    f"{name} is not an option of {owner}; allowed are out, {allowed}"
                )
        self._out = None if out is None else Path(out)
        self._options = options
        self._recorders: list[StateRecorder] = []

    def begin(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        model: torch.nn.Module,
        default_folder: str | os.PathLike[str],
        taken: int,
    ) -> None:
        """Record from now on.

        Args:
            optimizers: the optimizers to record. A single one is recorded in the folder itself,
                several in folders ``0``, ``1``, ... in it.
            model: the model, which gives the parameters' names.
            default_folder: the trainer's folder. If the user has named none, states go to its
                folder ``states``.
            taken: number of steps taken so far, for optimizers that do not count them.
        """
        self.end()
        folder = self._out if self._out is not None else Path(default_folder) / "states"
        for number, optimizer in enumerate(optimizers):
            out = folder if len(optimizers) == 1 else folder / str(number)
            self._recorders.append(
                StateRecorder(optimizer, out, names=model, start=taken, **self._options)
            )

    def end(self) -> None:
        """Record no longer; ending twice is allowed."""
        while self._recorders:
            self._recorders.pop().close()
