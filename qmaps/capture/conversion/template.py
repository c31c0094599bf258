"""Writing states back into a checkpoint of several processes, as another package laid it out."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from qmaps.capture.collect import decoded
from qmaps.capture.load import slots_of
from qmaps.capture.parameters import check_unique
from qmaps.capture.readers import Reader, reader_of
from qmaps.capture.readers.base import damage, unfit
from qmaps.capture.snapshot import Lazy
from qmaps.errors import DAMAGE, BadValueError, CaptureError, QmapsError
from qmaps.storage.checkpoint import Part, editing, renumber
from qmaps.storage.files import size_of
from qmaps.storage.locks import new_folder

STEP = "step"

States = Mapping[str, Mapping[Any, Any]]
"""The states of each parameter, by its name."""


def save(state_dict: Mapping[str, Any], source: Path, template: Path, folder: Path) -> list[str]:
    """Write a copy of a checkpoint's folder with other states and steps in it, and return notes.

    Tensors are replaced where they are in the copied files; their pickles are kept as they are,
    except for numbers of steps. `state_dict` is an optimizer's in 32 bits, of the template's
    parameters by name, and `source` its file for messages. A file such as ``latest`` in the
    `template` may name the checkpoint.

    Raises:
        BadValueError: the template is of no format here, or the states are of other parameters.
        CaptureError: the template is damaged, or holds states in codes.
        OutputError: the folder cannot be written.
    """
    reader = reader_of(template)
    if reader is None or not reader.writable or not template.is_dir():
        raise BadValueError(
            f"like={str(template)!r} must be the folder of a checkpoint of DeepSpeed, "
            "Megatron-core or torch.distributed.checkpoint"
        )
    ours = _by_name([state_dict], source)
    _check(ours, _by_name(reader.read(template), template), source, template)
    holder = reader.holder(template) or template
    with new_folder(folder) as new:
        _copy(template, holder, reader, new)
        at = new / holder.relative_to(template)
        try:
            with editing([file for file in reader.edited(at) if isinstance(file, Path)]):
                numbers = _put(ours, _by_name(reader.read(at), at))
            _renumber(reader.edited(at), numbers, template)
            # What is written is read again, and compared with what was to be written.
            return _compare(ours, _by_name(reader.read(at), at), source, template)
        except QmapsError as error:  # of a file that is as the template's, and soon gone
            raise type(error)(str(error).replace(str(new), str(template))) from None
        except (*DAMAGE, zipfile.BadZipFile) as error:
            raise unfit(template, error) from error


def _by_name(state_dicts: Sequence[Mapping[str, Any]], path: Path) -> dict[str, Mapping[Any, Any]]:
    """The states of each parameter with states."""
    slots = slots_of(state_dicts, path)
    check_unique((slot.label for slot in slots), repr(str(path)))
    with damage(path):
        return {slot.label: decoded(slot.state) for slot in slots if slot.state}


def _check(ours: States, theirs: States, source: Path, template: Path) -> None:
    """Raise unless both have states of the same names and shapes, and the template in no codes."""
    for states_by_name, expected, path, missing_in in (
        (ours, theirs, source, template),
        (theirs, ours, template, source),
    ):
        if odd := next((name for name in states_by_name if name not in expected), None):
            raise BadValueError(
                f"{str(path)!r} has states of {odd!r}, and {str(missing_in)!r} has none; like "
                "needs the same parameters by the same names"
            )
    for name, states in theirs.items():
        if {*states} - {STEP} != {*ours[name]} - {STEP}:
            have, source_names = (", ".join(sorted({*s} - {STEP})) for s in (states, ours[name]))
            raise BadValueError(
                f"{str(template)!r} has {have} of {name!r}, and {str(source)!r} has "
                f"{source_names}; like needs the same states"
            )
        for state, value in states.items():
            if state == STEP:
                if STEP not in ours[name]:
                    raise BadValueError(f"{str(source)!r} does not say the step of {name!r}")
                continue
            if not isinstance(value, Lazy) or not value.store or not value.dtype.is_floating_point:
                raise CaptureError(
                    f"{str(template)!r} does not hold {state!r} of {name!r} as numbers in floating "
                    "point; like needs a checkpoint without quantized states"
                )
            if value.shape != (shape := tuple(ours[name][state].shape)):
                raise BadValueError(
                    f"{str(source)!r} has {state!r} of {name!r} in the shape {shape}, and "
                    f"{str(template)!r} in {value.shape}"
                )


def _put(ours: States, theirs: States) -> set[tuple[float, float]]:
    """Store all; return pairs of old and new steps, where they are numbers in a pickle."""
    numbers = set()
    for name, states in theirs.items():
        for state, value in states.items():
            if isinstance(value, Lazy):
                assert value.store  # `_check` has seen it
                value.store(torch.as_tensor(ours[name][state], dtype=value.dtype))
            else:
                numbers.add((value, float(ours[name][state])))
    return numbers


def _renumber(
    places: Sequence[Path | Part], numbers: set[tuple[float, float]], template: Path
) -> None:
    changed = sorted(pair for pair in numbers if pair[0] != pair[1])
    if len(numbers) > 1 and changed:
        raise BadValueError(
            f"{str(template)!r} has one step for all parameters; got steps "
            f"{', '.join(sorted({f'{new:.0f}' for _, new in numbers}))}"
        )
    for old, new in changed:
        for place in places:
            renumber(place, STEP, old, new)


def _compare(ours: States, theirs: States, source: Path, template: Path) -> list[str]:
    """Raise if files do not have the stored states; return notes on rounded ones."""
    rounded: dict[str, None] = {}
    for name, states in theirs.items():
        for state, value in states.items():
            expected = ours[name][state]
            written = value.read() if isinstance(value, Lazy) else value
            if state == STEP:
                if float(written) != float(expected):
                    raise BadValueError(
                        f"{str(source)!r} has {name!r} at step {float(expected):.0f}, and others "
                        f"at step {float(written):.0f}; {str(template)!r} has one for all of them"
                    )
                continue
            if not written.equal(expected.to(written.dtype)):
                raise CaptureError(
                    f"{str(template)!r} keeps {state!r} of {name!r} in a way that cannot be written"
                )
            if not written.equal(expected):
                dtype = str(written.dtype).removeprefix("torch.")
                rounded[f"{state} is rounded to {dtype}, as {template.name} has it"] = None
    return list(rounded)


def _copy(template: Path, holder: Path, reader: Reader, new: Path) -> None:
    """Copy a checkpoint, and the file with its name, with the usual permissions."""
    sources = sorted(holder.rglob("*"))
    if holder != template:
        sources.append(template / reader.latest)
    (new / holder.relative_to(template)).mkdir(parents=True, exist_ok=True)
    for path in sources:
        target = new / path.relative_to(template)
        if path.is_dir():
            target.mkdir(exist_ok=True)
        else:
            with damage(path):
                size_of(path)  # raises for a pipe or a device
            shutil.copyfile(path, target)
