"""Reading captures: a folder of snapshots, one snapshot, or an optimizer checkpoint."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from qmaps.capture import saved, snapshot
from qmaps.capture.gradients import Window
from qmaps.capture.readers import reader_of
from qmaps.capture.saved import Names
from qmaps.capture.snapshot import Lazy
from qmaps.capture.states import CapturedStates
from qmaps.errors import BadValueError, CaptureError
from qmaps.storage.files import exists


def load(
    path: str | os.PathLike[str], *, step: int | None = None, names: Names = None
) -> CapturedStates:
    """Load captured states, or those of a saved optimizer.

    Args:
        path: a folder of `StateRecorder`, one of its ``.safetensors`` files, or a
            checkpoint: ``torch.save`` of an optimizer's ``state_dict()``, of a list of them, or
            of a larger checkpoint with one inside, such as a Hugging Face Trainer's
            ``optimizer.pt`` or Lightning's ``.ckpt``; the Trainer's folder, ``checkpoint-500``; a
            folder of torch.distributed.checkpoint (FSDP) or of DeepSpeed (ZeRO 1, 2 and 3, and
            universal checkpoints); or a ``.safetensors`` file with tensors named
            ``PARAMETER.exp_avg``. It is loaded without executing code, and the tensors of folders
            and of safetensors files one at a time, when they are asked for.
        step: step of a snapshot in a folder; the last if left out.
        names: parameter names for a checkpoint without them: a list in the optimizer's order, a
            text file with one name per line in that order, the model, or the file or folder of a
            Trainer's model (``model.safetensors``, ``pytorch_model.bin``, or the index of their
            shards). A model's parameters may be in the optimizer in the model's order, or in two
            groups as the Trainer makes them: those with weight decay, then the others. If left
            out, the checkpoint's own names, else those of the model beside it. Where names cannot
            be recovered, parameters are numbered, ``group0.param3``, and the attribute `naming` of
            the result says why.

    Raises:
        CaptureError: nothing there, corrupt, truncated, no optimizer's states, or a checkpoint that
            would execute code.
        BadValueError: `step` was not captured, or `names` does not fit the states, fits in
            several ways, or is given for captured states.
    """
    source = Path(path)
    if not exists(source):
        raise CaptureError(f"{str(source)!r} does not exist")
    if not (source.is_dir() or source.is_file()):
        raise CaptureError(f"{str(source)!r} is neither a file nor a folder")
    if source.is_dir():
        checkpoint = saved.locate(source)
        if checkpoint is None or _steps(source):
            _refuse(names, source)
            return _folder(source, step)
        source = checkpoint
    if step is not None:
        kind = "checkpoint" if source.is_dir() else "file"
        raise BadValueError(
            f"step={step} needs a folder of captures; {str(source)!r} is one {kind}"
        )
    if source.suffix == ".safetensors" and reader_of(source) is None:
        _refuse(names, source)
        return _snapshot(source, None)
    return saved.read(source, names)


def _refuse(names: Names, source: Path) -> None:
    if names is not None:
        raise BadValueError(
            f"names needs an optimizer checkpoint; {str(source)!r} holds captured states, which "
            "have names"
        )


def _steps(folder: Path) -> list[int]:
    try:
        return snapshot.steps_in(folder)
    except OSError as error:
        raise CaptureError(f"{str(folder)!r} cannot be read ({error.strerror})") from None


def _folder(folder: Path, step: int | None) -> CapturedStates:
    steps = _steps(folder)
    if not steps:
        raise CaptureError(f"{str(folder)!r} holds no captured steps (step-*.safetensors)")
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        captured = ", ".join(map(str, steps))
        raise BadValueError(f"step={step} is not in {str(folder)!r}; it has {captured}")
    return _snapshot(snapshot.path_of(folder, chosen), steps)


def _snapshot(path: Path, steps: list[int] | None) -> CapturedStates:
    info = snapshot.read_info(path)
    tensors: dict[str, dict[str, Lazy]] = {}
    for number, entry in enumerate(info.tensors):
        read = partial(snapshot.read_tensor, path, number)
        parts = partial(snapshot.parts_of_tensor, path, number)
        lazy = Lazy(tuple(entry.shape), snapshot.dtype_of(entry), read, parts=parts)
        tensors.setdefault(entry.parameter, {})[entry.state] = lazy
    return CapturedStates(
        tensors,
        step=info.step,
        steps=steps,
        optimizer=info.optimizer,
        hyperparameters=info.hyperparameters,
        scalars=info.scalars,
        skipped=info.skipped,
        source=str(path),
        window=Window(path, info),
    )
