"""Monitors that the environment variable ``QMAPS_MONITOR`` switches on.

It names a file with the arguments of `qmaps.capture.Monitor`, and the training code stays as it
is: every optimizer with quantized states is monitored from its first step on.
"""

from __future__ import annotations

import os
import warnings
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from qmaps.capture.monitor import Monitor, Thresholds
from qmaps.capture.monitor.outputs import LIMITED
from qmaps.capture.monitor.ranks import NoStatesError, everyone
from qmaps.capture.parameters import integer, predicate
from qmaps.errors import BadTypeError, QmapsError, shown
from qmaps.optim.base import QuantizedOptimizer
from qmaps.storage import settings

VARIABLE = "QMAPS_MONITOR"
KEYS = ("out", "every", "window", "sample", "parameters", "thresholds", "all_ranks")


def switch_on(path: str | os.PathLike[str]) -> RemovableHandle:
    """Monitor every optimizer with quantized states from its next step on.

    The file of a second optimizer is ``monitor-1.csv``. On several processes, all measure together,
    unless `all_ranks` is false: then the first measures alone.

    Args:
        path: a file that ends in ``.yaml``, ``.yml`` or ``.json``, with some of `KEYS`: arguments
            of `Monitor`, `thresholds` as a dict of the limits that differ from the default, or
            null.

    Returns:
        A handle; its `remove` leaves further optimizers alone.

    Raises:
        BadTypeError, BadValueError: the file cannot be read, or a value is not allowed.
    """
    about = f"{VARIABLE}={str(path)!r}"
    try:
        options = _read(Path(path))
    except QmapsError as error:
        raise type(error)(f"{about}: {error}") from None
    return register_optimizer_step_pre_hook(_Switch(about, options))


class _Switch:
    """Makes the monitor of an optimizer before its first step."""

    def __init__(self, about: str, options: dict[str, Any]) -> None:
        self._about = about
        self._all_ranks = options.pop("all_ranks", True)
        self._out = Path(options.pop("out", "monitor.csv"))
        self._options = options
        self._seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._count = 0

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not isinstance(optimizer, QuantizedOptimizer) or optimizer in self._seen:
            return
        self._seen.add(optimizer)
        group = everyone()
        if group is not None and not self._all_ranks:
            if group.rank():
                return
            group = None
        numbered = f"{self._out.stem}-{self._count}{self._out.suffix}"
        out = self._out.with_name(numbered) if self._count else self._out
        try:
            Monitor(optimizer, out, process_group=group, **self._options)
        except NoStatesError as error:
            warnings.warn(f"{self._about}: {error}", stacklevel=2)
        else:
            self._count += 1


def _read(path: Path) -> dict[str, Any]:
    """The arguments of monitors in a file."""
    options = settings.read(path, settings.yaml_of(path), "settings of a monitor")
    settings.check_keys(options, KEYS)
    for name, least in (("every", 1), ("window", 1), ("sample", 8)):
        if options.get(name) is not None:
            integer(name, options[name], least)
    predicate("parameters", options.get("parameters"))
    if not isinstance(out := options.get("out", ""), str):
        raise BadTypeError(f"out={shown(out)} must be the path of a file")
    if not isinstance(all_ranks := options.get("all_ranks", True), bool):
        raise BadTypeError(f"all_ranks={shown(all_ranks)} must be true or false")
    limits = options.get("thresholds", {})
    if limits is not None:
        if not isinstance(limits, dict):
            raise BadTypeError(f"thresholds={shown(limits)} must be a dict of limits or null")
        settings.check_keys(limits, LIMITED)
        options["thresholds"] = Thresholds(**limits)
    return options
