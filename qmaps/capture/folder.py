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


def claim(lock: FolderLock, about: snapshot.About) -> Path:
    """Prepare a locked folder for snapshots such as `about`, and return it.

    What an interrupted write left is removed, and the index brought up to date.

    Args:
        lock: the lock of the folder.
        about: what the new snapshots say of themselves. The optimizer and the shapes of parameters,
            or where those are not known of states, must be those of the newest snapshot in the
            folder, and the parameters of the first snapshot must be among them.

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
            first = newest = snapshot.read_about(newest_path)
        except CaptureError as error:
            raise OutputError(
                f"out={str(folder)!r} holds a snapshot that cannot be read: {error}; delete it or "
                "give another folder"
            ) from None
        with suppress(CaptureError):
            first = snapshot.read_about(first_path)
        difference = _difference(first, newest, about)
        if difference:
            raise OutputError(f"out={str(folder)!r} holds states of {difference}")
    # Without a lock these files may belong to another writer.
    for pattern in (".step-*.tmp", ".gradients-*.tmp", f".{INDEX}.*.tmp") if lock.exclusive else ():
        for leftover in folder.glob(pattern):
            leftover.unlink(missing_ok=True)
    if steps:
        write_index(folder, newest)
    return folder


def write_index(folder: Path, about: snapshot.About) -> None:
    """Write ``capture.json``: what the folder is a capture of, and its snapshots.

    It is for people and scripts. qmaps itself goes by the snapshots, so that an interruption
    between a snapshot and its index does no harm.
    """
    names = [snapshot.path_of(folder, step).name for step in snapshot.steps_in(folder)]
    states: dict[str, dict[str, dict[str, object]]] = {}
    for entry in about.tensors:
        described: dict[str, object] = {"shape": entry.shape, "dtype": entry.dtype}
        states.setdefault(entry.parameter, {})[entry.state] = described
    write_json(
        folder / INDEX,
        {
            "format": snapshot.FORMAT,
            "optimizer": about.optimizer,
            "parameters": about.parameters,
            "states": states,
            "snapshots": names,
        },
    )


def _difference(first: snapshot.About, newest: snapshot.About, about: snapshot.About) -> str:
    """Describe the other states in the folder, with advice; ``''`` if `about` goes on from them."""
    if newest.optimizer != about.optimizer:
        return f"{newest.optimizer}; give another folder for {about.optimizer}"
    shapes = [each.parameters for each in (first, newest, about)]
    if not all(shapes):  # a checkpoint does not say what its parameters are, only its states
        shapes = [_state_shapes(each) for each in (first, newest, about)]
        if not all(shapes):
            return ""
    at_first, there, here = shapes
    if missing := sorted(at_first.keys() - here.keys()):
        return (
            f"other parameters ({missing[0]!r} is only there); give another folder for this choice "
            "of parameters"
        )
    for name, shape in here.items():
        if there.get(name, shape) != shape:
            return (
                f"{name!r} of shape {tuple(there[name])}; give another folder for shape "
                f"{tuple(shape)}"
            )
    return ""


def _state_shapes(about: snapshot.About) -> dict[str, list[int]]:
    return {f"{entry.parameter}: {entry.state}": entry.shape for entry in about.tensors}
