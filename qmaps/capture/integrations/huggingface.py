"""Capturing and monitoring optimizer states in runs of ``transformers.Trainer``.

The optimizers need nothing: ``Trainer(..., optimizer_cls_and_kwargs=(AdamW8bit, {"lr": 1e-3}))``.
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from qmaps.capture import Monitor, StateRecorder
from qmaps.capture.integrations import Recording


class _Callback(TrainerCallback):
    """Begins with training and ends with it."""

    _kind: type[StateRecorder] | type[Monitor]

    def __init__(self, out: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self._recording = Recording(type(self).__name__, self._kind, out, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Begin to record."""
        optimizers, model = [kwargs["optimizer"]], kwargs["model"]
        folder, step, is_first = args.output_dir, state.global_step, state.is_world_process_zero
        self._recording.begin(optimizers, model, folder, step, is_first=is_first)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Stop recording."""
        self._recording.end()


class CaptureCallback(_Callback):
    """Records optimizer states of a Trainer's run in a folder for `qmaps.capture.load`.

    It takes any optimizer. Steps are numbered as the Trainer numbers
    them; a resumed run goes on in the same folder. In distributed training the first process
    records.

    Args:
        out: the folder; ``states`` in the Trainer's `output_dir` if left out.
        **options: `every`, `steps`, `parameters`, `states`, `max_bytes` and `gradients` of
            `qmaps.capture.StateRecorder`.

    Raises:
        BadTypeError: an option is none of these.
        OutputError: when training begins; see `StateRecorder`.
    """

    _kind = StateRecorder


class MonitorCallback(_Callback):
    """Measures the quantized states of a Trainer's run with a `qmaps.capture.Monitor`.

    A resumed run goes on in the same file. In distributed training all processes
    measure together.

    Args:
        out: the CSV file; ``monitor.csv`` in the Trainer's `output_dir` if left out.
        **options: `every`, `window`, `sample`, `parameters`, `log` and `thresholds` of
            `qmaps.capture.Monitor`.

    Raises:
        BadTypeError: an option is none of these.
        BadValueError, OutputError: when training begins; see `Monitor`.
    """

    _kind = Monitor
