"""Base class of the readers of checkpoints, and the functions they share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from qmaps.capture.collect import decoded
from qmaps.capture.snapshot import DTYPES, Lazy, Part, Parts
from qmaps.distribution import install
from qmaps.errors import CaptureError, QmapsError, shown
from qmaps.storage.checkpoint import Part as StreamPart
from qmaps.storage.files import content_of

LONGEST = 2**16
"""Bytes of a small text file, such as ``latest``, at most."""

OF_PARTS = ("state1", "state2", "absmax1", "absmax2", "qmap1", "qmap2", "step")
"""Names of what is kept of one state, and of the number of steps."""

Shape = tuple[int, ...]

StateDict = dict[str, Any]
"""An optimizer's state_dict with `Lazy` in place of tensors."""

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})

TRANSPOSED = (
    "kernels are stored as (in, out), which is transposed against torch: a torch model needs their "
    "moments transposed, and rank1, row and column scales and blocks along rows measure the other "
    "dimension"
)
"""The note of frameworks whose layers compute ``x @ kernel``."""


class Reader(ABC):
    """Layout of one package's checkpoint files.

    Attributes:
        name: name of the format.
        asked: readers with a smaller number are asked first whether they detect a checkpoint.
        latest: the file with the name of the newest checkpoint in a folder; empty where the
            format has none.
        counts_steps: True if the format has the number of steps beside moments.
        writable: True if states can be written back into a copy of a checkpoint.
        note: remark on the states for users; empty if there is none.
    """

    name: ClassVar[str]
    asked: ClassVar[int] = 0
    latest: ClassVar[str] = ""
    counts_steps: ClassVar[bool] = True
    writable: ClassVar[bool] = True
    note: ClassVar[str] = ""

    @abstractmethod
    def is_here(self, path: Path) -> bool:
        """Return True if a file or folder is one checkpoint, by the names of files."""

    def newest(self, path: Path) -> Path | None:
        """Return the newest checkpoint in a folder, which `latest` names; None if it names none."""
        try:
            name = content_of(path / self.latest, LONGEST).decode().strip() if self.latest else ""
        except (OSError, ValueError):
            return None
        # Anything else could lead to files of another owner.
        plain = name not in ("", "..") and "\0" not in name and Path(name).name == name
        return path / name if plain else None

    def holder(self, path: Path) -> Path | None:
        """Return `path`, or the `newest` checkpoint in it; None if there is none of this format."""
        if self.is_here(path):
            return path
        newest = self.newest(path)
        return newest if newest is not None and self.is_here(newest) else None

    def edited(self, path: Path) -> Sequence[Path | StreamPart]:  # noqa: ARG002
        """Files or streams of ``torch.save`` with states or steps, of a result of `holder`."""
        return []

    def read(self, path: Path, options: Mapping[str, Any] = NO_OPTIONS) -> list[StateDict]:
        """As `state_dicts`, with a CaptureError for whatever damaged files raise, now or later.

        Groups without the `options`, such as betas, get these.
        """
        with damage(path):
            state_dicts = self.state_dicts(self.holder(path) or path)
            complete = [with_options(state_dict, options, path) for state_dict in state_dicts]
            return [_guarded(self.counted(each, path), path) for each in complete]

    def counted(self, state_dict: StateDict, path: Path) -> StateDict:  # noqa: ARG002
        """Return a state_dict with numbers of steps that are known from options; here the same."""
        return state_dict

    @abstractmethod
    def state_dicts(self, path: Path) -> list[StateDict]:
        """Read all but the tensors.

        Args:
            path: a result of `holder`.

        Returns:
            For each optimizer a state_dict as ``torch.optim`` has it, with `state` and
            `param_groups`, in which every tensor is a `Lazy`. Parameters are named by strings
            where the checkpoint has their names. States without codes can be stored, and so can
            steps in tensors.

        Raises:
            CaptureError: a file is missing, damaged, would run code, or does not fit the others.
            Exception: any other error of a damaged file; `read` makes it a CaptureError.
        """


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Turn whatever reading a damaged checkpoint raises into a `CaptureError` of one line."""
    try:
        yield
    except (CaptureError, MemoryError):
        raise
    except QmapsError as error:
        raise CaptureError(str(error)) from None
    except OSError as error:
        raise CaptureError(
            f"{str(error.filename or path)!r} cannot be read ({error.strerror or error})"
        ) from None
    except Exception as error:  # the cause is kept for the case that it is a mistake of ours
        raise unfit(path, error) from error


def unfit(path: Path, error: Exception) -> CaptureError:
    """The error for a checkpoint with a part that raised `error`."""
    return CaptureError(
        f"{str(path)!r} is a checkpoint whose parts do not fit together "
        f"({type(error).__name__}: {error})"
    )


def _guarded(value: Any, path: Path) -> Any:
    """`value`, in which every `Lazy` reads under `damage`."""
    if isinstance(value, Mapping):
        return {key: _guarded(member, path) for key, member in value.items()}
    if not isinstance(value, Lazy):
        return value
    parts = value.parts and partial(_call, value.parts, path)
    return replace(value, read=partial(_call, value.read, path), parts=parts)


def _call(call: Callable[..., Any], path: Path, *arguments: Any) -> Any:
    with damage(path):
        result = call(*arguments)
    return partial(_call, result, path) if callable(result) else result


def with_options(
    state_dict: Mapping[str, Any], options: Mapping[str, Any], path: Path
) -> dict[str, Any]:
    """Return a state_dict with options in the groups without them.

    Raises:
        CaptureError: a group has another value of an option, or is none.
    """
    if not options:
        return dict(state_dict)
    with damage(path):
        groups = [{**options, **group} for group in state_dict["param_groups"]]
    for group in groups:
        for name, value in options.items():
            own = tuple(group[name]) if isinstance(group[name], list) else group[name]
            if isinstance(own, (int, float, tuple)) and own != value:
                raise CaptureError(
                    f"{name}={shown(value)} is not that of {str(path)!r}, which has "
                    f"{name}={shown(own)}; leave it out"
                )
    return {**state_dict, "param_groups": groups}


def needed(module: str, extra: str, path: Path) -> Any:
    """Import the package that reads a file, or raise a CaptureError that names the extra."""
    try:
        return import_module(module)
    except ImportError:
        raise CaptureError(
            f"{str(path)!r} is read by {module}, which is not installed; {install(extra)}"
        ) from None


NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES} | {
    "uint16": torch.int16,
    "uint32": torch.int32,
    "uint64": torch.int64,
}
"""Dtypes by NumPy's names; unsigned integers are counts."""


def dtype_of(name: str, state: str, path: Path) -> torch.dtype:
    """The dtype of a name, or a CaptureError."""
    if name not in NAMES:
        raise CaptureError(f"{str(path)!r} has {shown(state)} in {name}, which is not read")
    return NAMES[name]


def in_file(path: Path, offset: int, nbytes: int, dtype: torch.dtype, shape: Shape) -> Lazy:
    """A tensor in a file, one element after the other; a ValueError if they do not fit."""
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != nbytes:
        raise ValueError(f"{nbytes} bytes are no {dtype} tensor of shape {shape}")
    return Parts(path, offset, nbytes, DTYPES[dtype], shape).lazy()


def tensor_of(array: Any) -> Tensor:
    """A NumPy array of a dtype in `NAMES`, also one of ``ml_dtypes``, as a tensor."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    flat = np.array(native, order="C").reshape(-1).view(np.uint8)
    return torch.from_numpy(flat).view(NAMES[array.dtype.name]).reshape(array.shape)


def decimal(number: float) -> float:
    """The shortest decimal that is this number in float32, in which frameworks keep options."""
    return float(str(np.float32(number)))


def know(classes: Collection[str]) -> None:
    """Let ``torch.load`` know classes of other libraries, as far as a format has them."""
    # Imported here because most files name no such classes.
    from qmaps.capture.conversion.formats import FORMATS

    for layout in FORMATS.values():
        layout.know(classes)


def state_of(key: str) -> str | None:
    """The name of a state at the end of a key; None if it is no optimizer's here."""
    # Imported here because reading other files needs no optimizer.
    from qmaps.capture.conversion.optimizer_state import FAMILIES

    last = key.rpartition(".")[2]
    is_state = last in OF_PARTS or any(last in family.states for family in FAMILIES.values())
    return last if is_state else None


def missing_state(state_dict: StateDict) -> tuple[Any, str] | None:
    """A parameter and a state missing in it, but not in a similar parameter of its group.

    A parameter without states has not been stepped, and one with others may be kept differently,
    as factored second moments are.
    """
    for group in state_dict["param_groups"]:
        states = {name: state_dict["state"].get(name) for name in group["params"]}
        names = {name: frozenset(decoded(present)) for name, present in states.items() if present}
        for complete in set(names.values()):
            for name, present in names.items():
                if present < complete and (
                    lost := [s for s in complete - present if state_of(str(s))]
                ):
                    return name, min(map(str, lost))
    return None


def refuse_missing_state(path: Path, state_dict: StateDict) -> StateDict:
    """Return the state_dict, or raise if `missing_state` finds one."""
    if missing := missing_state(state_dict):
        raise CaptureError(
            f"{str(path)!r} has no {shown(missing[1])} of {shown(missing[0])}; other parameters of "
            "its group have this state"
        )
    return state_dict


def in_place(value: Any) -> Any:
    """A tensor of a mapped file, which is also stored there; another value as it is."""
    if not isinstance(value, Tensor):
        return value

    def store(values: Tensor) -> None:
        value.copy_(values)

    return replace(Lazy.of(value), store=store)


def step_of(copies: Sequence[Any]) -> Any:
    """One of several copies, such as a number of steps; if they are `Lazy`, it stores in all."""
    if not copies or not all(isinstance(step, Lazy) for step in copies):
        return copies[0] if copies else None

    def store(tensor: Tensor) -> None:
        for step in copies:
            step.store(tensor)

    return replace(copies[0], store=store if all(step.store for step in copies) else None)


Span = tuple[Lazy, int, int]
"""A flattened tensor, the first element in it, and their number."""


def opened_spans(spans: Sequence[Span]) -> Part:
    """Open a tensor made of spans of others, one after the other."""
    parts = {id(lazy): lazy.opened() for lazy, _, _ in spans}

    def read(begin: int, end: int) -> Tensor:
        cut, at = [], 0
        for lazy, start, numel in spans:
            low, high = max(begin, at), min(end, at + numel)
            if low < high:
                cut.append(parts[id(lazy)](start + low - at, start + high - at))
            at += numel
        return torch.cat(cut or [parts[id(spans[0][0])](0, 0)])

    return read


def equal(x: Tensor, y: Tensor) -> bool:
    """Return True if two tensors have the same values, NaN where the other has NaN included."""
    if x.equal(y):
        return True
    return x.shape == y.shape and bool(((x == y) | (x.isnan() & y.isnan())).all())
