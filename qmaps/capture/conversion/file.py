"""Converting a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qmaps.capture.conversion import folder
from qmaps.capture.conversion.formats import know
from qmaps.capture.conversion.formats.base import Wanted
from qmaps.capture.conversion.report import Report
from qmaps.capture.conversion.state_dict import convert_state_dict
from qmaps.capture.decoded import in_memory
from qmaps.capture.readers import reader_of
from qmaps.capture.saved import WRAPPERS, found, load_safely, state_dicts_in
from qmaps.errors import BadValueError, CaptureError, OutputError
from qmaps.storage import checkpoint
from qmaps.storage.files import exists, output_file

SHARDED = ("torch", "qmaps")
"""Formats whose optimizers load folders of torch.distributed.checkpoint."""


def convert_file(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    to: str,
    states: Wanted = None,
    zeros: str = "raise",
    source: str | None = None,
    optimizer: str | None = None,
    overwrite: bool = False,
    distributed: str | None = None,
) -> list[Report]:
    """Convert an optimizer checkpoint to a file of ``torch.save``.

    The checkpoint is a file of ``torch.save``, or of another format that `qmaps.capture.load`
    reads, such as a folder of torch.distributed.checkpoint or DeepSpeed. Only tensors, numbers,
    strings and containers are read (and torchao's quantized tensors, where torchao is installed):
    nothing in the file is executed. A file with more in it, such as a model's weights, keeps that
    as it is; of a folder, only the optimizer's state_dict is written. `out` appears whole or not
    at all.

    Args:
        path: what to read: a file with a state_dict, or with one under a usual name; or the folder
            of a checkpoint.
        out: the file to write.
        to: the target format, as for `convert_state_dict`.
        states: how to keep states, as for `convert_state_dict`.
        zeros: "raise" or "leave", as for `convert_state_dict`.
        source: the format of the checkpoint; found out if left out.
        optimizer: the family of its optimizer, as for `convert_state_dict`.
        overwrite: whether `out` may exist already; `out` may then be `path`.
        distributed: None to write a file of ``torch.save``; otherwise `out` is a folder of
            torch.distributed.checkpoint, such as FSDP trainings load, with the optimizer's
            state_dict under this key. It is for "torch" and "qmaps", needs a checkpoint of one
            optimizer with the parameters' names, and is never overwritten.

    Returns:
        A report for each optimizer in the file.

    Raises:
        CaptureError: the file is missing, damaged, would need to execute code, or is of no known
            optimizer.
        OutputError: `out` exists, or cannot be written.
        BadValueError, BadTypeError: as `convert_state_dict`.
    """
    file, target = Path(path), Path(out)
    if not exists(file):
        raise CaptureError(f"{str(file)!r} does not exist")
    holder = found(file)
    if holder is None:
        raise CaptureError(f"{str(file)!r} is a folder; expected an optimizer checkpoint")
    if distributed is not None and to not in SHARDED:
        raise BadValueError(
            f"distributed={distributed!r} needs one of the formats {', '.join(SHARDED)}; got "
            f"to={to!r}"
        )
    if exists(target) and distributed is not None:
        raise OutputError(f"{str(target)!r} already exists; give another name")
    if exists(target) and not overwrite:
        raise OutputError(f"{str(target)!r} already exists; give another name or allow overwriting")
    if distributed is None:
        output_file(target)
    reports: list[Report] = []

    def convert(state_dict: Mapping[str, Any]) -> dict[str, Any]:
        converted, report = convert_state_dict(
            state_dict, to, states=states, zeros=zeros, source=source, optimizer=optimizer
        )
        reports.append(report)
        return converted

    loaded = _loaded(holder)
    try:
        converted = _replaced(loaded, convert)
    except CaptureError as error:
        raise CaptureError(f"{str(holder)!r}: {error}") from None
    if distributed is None:
        checkpoint.save(converted, target)
        return reports
    (state_dict, *others) = state_dicts_in(converted, holder)
    if others:
        raise BadValueError(
            f"distributed={distributed!r} needs a checkpoint of one optimizer; {str(holder)!r} has "
            f"{len(others) + 1}"
        )
    folder.save(state_dict, target, distributed)
    return reports


def _loaded(path: Path) -> Any:
    """What a file holds, or the optimizer's state_dict in a folder of another package."""
    if reader := reader_of(path):
        state_dicts = in_memory(reader.read(path))
        return state_dicts[0] if len(state_dicts) == 1 else state_dicts
    know_classes(path)
    loaded = load_safely(path)
    state_dicts_in(loaded, path)  # raises where there is none
    return loaded


def know_classes(path: Path) -> None:
    """Let ``torch.load`` know the classes of formats that a file names; nothing is loaded."""
    try:
        know(checkpoint.unknown_classes(path))
    except BadValueError as error:
        raise CaptureError(f"{str(path)!r}: {error}") from None


def _replaced(loaded: Any, convert: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Any:
    """`loaded` with every state_dict of an optimizer in it converted; see `state_dicts_in`."""
    if isinstance(loaded, (list, tuple)):
        return [_replaced(member, convert) for member in loaded]
    if {"state", "param_groups"} <= loaded.keys():
        return convert(loaded)
    wrapper = next(name for name in WRAPPERS if name in loaded)
    return {**loaded, wrapper: _replaced(loaded[wrapper], convert)}
