"""Reading captures: a folder of snapshots, one snapshot, or an optimizer checkpoint."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qmaps.capture import snapshot
from qmaps.capture.collect import (
    Collected,
    collect,
    decoded,
    plain_options,
    skips_of_no_parameter,
)
from qmaps.capture.flattened import is_flattened, unflattened
from qmaps.capture.gradients import Window
from qmaps.capture.naming import Names, names_of
from qmaps.capture.parameters import Slot, check_text, members, of_no_parameter, slots
from qmaps.capture.readers import reader_of
from qmaps.capture.readers.base import know, with_options
from qmaps.capture.snapshot import Lazy, Snapshot
from qmaps.capture.states import SECOND, CapturedStates
from qmaps.engines.step import MOMENTS
from qmaps.errors import (
    DAMAGE,
    NOT_INSTALLED,
    BadValueError,
    CaptureError,
    UnknownPartError,
    shown,
)
from qmaps.normalize.block import MOST
from qmaps.optim.other_libraries import GROUP_COUNTS, Count, count_in, inexact_count, uncounted
from qmaps.storage import checkpoint, kinds
from qmaps.storage.checkpoint import NeedsCodeError
from qmaps.storage.files import exists

FILES = ("optimizer.pt", "optimizer.bin")
"""Names of the optimizer's file in a trainer's checkpoint folder."""

OPTIMIZER_KEYS = (
    *("optimizer", "optimizer_state_dict", "optimizer_state", "optimizer_states", "optimizers"),
    *("optim", "optim_state_dict"),
)
"""Keys of the optimizer's state_dict, or a list of them, in larger checkpoints."""

SAMPLE = 2**16
"""Elements of a second moment that are looked at."""

SHOWN = 10
"""Steps at both ends of a list in an error message."""

DEEPEST = 8
"""Lists and dicts around a state_dict, at most."""


def load(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    names: Names = None,
    betas: tuple[float, float] | None = None,
    eps: float | None = None,
) -> CapturedStates:
    """Load captured states, or those of a saved optimizer.

    Args:
        path: a folder of `StateRecorder`, one of its ``.safetensors`` files, or a
            checkpoint: ``torch.save`` of an optimizer's ``state_dict()``, of a list of them, or
            of a larger checkpoint with one inside, such as a Hugging Face Trainer's
            ``optimizer.pt`` or Lightning's ``.ckpt``; the Trainer's folder, ``checkpoint-500``; a
            folder of torch.distributed.checkpoint (FSDP) or of DeepSpeed (ZeRO 1, 2 and 3, and
            universal checkpoints); ``.safetensors`` files with tensors named
            ``PARAMETER.exp_avg``: one, their folder or their index; or a checkpoint of another
            framework: Orbax, Flax, MLX, Keras, Paddle. It is loaded without executing code, and
            the tensors of all but ``torch.save`` one at a time, when they are asked for.
        step: step of a snapshot in a folder; the last if left out.
        names: parameter names for a checkpoint without them: a list in the optimizer's order, a
            text file with one name per line in that order, the model, or the file or folder of a
            Trainer's model (``model.safetensors``, ``pytorch_model.bin``, or the index of their
            shards). A model's parameters may be in the optimizer in the model's order, or in two
            groups as the Trainer makes them: those with weight decay, then the others. If left
            out, the checkpoint's own names, else those of the model beside it. Where names cannot
            be recovered, parameters are numbered, ``group0.param3``, and the attribute `naming` of
            the result says why.
        betas: decay of each of Adam's moments, for a checkpoint without it, such as those of other
            frameworks. If left out, torch's (0.9, 0.999) is assumed, with a warning.
        eps: Adam's eps, likewise; torch's is 1e-8.

    Raises:
        CaptureError: nothing there, corrupt, truncated, no optimizer's states, a checkpoint that
            would execute code, or one with other `betas` or `eps`.
        BadValueError: `step` was not captured, or `names` does not fit the states, fits in
            several ways, or is given for captured states.
    """
    source = existing(Path(path))
    if not (source.is_dir() or source.is_file()):
        raise CaptureError(f"{str(source)!r} is neither a file nor a folder")
    captured = is_captured(source)
    holder = source if captured else checkpoint_at(source)
    if step is not None and not (captured and source.is_dir()):
        kind = "checkpoint" if holder.is_dir() else "file"
        raise BadValueError(
            f"step={step} needs a folder of captures; {str(holder)!r} is one {kind}"
        )
    if not captured:
        return _checkpoint(holder, names, options_given(betas, eps))
    if given := options_given(betas, eps):
        raise BadValueError(
            f"{min(given)} needs an optimizer checkpoint; {str(source)!r} holds captured states, "
            "which have their options"
        )
    if names is not None:
        raise BadValueError(
            f"names needs an optimizer checkpoint; {str(source)!r} holds captured states, which "
            "have names"
        )
    return _folder(source, step) if source.is_dir() else _snapshot(source, None)


def options_given(betas: Any, eps: Any) -> dict[str, Any]:
    """The options that are given, after a check."""
    given: dict[str, Any] = {}
    if betas is not None:
        pair = members(betas) or []
        if len(pair) != 2 or not all(_is_number(beta) and 0 <= beta < 1 for beta in pair):
            raise BadValueError(f"betas={shown(betas)} must be two numbers in [0, 1)")
        given["betas"] = tuple(pair)
    if eps is not None:
        if not _is_number(eps) or not 0 <= eps < math.inf:
            raise BadValueError(f"eps={shown(eps)} must be a number of at least 0")
        given["eps"] = eps
    return given


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def locate(path: Path) -> Path | None:
    """Return the file or folder with the optimizer's states; None for an unknown folder."""
    if not path.is_dir():
        return path
    files = (path / name for name in FILES if exists(path / name))
    return next(files, path if reader_of(path) else None)


def existing(path: Path) -> Path:
    """Return the path, or raise a CaptureError if there is nothing."""
    if not exists(path):
        raise CaptureError(f"{str(path)!r} does not exist")
    return path


def checkpoint_at(path: Path) -> Path:
    """Return the result of `locate`, or raise a CaptureError."""
    holder = locate(existing(path))
    if holder is None:
        raise CaptureError(
            kinds.refusal(path) or f"{str(path)!r} is a folder; expected an optimizer checkpoint"
        )
    return holder


def is_captured(path: Path) -> bool:
    """Return True for captured states, False for a checkpoint."""
    if path.is_dir():
        return locate(path) is None or bool(_steps(path))
    return path.suffix == ".safetensors" and reader_of(path) is None


def _steps(folder: Path) -> list[int]:
    try:
        return snapshot.steps_in(folder)
    except OSError as error:
        raise CaptureError(f"{str(folder)!r} cannot be read ({error.strerror})") from None


def _folder(folder: Path, step: int | None) -> CapturedStates:
    steps = _steps(folder)
    if not steps:
        raise CaptureError(
            kinds.refusal(folder)
            or f"{str(folder)!r} holds no captured steps (step-*.safetensors), and no checkpoint "
            "of a known format"
        )
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        captured = [str(step) for step in steps]
        if len(steps) > 2 * SHOWN:
            captured = [*captured[:SHOWN], "...", *captured[-SHOWN:]]
        raise BadValueError(f"step={step} is not in {str(folder)!r}; it has {', '.join(captured)}")
    return _snapshot(snapshot.path_of(folder, chosen), steps)


def _snapshot(path: Path, steps: list[int] | None) -> CapturedStates:
    file = Snapshot(path)
    info = file.info
    tensors: dict[str, dict[str, Lazy]] = {}
    for (parameter, state), lazy in file.tensors.items():
        tensors.setdefault(parameter, {})[state] = lazy
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


def _checkpoint(path: Path, names: Names, given: Mapping[str, Any]) -> CapturedStates:
    reader = reader_of(path)
    loaded = None if reader else load_safely(path)
    if reader:
        state_dicts: Sequence[Mapping[str, Any]] = reader.read(path, given)
    else:
        state_dicts = [with_options(each, given, path) for each in state_dicts_in(loaded, path)]
    parameters = slots_of(state_dicts, path)
    states: list[Collected] = []
    options: list[dict[str, Any]] = []
    for slot in parameters:
        try:
            states.append(collect(decoded(slot.state)))
            options.append(plain_options(slot.group))
            _count(states[-1], slot.group)
        except UnknownPartError as error:
            raise CaptureError(
                f"{str(path)!r} cannot be read at {slot.label!r}: {error.known}; {NOT_INSTALLED}"
            ) from error
        except DAMAGE as error:  # for example a quantized state whose parts do not fit
            raise CaptureError(f"{str(path)!r} is damaged at {slot.label!r}: {error}") from None
    if not any(collected.tensors for collected in states):
        pairs = zip(parameters, states, strict=True)
        skipped = [line for slot, collected in pairs for line in collected.skips(slot.label)]
        what = "that holds no states"
        if skipped:
            what = f"whose states are of types that are not read, such as {skipped[0]}"
        if any(line.endswith("(DTensor)") for line in skipped):
            what += (
                "; of shards of one process, save with torch.distributed.checkpoint, or gather the "
                "state_dict by get_optimizer_state_dict with full_state_dict=True"
            )
        raise CaptureError(f"{str(path)!r} is an optimizer checkpoint {what}")
    if reader is None or reader.counts_steps:
        _check_counted(parameters, states, path)
    if reader is not None and reader.note:
        _warn_of_options(states, options, path)
    labelled = zip((slot.label for slot in parameters), states, strict=True)
    warn_of_lost_steps(labelled, path)
    groups = (group for state_dict in state_dicts for group in state_dict["param_groups"])
    if note := next(filter(None, map(inexact_count, groups)), None):
        warnings.warn(f"{str(path)!r}: {note}", stacklevel=3)
    tensors = [collected.tensors for collected in states]
    labels, source = names_of(
        parameters, names, tensors, path, several=len(state_dicts) > 1, loaded=loaded
    )
    check_text(labels, repr(str(path)))
    named = dict(zip(labels, states, strict=True))
    return CapturedStates(
        {label: collected.tensors for label, collected in named.items() if collected.tensors},
        step=max(map(_step, states)),
        hyperparameters=dict(zip(labels, options, strict=True)),
        scalars={label: collected.scalars for label, collected in named.items()},
        skipped=[
            *(line for label, collected in named.items() for line in collected.skips(label)),
            *skips_of_no_parameter(e for one in state_dicts for e in of_no_parameter(one)),
        ],
        source=str(path),
        naming=source,
        note=reader.note if reader else "",
        given=given,
    )


def _warn_of_options(
    states: Sequence[Collected], options: Sequence[Mapping[str, Any]], path: Path
) -> None:
    """Warn if Adam's moments come without the options that another framework leaves in code."""
    pairs = zip(states, options, strict=True)
    moments = [own for collected, own in pairs if {*MOMENTS} <= {*collected.tensors}]
    missing = [name for name in ("betas", "eps") if any(name not in own for own in moments)]
    if missing:
        usual = {"betas": "(0.9, 0.999)", "eps": "1e-8"}
        assumed = " and ".join(f"{name}={usual[name]}" for name in missing)
        warnings.warn(
            f"{str(path)!r} has no {' and no '.join(missing)}; torch's {assumed} is assumed where "
            "an analysis needs it; give the optimizer's to load, or to qmaps capture --checkpoint",
            stacklevel=4,
        )


def _count(collected: Collected, group: Mapping[str, Any]) -> None:
    """Add the count of a parameter's group to its numbers, if its states have none."""
    count = count_in(group)
    if "step" not in collected.scalars and collected.tensors and count is not None:
        collected.scalars["step"] = float(count)
    _step(collected)


def _step(collected: Collected) -> int:
    number = collected.scalars.get("step", 0)
    if not 0 <= number <= MOST:
        raise BadValueError(f"step={shown(number)} must be an integer of at least 0")
    return int(number)


def _check_counted(parameters: Sequence[Slot], states: Sequence[Collected], path: Path) -> None:
    """Raise if a parameter has no step, and its states need it."""
    counts = [
        Count(slot.label, collected.tensors.keys(), "step" in collected.scalars)
        for slot, collected in zip(parameters, states, strict=True)
    ]
    for label, beside in uncounted(counts):
        if beside:
            raise CaptureError(
                f"{str(path)!r} has no step of {label!r}, and one of other parameters with "
                "the same states"
            )
        raise CaptureError(
            f"{str(path)!r} has no step of {label!r}, neither in its states nor in its "
            f"group ({', '.join(GROUP_COUNTS)}); updates from these moments depend on it"
        )


def without_steps(parameters: Iterable[Slot]) -> Iterator[tuple[str, Collected]]:
    """Yield label and states of the parameters with ``step=0``; only these are decoded."""
    for slot in parameters:
        try:
            if collect({"step": slot.state.get("step")}).scalars.get("step") == 0:
                yield slot.label, collect(decoded(slot.state))
        except DAMAGE:  # said where states are read
            continue


def warn_of_lost_steps(labelled: Iterable[tuple[str, Collected]], path: Path) -> None:
    """Warn of a second moment after 0 steps: the bias correction would begin anew."""
    for label, states in labelled:
        if states.scalars.get("step") != 0:
            continue
        try:
            second = next((states.tensors[n] for n in SECOND if n in states.tensors), None)
            if second is not None and _is_filled(second):
                warnings.warn(
                    f"{str(path)!r} has step=0 for {label!r}, but its second moment is not 0; "
                    "its number of steps was lost, as where torch joins shards of safetensors",
                    stacklevel=3,
                )
                return
        except DAMAGE:  # said where states are read
            continue


def _is_filled(lazy: Lazy) -> bool:
    return bool(lazy.opened()(0, min(math.prod(lazy.shape), SAMPLE)).any())


def load_safely(path: Path) -> Any:
    """Load a ``torch.save`` file without executing code."""
    try:
        return checkpoint.load(path, mmap=True, know=know)
    except NeedsCodeError as error:
        raise CaptureError(
            f"{str(path)!r} would have to run code to load ({error.name}); record its states with "
            "qmaps.capture.StateRecorder, or save plain tensors and numbers"
        ) from None
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
        wrapper = next((name for name in OPTIMIZER_KEYS if name in keys), None)
        if {"state", "param_groups"} <= keys:
            state_dicts.append(value)
        elif is_flattened(value):
            state_dicts.append(unflattened(value))
        elif is_new and isinstance(value, (list, tuple)) and value:
            pending += [(member, deeper - 1) for member in reversed(value)]
        elif is_new and wrapper:
            pending.append((value[wrapper], deeper - 1))
        else:
            kind = type(value).__name__
            if isinstance(value, Mapping):
                names = ", ".join([str(key) for key in value][:4])
                more = ", ..." if len(value) > 4 else ""
                kind = f"a dict with {names}{more}" if names else "an empty dict"
            raise CaptureError(
                f"{str(path)!r} must hold an optimizer state_dict ('state' and 'param_groups'), "
                f"but holds {kind}"
            )
    return state_dicts


def slots_of(state_dicts: Sequence[Mapping[str, Any]], path: Path) -> list[Slot]:
    """Return every parameter in the order of the optimizers and their groups."""
    parameters: list[Slot] = []
    for number, state_dict in enumerate(state_dicts):
        prefix = f"optimizer{number}." if len(state_dicts) > 1 else ""
        try:
            parameters += [slot._replace(label=prefix + slot.label) for slot in slots(state_dict)]
        except DAMAGE:
            raise CaptureError(
                f"{str(path)!r} holds an optimizer state_dict whose parts do not fit together"
            ) from None
    return parameters
