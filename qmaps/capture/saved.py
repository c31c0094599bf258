"""Reading the states of a saved optimizer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from qmaps.capture import naming, snapshot
from qmaps.capture.collect import Collected, collect, decoded, plain_options
from qmaps.capture.naming import Group, Known, Unnamed
from qmaps.capture.readers import reader_of
from qmaps.capture.recorder import KIND, claim, write_index
from qmaps.capture.snapshot import Lazy
from qmaps.capture.states import CapturedStates
from qmaps.errors import DAMAGE, BadTypeError, BadValueError, CaptureError, shown
from qmaps.normalize.block import MOST
from qmaps.storage import checkpoint
from qmaps.storage.files import exists
from qmaps.storage.locks import FolderLock

Listed = torch.nn.Module | Iterable[str] | None
Names = Listed | str | os.PathLike[str]

FILES = ("optimizer.pt", "optimizer.bin")
"""Names of the optimizer's file in a trainer's checkpoint folder."""

MODELS = (".safetensors", ".bin", ".json", ".pt", ".pth", ".ckpt")
"""Endings of files that hold a model, or name its shards."""

WRAPPERS = (
    "optimizer",
    "optimizer_state_dict",
    "optimizer_state",
    "optimizer_states",
    "optimizers",
    "optim",
    "optim_state_dict",
)
"""Keys of the optimizer's state_dict, or a list of them, in larger checkpoints."""

DEEPEST = 8
"""Lists and dicts around a state_dict, at most."""


def locate(path: Path) -> Path | None:
    """Return the file or folder with the optimizer's states; None for a folder of no known format.

    Args:
        path: a file, or the folder of a checkpoint.
    """
    if not path.is_dir():
        return path
    files = (path / name for name in FILES if exists(path / name))
    return next(files, path if reader_of(path) else None)


def read(path: Path, names: Names = None) -> CapturedStates:
    """Read the states of a checkpoint; see `qmaps.capture.load`."""
    state_dicts = state_dicts_of(path)
    found_slots = slots_of(state_dicts, path)
    labels = labels_of(found_slots, names, path)
    states: list[Collected] = []
    options: list[dict[str, Any]] = []
    for label, (_, group, state) in zip(labels, found_slots, strict=True):
        try:
            states.append(collect(decoded(state)))
            options.append(plain_options(group))
            _step(states[-1].scalars.get("step", 0))
        except DAMAGE as error:  # for example a quantized state whose parts do not fit
            raise CaptureError(f"{str(path)!r} is damaged at {label!r}: {error}") from None
    if not any(collected.tensors for collected in states):
        raise CaptureError(f"{str(path)!r} is an optimizer checkpoint that holds no states")
    tensors = [collected.tensors for collected in states]
    labels, source = named_by(names, labels, state_dicts, tensors, path)
    if odd := next(
        (label for label in labels if label != label.encode(errors="replace").decode()), None
    ):
        raise CaptureError(f"{str(path)!r} names a parameter {odd!r}, which is no text in Unicode")
    named = list(zip(labels, states, strict=True))
    return CapturedStates(
        {label: collected.tensors for label, collected in named if collected.tensors},
        step=max(_step(collected.scalars.get("step", 0)) for collected in states),
        hyperparameters=dict(zip(labels, options, strict=True)),
        scalars={label: collected.scalars for label, collected in named},
        skipped=[
            f"{label}: {name} ({kind})"
            for label, collected in named
            for name, kind in collected.skipped.items()
        ],
        source=str(path),
        naming=source,
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
        checkpoint: a file of ``torch.save``, or the folder of a checkpoint, as for
            `qmaps.capture.load`.
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
    holder = locate(source)
    if holder is None:
        raise CaptureError(f"{str(source)!r} is a folder; expected an optimizer checkpoint")
    return write(read(holder, names), out)


def write(states: CapturedStates, out: str | os.PathLike[str]) -> Path:
    """Write states as a snapshot of a capture folder, and return the new file.

    Args:
        states: the states of one step.
        out: the folder, created if need be.

    Raises:
        CaptureError: a state cannot be read.
        OutputError: the folder cannot be written, or holds states of something else.
    """
    lazies = list(states.lazies())
    info = snapshot.Info(
        step=states.step,
        optimizer=states.optimizer,
        hyperparameters={name: states.hyperparameters(name) for name in states.parameters()},
        tensors=[snapshot.Entry.of(p, s, lazy) for p, s, lazy in lazies],
        scalars={name: states.scalars(name) for name in states.parameters()},
        skipped=states.skipped,
    )
    with FolderLock(out, KIND) as lock:
        path = snapshot.path_of(claim(lock, info), states.step)
        snapshot.write(path, info, [lazy for _, _, lazy in lazies])
        write_index(path.parent, info)
    return path


Slot = tuple[str, Mapping[str, Any], Mapping[Any, Any]]
"""A parameter of a checkpoint: its name in the checkpoint, its group, its state."""


def state_dicts_of(path: Path) -> list[Mapping[str, Any]]:
    """Return the optimizers' state_dicts in a file, or in a folder of a known format.

    Tensors of a file stay on disk until they are used; those of a folder are `Lazy`.
    """
    reader = reader_of(path)
    return [*reader.read(path)] if reader else state_dicts_in(load_safely(path), path)


def load_safely(path: Path) -> Any:
    """Load a ``torch.save`` file without executing code."""
    # Imported here because most files name no classes of other libraries.
    from qmaps.capture.conversion.formats import know

    try:
        return checkpoint.load(path, mmap=True, know=know)
    except BadValueError as error:
        raise CaptureError(str(error)) from None


def state_dicts_in(loaded: Any, path: Path) -> list[Mapping[str, Any]]:
    """Return the optimizers' state_dicts in a loaded object."""
    state_dicts: list[Mapping[str, Any]] = []
    pending = [(loaded, DEEPEST)]
    seen: set[int] = set()
    while pending:
        value, deeper = pending.pop()
        is_new = deeper > 0 and id(value) not in seen  # a list in itself has no end
        seen.add(id(value))
        keys = {*value} if isinstance(value, Mapping) else set()
        wrapper = next((name for name in WRAPPERS if name in keys), None)
        if {"state", "param_groups"} <= keys:
            state_dicts.append(value)
        elif is_new and isinstance(value, (list, tuple)) and value:
            pending += [(member, deeper - 1) for member in reversed(value)]
        elif is_new and wrapper:
            pending.append((value[wrapper], deeper - 1))
        else:
            raise _without_optimizer(value, path)
    return state_dicts


def _without_optimizer(value: Any, path: Path) -> CaptureError:
    kind = type(value).__name__
    if isinstance(value, Mapping):
        keys = [str(key) for key in list(value)[:4]]
        kind = f"a dict with {', '.join(keys)}{', ...' if len(value) > 4 else ''}"
        kind = kind if keys else "an empty dict"
    return CaptureError(
        f"{str(path)!r} must hold an optimizer state_dict ('state' and 'param_groups'), but holds "
        f"{kind}"
    )


def slots_of(state_dicts: Sequence[Mapping[str, Any]], path: Path) -> list[Slot]:
    """Return every parameter in the order of the optimizers and their groups."""
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
        names = group.get("param_names") or ()
        for position, key in enumerate(group["params"]):
            if position < len(names):
                name = str(names[position])
            elif isinstance(key, str):  # torch.distributed.checkpoint uses names as keys
                name = key
            else:
                name = f"group{number}.param{position}"
            state = state_dict["state"].get(key, {})
            if not isinstance(state, Mapping):
                raise TypeError
            yield name, group, state


def _source(names: Names) -> str:
    """Return the source of `names` other than a model's file."""
    if names is None:
        return "the checkpoint"
    return Path(names).name if isinstance(names, (str, os.PathLike)) else "a list"


def _place(names: Names) -> Path | None:
    """Return the path of a model; None if `names` is anything else."""
    if not isinstance(names, (str, os.PathLike)):
        return None
    place = Path(names)
    return place if place.is_dir() or place.suffix in MODELS else None


def labels_of(slots: list[Slot], names: Names, path: Path) -> list[str]:
    """Return the parameters' names, in the checkpoint's order; `named_by` finds those in a model.

    Args:
        slots: the parameters.
        names: names as for `qmaps.capture.load`.
        path: the checkpoint, for messages.
    """
    if _place(names) is not None:
        names = None
    elif isinstance(names, (str, os.PathLike)):
        names = naming.names_in_text(Path(names))
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


def named_by(
    names: Names,
    labels: list[str],
    state_dicts: Sequence[Mapping[str, Any]],
    tensors: Sequence[Mapping[str, Lazy]],
    path: Path,
) -> tuple[list[str], str]:
    """Return the parameters' names with those from a model in place of numbers, and their source.

    Args:
        names: names as for `qmaps.capture.load`.
        labels: names from `labels_of`.
        state_dicts: the optimizers' state_dicts.
        tensors: states of each parameter, by name.
        path: the checkpoint; the model may lie beside it.

    Raises:
        BadValueError: `names` is a model that does not fit the states.
    """
    groups = _groups(state_dicts, tensors)
    if (place := _place(names)) is not None:
        return _by_place(place, groups)
    if isinstance(names, torch.nn.Module):
        return _by_model(names, labels, tensors, groups, path), "the model"
    if names is not None or any(map(_has_names, state_dicts)):
        return labels, _source(names)
    try:
        if len(state_dicts) > 1:
            raise Unnamed("there are several optimizers")
        return naming.by_place(path.parent, groups)
    except Unnamed as error:
        return labels, f"numbers: {error}"


def _has_names(state_dict: Mapping[str, Any]) -> bool:
    """Return True if a parameter of the checkpoint has a name."""
    return any(
        group.get("param_names") or any(isinstance(key, str) for key in group["params"])
        for group in state_dict["param_groups"]
    )


def _groups(
    state_dicts: Sequence[Mapping[str, Any]], tensors: Sequence[Mapping[str, Lazy]]
) -> list[Group]:
    """Return the groups of all optimizers, with the shapes of parameters from their states."""
    remaining = iter(tensors)
    return [
        Group(
            [naming.parameter_shape(next(remaining)) for _ in group["params"]],
            group.get("weight_decay"),
        )
        for state_dict in state_dicts
        for group in state_dict["param_groups"]
    ]


def _by_place(place: Path, groups: list[Group]) -> tuple[list[str], str]:
    """Return the names from a model's file or folder, and their source."""
    if not exists(place):
        raise BadValueError(f"names={str(place)!r} does not exist")
    try:
        return naming.by_place(place, groups)
    except Unnamed as error:
        raise BadValueError(
            f"names={str(place)!r}: {error}; give a text file with one name per line in the "
            "optimizer's order"
        ) from None


def _by_model(
    model: torch.nn.Module,
    labels: list[str],
    tensors: Sequence[Mapping[str, Lazy]],
    groups: list[Group],
    path: Path,
) -> list[str]:
    """Return the names from a model; `labels` are its parameters in its order."""
    expected = Known.of(model, "the model")
    try:
        return naming.fitted(expected, groups)
    except Unnamed as error:
        for label, states in zip(labels, tensors, strict=True):
            shape = naming.parameter_shape(states)
            if shape is not None and shape != expected.shapes[label]:
                raise BadValueError(
                    f"names gives {label!r} of shape {expected.shapes[label]} a state of shape "
                    f"{shape} in {str(path)!r}; the optimizer orders its parameters differently, "
                    "perhaps by groups: give the names as a list in its order"
                ) from None
        if all(shape is None for group in groups for shape in group.shapes):
            return labels
        raise BadValueError(
            f"names is a model whose parameters do not tell those of {str(path)!r}: {error}; "
            "give the names as a list in the optimizer's order"
        ) from None
