"""Capturing and monitoring optimizer states in runs of Lightning.

The optimizers need nothing: ``configure_optimizers`` returns one, with a schedule or without.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from qmaps.capture import Monitor, StateRecorder
from qmaps.integrations import Recorded


class _Callback(Recorded, Callback):
    """Begins with training and ends with it."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record."""
        folder, optimizers = trainer.default_root_dir, trainer.optimizers
        # The step count is that of all optimizers together.
        step = trainer.global_step // max(len(optimizers), 1)
        self._begin(optimizers, pl_module, folder, step, is_first=trainer.is_global_zero)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Stop recording."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Stop recording."""
        self._end(exception)


class CaptureCallback(_Callback):
    """Records optimizer states of a Trainer's run in a folder for `qmaps.capture.load`.

    It takes any optimizers; several are recorded in folders of
    their own, ``0``, ``1``, ... A resumed run goes on in the same folder. In distributed training
    the first process records.

    Args:
        out: the folder; ``states`` in the Trainer's `default_root_dir` if left out.
        **options: `every`, `steps`, `parameters` and `gradients` of
            `qmaps.capture.StateRecorder`.

    Raises:
        BadTypeError: an option is none of these.
        OutputError: when training begins; see `StateRecorder`.
    """

    _kind = StateRecorder


class MonitorCallback(_Callback):
    """Measures the quantized states of a Trainer's run with a `qmaps.capture.Monitor`.

    A resumed run goes on in the same file. Each of several optimizers has a file of its own,
    ``monitor-0.csv``, ``monitor-1.csv``, ..., and all must have quantized states. In distributed
    training all processes measure together.

    Args:
        out: the CSV file; ``monitor.csv`` in the Trainer's `default_root_dir` if left out.
        **options: `every`, `window`, `sample`, `parameters`, `log` and `thresholds` of
            `qmaps.capture.Monitor`.

    Raises:
        BadTypeError: an option is none of these.
        BadValueError, OutputError: when training begins; see `Monitor`.
    """

    _kind = Monitor
