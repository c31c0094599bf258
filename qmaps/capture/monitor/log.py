"""Where measures go besides the CSV file: a function of values and step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qmaps.capture.monitor.measures import MEASURES
from qmaps.errors import BadTypeError, printable, shown

Log = Callable[[dict[str, float], int], object]
"""Takes values by name and the number of the step, as ``wandb.log`` and ``trackio.log`` do."""


def logs_of(given: Any) -> list[Log]:
    """The functions behind the argument `log` of a monitor.

    Args:
        given: None, one of these, or a list of them: a function ``f(values, step)``; an object with
            ``log(values, step=...)``, such as a run of W&B or trackio; or a
            ``torch.utils.tensorboard.SummaryWriter``.

    Raises:
        BadTypeError: it is none of these.
    """
    if given is None:
        return []
    members = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return [_log_of(each) for each in members]


def _log_of(given: Any) -> Log:
    if hasattr(given, "add_scalar"):
        return tensorboard(given)
    # A run of W&B has a method, and so has each module.
    if callable(log := getattr(given, "log", None)):
        return lambda values, step: log(values, step=step)
    if callable(given):
        function: Log = given
        return function
    raise BadTypeError(
        f"log={shown(given)} must be a function of values and step, a SummaryWriter, or an object "
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
