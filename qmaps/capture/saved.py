"""Reading the states of a saved optimizer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from qmaps.capture import snapshot
from qmaps.capture.collect import collect, plain_options
from qmaps.capture.folder import KIND, claim, write_index
from qmaps.capture.snapshot import Lazy
from qmaps.capture.states import CapturedStates
from qmaps.errors import DAMAGE, BadTypeError, BadValueError, CaptureError, shown
from qmaps.normalize.block import MOST
from qmaps.storage import checkpoint
from qmaps.storage.files import exists
from qmaps.storage.locks import FolderLock

Names = torch.nn.Module | Iterable[str] | None

WRAPPERS = (
    "optimizer",
    "optimizer_state_dict",
    "optimizer_state",
    "optimizer_states",
    "optimizers",
    "optim",
    "optim_state_dict",
)
"""Where larger checkpoints keep the optimizer's state_dict, or a list of them."""

SHAPED_AS_PARAMETER = ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "sum")
"""States by which a wrong order of names shows."""


def read(path: Path, names: Names = None) -> CapturedStates:
    """The states of a checkpoint; see `qmaps.capture.load`."""
    found_slots = slots_of(state_dicts_in(load_safely(path), path), path)
    labels = labels_of(found_slots, names, path)
    tensors: dict[str, dict[str, Lazy]] = {}
    hyperparameters: dict[str, dict[str, Any]] = {}
    scalars: dict[str, dict[str, float]] = {}
    skipped: list[str] = []
    taken = 0
    for label, (_, group, state) in zip(labels, found_slots, strict=True):
        try:
            found = collect(state)
            hyperparameters[label] = plain_options(group)
            taken = max(taken, _step(found.scalars.get("step", 0)))
        except DAMAGE as error:  # for example a quantized state whose parts do not fit
            raise CaptureError(f"{str(path)!r} is damaged at {label!r}: {error}") from None
        scalars[label] = found.scalars
        skipped += [f"{label}: {name} ({kind})" for name, kind in found.skipped.items()]
        if found.tensors:
            tensors[label] = found.tensors
    if not tensors:
        raise CaptureError(f"{str(path)!r} is an optimizer checkpoint that holds no states")
    if isinstance(names, torch.nn.Module):
        _check_shapes(names, tensors, path)
    return CapturedStates(
        tensors,
        step=taken,
        hyperparameters=hyperparameters,
        scalars=scalars,
        skipped=skipped,
        source=str(path),
    )


def _step(number: float) -> int:
    if not 0 <= number <= MOST:
        raise BadValueError(f"step={shown(number)} must be an integer of at least 0")
    return int(number)


def convert(
    checkpoint: str | os.PathLike[str], out: str | os.PathLike[str], *, names: Names = None
) -> Path:
    """Write a checkpoint's states as a capture folder, and return the new file.

    Checkpoints of several steps of one training may go to one folder.

    Args:
        checkpoint: a file that ``torch.save`` wrote, as for `qmaps.capture.load`.
        out: the folder, created if need be.
        names: parameter names, where the checkpoint has none, as for `load`.

    Returns:
        The new ``.safetensors`` file.

    Raises:
        CaptureError, OutputError: as for `load` and `StateRecorder`; nothing is written then.
    """
    source = Path(checkpoint)
    if not exists(source):
        raise CaptureError(f"{str(source)!r} does not exist")
    if source.is_dir():
        raise CaptureError(f"{str(source)!r} is a folder; expected an optimizer checkpoint")
    states = read(source, names)
    lazies = list(states.lazies())
    about = snapshot.About(
        step=states.step,
        optimizer=states.optimizer,
        hyperparameters={name: states.hyperparameters(name) for name in states.parameters()},
        tensors=[snapshot.Entry.of(p, s, lazy) for p, s, lazy in lazies],
        scalars={name: states.scalars(name) for name in states.parameters()},
        skipped=states.skipped,
    )
    with FolderLock(out, KIND) as lock:
        path = snapshot.path_of(claim(lock, about), states.step)
        snapshot.write(path, about, [lazy for _, _, lazy in lazies])
        write_index(path.parent, about)
    return path


Slot = tuple[str, Mapping[str, Any], Mapping[Any, Any]]
"""A parameter of a checkpoint: its name without further knowledge, its group, its state."""


def load_safely(path: Path) -> Any:
    """The object in a ``torch.save`` file, loaded without executing code."""
    try:
        return checkpoint.load(path, mmap=True)
    except BadValueError as error:
        raise CaptureError(str(error)) from None


def state_dicts_in(loaded: Any, path: Path) -> list[Mapping[str, Any]]:
    """The optimizers' state_dicts in `loaded`."""
    if isinstance(loaded, (list, tuple)) and loaded:
        return [state_dict for member in loaded for state_dict in state_dicts_in(member, path)]
    if isinstance(loaded, Mapping):
        if {"state", "param_groups"} <= loaded.keys():
            return [loaded]
        for wrapper in WRAPPERS:
            if wrapper in loaded:
                return state_dicts_in(loaded[wrapper], path)
    kind = type(loaded).__name__
    if isinstance(loaded, Mapping):
        some = [str(key) for key in list(loaded)[:4]]
        kind = f"a dict with {', '.join(some)}{', ...' if len(loaded) > 4 else ''}"
        kind = kind if some else "an empty dict"
    raise CaptureError(
        f"{str(path)!r} must hold an optimizer state_dict ('state' and 'param_groups'), but holds "
        f"{kind}"
    )


def slots_of(state_dicts: Sequence[Mapping[str, Any]], path: Path) -> list[Slot]:
    """Every parameter in the order of the optimizers and their groups."""
    slots: list[Slot] = []
    for number, state_dict in enumerate(state_dicts):
        prefix = f"optimizer{number}." if len(state_dicts) > 1 else ""
        try:
            slots += [
                (prefix + name, group, state) for name, group, state in _parameters(state_dict)
            ]
        except DAMAGE:
            raise CaptureError(
                f"{str(path)!r} holds an optimizer state_dict whose parts do not fit together"
            ) from None
    return slots


def _parameters(state_dict: Mapping[str, Any]) -> Iterator[Slot]:
    for number, group in enumerate(state_dict["param_groups"]):
        own = group.get("param_names") or ()
        for position, key in enumerate(group["params"]):
            if position < len(own):
                name = str(own[position])
            elif isinstance(key, str):  # torch.distributed.checkpoint uses names as keys
                name = key
            else:
                name = f"group{number}.param{position}"
            state = state_dict["state"].get(key, {})
            if not isinstance(state, Mapping):
                raise TypeError
            yield name, group, state


def labels_of(slots: list[Slot], names: Names, path: Path) -> list[str]:
    """The parameters' names, in the checkpoint's order."""
    if names is None:
        labels = [label for label, _, _ in slots]
    elif isinstance(names, torch.nn.Module):
        labels = [name for name, p in names.named_parameters() if p.requires_grad]
    else:
        labels = list(names)
        for label in labels:
            if not isinstance(label, str):
                raise BadTypeError(
                    f"names must be a model or strings, got {type(label).__name__} among them"
                )
    if len(labels) != len(slots):
        raise BadValueError(
            f"names has {len(labels)} entries, but {str(path)!r} has {len(slots)} parameters"
        )
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        where = repr(str(path)) if names is None else "names"
        raise (CaptureError if names is None else BadValueError)(
            f"{where} has two parameters named {twice!r}; every name must be unique"
        )
    return labels


def _check_shapes(
    model: torch.nn.Module, tensors: Mapping[str, Mapping[str, Lazy]], path: Path
) -> None:
    """Raise if the states cannot be those of the model's parameters in the model's order."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for label, states in tensors.items():
        for name in SHAPED_AS_PARAMETER:
            if name in states and states[name].shape != shapes[label]:
                raise BadValueError(
                    f"names gives {label!r} of shape {shapes[label]} a state {name!r} of shape "
                    f"{states[name].shape} in {str(path)!r}; the optimizer orders its parameters "
                    "differently, perhaps by groups: give the names as a list in its order"
                )
