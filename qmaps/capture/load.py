"""Reading captures: a folder of snapshots, one snapshot, or an optimizer checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from qmaps.capture import checkpoint, snapshot
from qmaps.capture.checkpoint import Names
from qmaps.capture.states import CapturedStates
from qmaps.errors import BadValueError, CaptureError


def load(
    path: str | os.PathLike[str], *, step: int | None = None, names: Names = None
) -> CapturedStates:
    """Captured states, or those of a saved optimizer.

    Args:
        path: a folder that `StateRecorder` wrote, one of its ``.safetensors`` files, or a
            checkpoint: ``torch.save`` of an optimizer's ``state_dict()``, alone or inside a
            larger checkpoint, such as a Hugging Face Trainer's ``optimizer.pt``.
        step: which snapshot of a folder; the last if left out.
        names: parameter names for a checkpoint without them: a model, or a list in the
            optimizer's order.

    Raises:
        CaptureError: nothing there, corrupt, truncated, no optimizer's states, or a checkpoint
            that would need code execution to load.
        BadValueError: `step` was not captured.
    """
    source = Path(path)
    if source.is_dir():
        steps = snapshot.steps_in(source)
        if not steps:
            raise CaptureError(f"{str(source)!r} holds no captured step (step-*.safetensors)")
        chosen = steps[-1] if step is None else step
        if chosen not in steps:
            known = ", ".join(map(str, steps))
            raise BadValueError(f"step={step} is not in {str(source)!r}; it has {known}")
        return _snapshot(snapshot.path_of(source, chosen), steps)
    if not source.exists():
        raise CaptureError(f"{str(source)!r} does not exist")
    if step is not None:
        raise BadValueError(f"step={step} chooses from a folder; {str(source)!r} is one file")
    if source.suffix == ".safetensors":
        return _snapshot(source, None)
    return checkpoint.read(source, names)


def _snapshot(path: Path, steps: list[int] | None) -> CapturedStates:
    about = snapshot.read_about(path)
    tensors: dict[str, dict[str, tuple[tuple[int, ...], object]]] = {}
    for number, entry in enumerate(about.tensors):
        read = lambda number=number: snapshot.read_tensor(path, number)  # noqa: E731
        states = tensors.setdefault(entry["parameter"], {})
        states[entry["state"]] = (tuple(entry["shape"]), read)
    return CapturedStates(
        tensors,  # type: ignore[arg-type]
        step=about.step,
        steps=steps,
        optimizer=about.optimizer,
        hyperparameters=about.hyperparameters,
        source=str(path),
    )
