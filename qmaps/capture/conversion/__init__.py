"""Optimizer checkpoints of torch, bitsandbytes, torchao and qmaps, made into one another."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from qmaps.algebra.quantizer import QuantizedTensor, Quantizer, values_of
from qmaps.algebra.saved import from_plain, tensors_only
from qmaps.capture.collect import collect, decoded, in_memory
from qmaps.capture.conversion import template
from qmaps.capture.conversion.formats import FORMATS, Format
from qmaps.capture.conversion.formats.base import Plan, Wanted
from qmaps.capture.conversion.formats.coded import encode, same_codes
from qmaps.capture.conversion.optimizer_state import OptimizerState, State, family
from qmaps.capture.conversion.report import POLICIES, Report, Zeros, handle, report
from qmaps.capture.flattened import is_flattened, unflattened
from qmaps.capture.load import (
    OPTIMIZER_KEYS,
    checkpoint_at,
    is_captured,
    load,
    load_safely,
    options_given,
    slots_of,
    state_dicts_in,
    warn_of_lost_steps,
    without_steps,
)
from qmaps.capture.naming import Names, names_of
from qmaps.capture.readers import reader_of
from qmaps.capture.readers.base import damage, with_options
from qmaps.distributed import rows
from qmaps.engines.step import NUMBERS
from qmaps.errors import (
    DAMAGE,
    BadTypeError,
    BadValueError,
    CaptureError,
    NonFiniteError,
    OutputError,
    QmapsError,
    nearest,
    shown,
)
from qmaps.storage import checkpoint
from qmaps.storage.files import exists, output_file
from qmaps.storage.locks import new_folder

__all__ = ["FORMATS", "Report", "convert_file", "convert_state_dict"]


def convert_state_dict(
    state_dict: Mapping[str, Any],
    to: str,
    *,
    states: Wanted = None,
    zeros: str = "raise",
    optimizer: str | None = None,
) -> tuple[dict[str, Any], Report]:
    """Convert an optimizer's state_dict to the layout of another library.

    Args:
        state_dict: a state_dict of an optimizer of torch, bitsandbytes, torchao or qmaps, or a
            flat one of torchtitan; it is not changed.
        to: the target format: "torch", "bitsandbytes", "torchao" or "qmaps".
        states: how to keep states: "32bit", "8bit", "4bit" or "fp8" as far as the target has
            them; for qmaps also another preset, or a dict from state names to specs. None keeps
            codes where the target can hold them, and encodes a checkpoint in 32 bits in 8 bits,
            unless the target is torch or both sides are qmaps.
        zeros: treatment of elements where v decodes to 0 and m does not.
            "raise" gives them the smallest positive value of their codebook and scale;
            "leave" keeps them. See `qmaps.capture.conversion.report`.
        optimizer: the family of the optimizer, such as "lion" or "sgd". It is needed for a
            bitsandbytes checkpoint with one state per parameter, and where options in groups are
            those of other rules whose states have the same names.

    Returns:
        The new state_dict, perhaps with tensors of the old one, and a report.

    Raises:
        CaptureError: the state_dict is damaged or of an unknown optimizer.
        BadValueError, BadTypeError: an argument is not allowed, or the target cannot hold a part of
            the source.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> adam = torch.optim.AdamW(layer.parameters())
    >>> layer(torch.randn(8, 128)).square().sum().backward()
    >>> adam.step()
    >>> converted, report = convert_state_dict(adam.state_dict(), "qmaps", states="4bit")
    >>> report.states[0].became, report.states[0].how
    ('B64xbf16/mu-law10:linear0@5s+qsr', 'quantized')
    """
    if zeros not in POLICIES:
        raise BadValueError(f"zeros={zeros!r} must be one of {', '.join(POLICIES)}")
    if to not in FORMATS:
        raise BadValueError(
            f"to={to!r} is not a known format; allowed are "
            f"{', '.join(FORMATS)}{nearest(str(to), FORMATS)}"
        )
    target = FORMATS[to]
    if is_flattened(state_dict):
        state_dict = unflattened(state_dict)
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
        raise BadTypeError(
            "state_dict must be the state_dict of an optimizer, with 'state' and 'param_groups'"
        )
    origin = recognized(state_dict)
    hint = None if optimizer is None else family(optimizer)
    try:
        old = origin.read(state_dict, hint)
        if not target.keeps_resets:
            old = old.without_resets()
        planned, plan = target.plan(old, states)
        encoded, raised = _encoded(old, planned, plan, zeros)
        told = report(old, encoded, raised, (origin.name, target.name))
        return target.write(encoded), told
    except QmapsError:
        raise
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise CaptureError(
            f"the parts of the optimizer state_dict do not fit together ({reason})"
        ) from error


def recognized(state_dict: Mapping[str, Any]) -> Format:
    """The format of a state_dict."""
    try:
        return next(layout for layout in FORMATS.values() if layout.recognizes(state_dict))
    except DAMAGE:
        raise CaptureError("the parts of the optimizer state_dict do not fit together") from None


def _encoded(
    old: OptimizerState, planned: OptimizerState, plan: Plan, policy: str
) -> tuple[OptimizerState, dict[tuple[str, str], Zeros]]:
    """Encode the states by their plan, and handle their zeros, also returned."""
    states: dict[str, dict[str, State]] = {}
    zeros: dict[tuple[str, str], Zeros] = {}
    for source, parameter in zip(old.parameters(), planned.parameters(), strict=True):
        label = parameter.label
        encoded = states[label] = {
            name: _encode(value, plan[label][name], label, name)
            for name, value in parameter.states.items()
        }
        if encoded and old.family.moments is not None:
            first, second = old.family.moments
            encoded[second], zeros[label, second] = handle(
                encoded[first], encoded[second], source.states[second], policy=policy
            )
    return planned.with_states(states), zeros


def _encode(value: State, quantizer: Quantizer | None, label: str, name: str) -> State:
    if quantizer is None:
        return values_of(value)
    if isinstance(value, QuantizedTensor):
        if value.quantizer == quantizer:
            return value
        if (carried := same_codes(value, quantizer)) is not None:
            return carried
    try:
        return encode(values_of(value), quantizer)
    except (BadValueError, NonFiniteError) as error:
        raise CaptureError(f"state {name!r} of {label!r} cannot be quantized: {error}") from None


def _save_distributed(state_dict: Mapping[str, Any], folder: Path, key: str) -> None:
    """Write a state_dict under a key for ``dcp.load``, on any number of processes.

    Quantized states of qmaps are written by rows (`qmaps.distributed.rows`), as its sharded
    optimizers write them. The folder appears whole or not at all.
    """
    # Imported here because it takes long.
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save as save_folder

    groups = [dict(group) for group in state_dict["param_groups"]]
    names: dict[Any, Any] = {}
    for group in groups:
        labels = group.get("param_names") or group["params"]
        names.update(zip(group["params"], labels, strict=True))
        group["params"] = list(labels)
    state = {names.get(key, key): members for key, members in state_dict["state"].items()}
    if numbered := [name for name in state if not isinstance(name, str)]:
        raise BadValueError(
            f"the checkpoint names a parameter {shown(numbered[0])}; a folder of "
            "torch.distributed.checkpoint needs the parameters' own names"
        )
    by_rows = {
        name: {
            member: _rows(value) if isinstance(value, Mapping) else value
            for member, value in members.items()
        }
        for name, members in state.items()
    }
    with new_folder(folder) as new, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is one process
        try:
            save_folder(
                {key: {"state": by_rows, "param_groups": groups}}, checkpoint_id=new, no_dist=True
            )
        except CheckpointException as error:
            reason = error.failures[0][0]
            raise OutputError(f"{str(folder)!r} cannot be written ({reason})") from error


def _rows(plain: Mapping[str, Any]) -> dict[str, Any]:
    t = from_plain(plain)
    return tensors_only(rows.write(t, None), t.device)


SHARDED = ("torch", "qmaps")
"""Formats whose optimizers load folders of torch.distributed.checkpoint."""


def convert_file(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    to: str,
    states: Wanted = None,
    zeros: str = "raise",
    optimizer: str | None = None,
    overwrite: bool = False,
    distributed: str | None = None,
    like: str | os.PathLike[str] | None = None,
    names: Names = None,
    betas: tuple[float, float] | None = None,
    eps: float | None = None,
) -> list[Report]:
    """Convert an optimizer checkpoint to a file of ``torch.save``, or to a folder.

    The checkpoint is a file of ``torch.save``, or of another format of `qmaps.capture.load`, such
    as a folder of torch.distributed.checkpoint or DeepSpeed. Only tensors, numbers,
    strings and containers are read (and torchao's quantized tensors, where torchao is installed):
    nothing in the file is executed. Other parts of a file, such as a model's weights, stay as they
    are; of a folder, only the optimizer's state_dict is written. `out` appears whole or not
    at all.

    Args:
        path: a file with a state_dict, or with one under a usual name; or the folder
            of a checkpoint.
        out: the file to write.
        to: the target format, as for `convert_state_dict`.
        states: how to keep states, as for `convert_state_dict`.
        zeros: "raise" or "leave", as for `convert_state_dict`.
        optimizer: the family of its optimizer, as for `convert_state_dict`.
        overwrite: whether `out` may exist already; `out` may then be `path`.
        distributed: None to write a file of ``torch.save``; otherwise `out` is a folder of
            torch.distributed.checkpoint, such as FSDP trainings load, with the optimizer's
            state_dict under this key. It is for "torch" and "qmaps", needs a checkpoint of one
            optimizer with the parameters' names, and is never overwritten.
        like: None, or the folder of a checkpoint of DeepSpeed (ZeRO 1, 2 and 3, or universal),
            Megatron-core, or torch.distributed.checkpoint. `out` is then a copy of that folder with
            the states and the numbers of steps of `path`, in the shards of as many processes. All
            else is the template's: weights, groups with their options, what a scheduler keeps. It
            takes `to="torch"` and a template in 32 bits (or fewer, if they are floating-point
            numbers) with the same parameters by the same names, and `path` may also be captured
            states. `out` is never overwritten.
        names: the parameters' names for a checkpoint without them, as for `qmaps.capture.load`;
            they are written into the groups.
        betas: those of a checkpoint without them, as for `qmaps.capture.load`; they are written
            into the groups.
        eps: likewise.

    Returns:
        A report for each optimizer in the file.

    Raises:
        CaptureError: the file is missing, damaged, would need to execute code, or is of no known
            optimizer.
        OutputError: `out` exists, or cannot be written.
        BadValueError, BadTypeError: as `convert_state_dict`; `like` is no such folder, or of other
            parameters.
    """
    file, target = Path(path), Path(out)
    given = options_given(betas, eps)
    captured = like is not None and exists(file) and is_captured(file)
    holder = file if captured else checkpoint_at(file)
    if distributed is not None and to not in SHARDED:
        raise BadValueError(
            f"distributed={distributed!r} needs one of the formats {', '.join(SHARDED)}; got "
            f"to={to!r}"
        )
    if like is not None and (to != "torch" or distributed is not None):
        other = f"to={to!r}" if distributed is None else f"distributed={distributed!r}"
        raise BadValueError(f"like={str(like)!r} needs to='torch' and no distributed; got {other}")
    is_folder = distributed is not None or like is not None
    if exists(target) and (is_folder or not overwrite):
        remedy = "give another name" + (" or overwrite=True (--overwrite)" if not is_folder else "")
        raise OutputError(f"{str(target)!r} already exists; {remedy}")
    if not is_folder:
        output_file(target)
    reports: list[Report] = []

    loaded, left_out = _of_capture(holder, names) if captured else (_loaded(holder, given), "")
    reader = None if captured else reader_of(holder)
    remarks = [reader.note] if reader is not None and reader.note else []
    labels = None if captured or names is None else iter(_named(loaded, names, holder))

    def convert(state_dict: Mapping[str, Any], place: Place) -> dict[str, Any]:
        if labels is not None:
            groups = [
                {**group, "param_names": list(islice(labels, len(group["params"])))}
                for group in state_dict["param_groups"]
            ]
            state_dict = {**state_dict, "param_groups": groups}
        converted, report = convert_state_dict(
            with_options(state_dict, given, holder),
            to,
            states=states,
            zeros=zeros,
            optimizer=optimizer,
        )
        reports.append(replace(report, place=place, notes=(*report.notes, *remarks)))
        return converted

    warn_of_lost_steps(without_steps(slots_of(state_dicts_in(loaded, holder), holder)), holder)
    try:
        converted = _replaced(loaded, convert)
    except CaptureError as error:
        raise CaptureError(f"{str(holder)!r}: {error}") from None
    if not is_folder:
        checkpoint.save(converted, target)
        return reports
    (state_dict, *further) = state_dicts_in(converted, holder)
    if further:
        options = f"like={str(like)!r}" if distributed is None else f"distributed={distributed!r}"
        raise BadValueError(
            f"{options} needs a checkpoint of one optimizer; {str(holder)!r} has {len(further) + 1}"
        )
    if distributed is not None:
        _save_distributed(state_dict, target, distributed)
        return reports
    assert like is not None
    notes = template.save(state_dict, holder, Path(like), target)
    notes += [left_out] if left_out else []
    return [replace(report, notes=(*report.notes, *notes)) for report in reports]


def _named(loaded: Any, names: Names, path: Path) -> list[str]:
    """The name of each parameter in the order of the optimizers and their groups."""
    state_dicts = state_dicts_in(loaded, path)
    slots = slots_of(state_dicts, path)
    with damage(path):
        tensors = [collect(decoded(slot.state)).tensors for slot in slots]
    return names_of(slots, names, tensors, path, several=len(state_dicts) > 1)[0]


def _of_capture(path: Path, names: Names) -> tuple[dict[str, Any], str]:
    """Captured states as an optimizer's state_dict, and a sentence on those left out.

    Groups have the options known to the capture.
    """
    states = load(path, names=names)
    state: dict[str, dict[str, Any]] = {}
    for name, key, tensor in states.items():
        if name not in state:
            scalars = states.scalars(name)
            counts = {count: scalars[count] for count in NUMBERS if count in scalars}
            state[name] = {"step": states.step, **counts}
        state[name][key] = tensor
    groups = [{**states.hyperparameters(name), "params": [name]} for name in state]
    return {"state": state, "param_groups": groups}, states.left_out()


def _loaded(path: Path, given: Mapping[str, Any]) -> Any:
    """Load a file, or the optimizer's state_dict from a folder of another package."""
    if reader := reader_of(path):
        with damage(path):
            state_dicts = in_memory(reader.read(path, given))
        return state_dicts[0] if len(state_dicts) == 1 else state_dicts
    loaded = load_safely(path)
    state_dicts_in(loaded, path)  # raises where there is none
    return loaded


Place = tuple[str | int, ...]


def _replaced(
    loaded: Any,
    convert: Callable[[Mapping[str, Any], Place], dict[str, Any]],
    place: Place = (),
) -> Any:
    """`loaded` with every state_dict of an optimizer in it converted; see `state_dicts_in`."""
    if isinstance(loaded, (list, tuple)):
        return [_replaced(each, convert, (*place, n)) for n, each in enumerate(loaded)]
    if {"state", "param_groups"} <= loaded.keys() or is_flattened(loaded):
        return convert(loaded, place)
    wrapper = next(name for name in OPTIMIZER_KEYS if name in loaded)
    return {**loaded, wrapper: _replaced(loaded[wrapper], convert, (*place, wrapper))}
