"""A capture folder: whole snapshots of one optimizer's parameters, and an index of them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from qmaps.capture import snapshot
from qmaps.errors import CaptureError, OutputError
from qmaps.storage.files import write_json
from qmaps.storage.locks import FolderLock

INDEX = "capture.json"
KIND = "capture"
"""Of the folder's lock."""


def claim(lock: FolderLock, info: snapshot.Info) -> Path:
    """Prepare a locked folder for snapshots such as `info`, and return it.

    What an interrupted write left is removed, and the index brought up to date.

    Args:
        lock: the lock of the folder.
        info: contents of the new snapshots. The optimizer and the shapes of parameters (of states
            if those are not known) must be those of the newest snapshot in the folder, and the
            parameters must include those of the first.

    Returns:
        The folder.

    Raises:
        OutputError: the folder holds a capture of something else, or its newest snapshot cannot be
            read.
    """
    folder = lock.folder
    steps = snapshot.steps_in(folder)
    if steps:
        first_path, newest_path = (snapshot.path_of(folder, steps[i]) for i in (0, -1))
        try:
            first = newest = snapshot.read_info(newest_path)
        except CaptureError as error:
            raise OutputError(
                f"out={str(folder)!r} holds a snapshot that cannot be read: {error}; delete it or "
                "give another folder"
            ) from None
        with suppress(CaptureError):
            first = snapshot.read_info(first_path)
        difference = _difference(first, newest, info)
        if difference:
            raise OutputError(f"out={str(folder)!r} holds states of {difference}")
    # Without a lock these files may belong to another writer.
    for pattern in (".step-*.tmp", ".gradients-*.tmp", f".{INDEX}.*.tmp") if lock.exclusive else ():
        for leftover in folder.glob(pattern):
            leftover.unlink(missing_ok=True)
    if steps:
        write_index(folder, newest)
    return folder


def write_index(folder: Path, info: snapshot.Info) -> None:
    """Write ``capture.json``: what the folder is a capture of, and its snapshots.

    It is for people and scripts. qmaps itself goes by the snapshots, so that an interruption
    between a snapshot and its index does no harm.
    """
    names = [snapshot.path_of(folder, step).name for step in snapshot.steps_in(folder)]
    states: dict[str, dict[str, dict[str, object]]] = {}
    for entry in info.tensors:
        described: dict[str, object] = {"shape": entry.shape, "dtype": entry.dtype}
        states.setdefault(entry.parameter, {})[entry.state] = described
    write_json(
        folder / INDEX,
        {
            "format": snapshot.FORMAT,
            "optimizer": info.optimizer,
            "parameters": info.parameters,
            "states": states,
            "snapshots": names,
        },
    )


def _difference(first: snapshot.Info, newest: snapshot.Info, info: snapshot.Info) -> str:
    """Describe the other states in the folder, with advice; ``''`` if `info` goes on from them."""
    if newest.optimizer != info.optimizer:
        return f"{newest.optimizer}; give another folder for {info.optimizer}"
    shapes = [snapshot_info.parameters for snapshot_info in (first, newest, info)]
    if not all(shapes):  # a checkpoint does not say what its parameters are, only its states
        shapes = [_state_shapes(snapshot_info) for snapshot_info in (first, newest, info)]
        if not all(shapes):
            return ""
    first_shapes, newest_shapes, new_shapes = shapes
    if missing := sorted(first_shapes.keys() - new_shapes.keys()):
        return (
            f"other parameters ({missing[0]!r} is only there); give another folder for this choice "
            "of parameters"
        )
    for name, shape in new_shapes.items():
        if newest_shapes.get(name, shape) != shape:
            return (
                f"{name!r} of shape {tuple(newest_shapes[name])}; give another folder for shape "
                f"{tuple(shape)}"
            )
    return ""


def _state_shapes(info: snapshot.Info) -> dict[str, list[int]]:
    return {f"{entry.parameter}: {entry.state}": entry.shape for entry in info.tensors}
