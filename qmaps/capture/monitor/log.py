"""Loggers of measures besides the CSV file: functions of values and step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qmaps.capture.monitor.measures import MEASURES
from qmaps.errors import BadTypeError, printable, shown

Log = Callable[[dict[str, float], int], object]
"""Takes values by name and the number of the step, as ``wandb.log`` and ``trackio.log`` do."""


def logs_of(log: Any) -> list[Log]:
    """The functions behind the argument `log` of a monitor.

    Args:
        log: None, one of these, or a list of them: a function ``f(values, step)``; an object with
            ``log(values, step=...)``, such as a run of W&B or trackio; or a
            ``torch.utils.tensorboard.SummaryWriter``.

    Raises:
        BadTypeError: it is none of these.
    """
    if log is None:
        return []
    members = log if isinstance(log, Sequence) and not isinstance(log, str) else [log]
    return [_log_of(member) for member in members]


def _log_of(logger: Any) -> Log:
    if hasattr(logger, "add_scalar"):
        return tensorboard(logger)
    # A run of W&B has a method, and so has each module.
    if callable(log := getattr(logger, "log", None)):
        return lambda values, step: log(values, step=step)
    if callable(logger):
        function: Log = logger
        return function
    raise BadTypeError(
        f"log={shown(logger)} must be a function of values and step, a SummaryWriter, or an object "
        "with a method log(values, step=...)"
    )


def tensorboard(writer: Any) -> Log:
    """A function that writes to a ``torch.utils.tensorboard.SummaryWriter``."""

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log


def scalars(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Measures by name, ``sqnr_db/0.weight.exp_avg``; those that are not finite are left out."""
    return {
        f"{measure}/{printable(row['parameter'])}.{row['state']}": row[measure]
        for row in rows
        for measure in MEASURES
        if math.isfinite(row[measure])
    }
