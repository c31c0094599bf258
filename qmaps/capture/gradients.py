"""Recorded gradients: one file for each step after a snapshot, and the window of these steps.

``gradients-00000251.safetensors`` has the layout of a snapshot (`qmaps.capture.snapshot`). Its
tensors are the state ``gradient`` of each parameter with a gradient in that step, and ``rows``, the
indices of the recorded rows, if the gradient was sampled. Its metadata has the step and the digest
of the last snapshot before it, to detect gradients of another run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.dense import unsupported_reason
from qmaps.capture import snapshot
from qmaps.capture.parameters import integer
from qmaps.capture.snapshot import DTYPES, Entry, Key, Lazy, Snapshot
from qmaps.errors import BadTypeError, BadValueError, CaptureError, shown

BLOCK = 2048
"""Blocks of this size, and of every size that divides it, stay whole."""


def unit(shape: Sequence[int]) -> int:
    """Return the number of consecutive rows in a unit of a sample.

    A row is an index of the first dimension. If it starts at a multiple of it, a unit holds whole
    blocks of 2048 elements of the flattened tensor. Where that would take more than half of the
    rows, it holds as many whole rows as 2048 elements need, and blocks are cut at its ends.

    >>> unit([50257, 768]), unit([2048, 1000]), unit([10000]), unit([300, 1000])
    (8, 256, 2048, 3)
    """
    width = max(1, math.prod(shape[1:]))
    rows = math.lcm(width, BLOCK) // width
    if 2 * rows > shape[0]:
        rows = -(-BLOCK // width)
    return max(1, min(rows, shape[0]))


def rows_of(shape: Sequence[int], elements: int) -> Tensor | None:
    """Choose rows of a tensor, spread evenly over it: about so many elements, at least a `unit`.

    Returns:
        Indices of the first dimension, ascending, int64; None if the sample is the whole tensor.

    >>> rows_of([64, 768], 2 * 8 * 768)
    tensor([16, 17, 18, 19, 20, 21, 22, 23, 48, 49, 50, 51, 52, 53, 54, 55])
    """
    if not shape or math.prod(shape) <= elements:
        return None
    length = unit(shape)
    available = shape[0] // length
    wanted = max(1, elements // (length * max(1, math.prod(shape[1:]))))
    if wanted >= available:
        return None
    starts = (2 * torch.arange(wanted) + 1) * available // (2 * wanted) * length
    return (starts[:, None] + torch.arange(length)).reshape(-1)


def samples(parameters: Mapping[str, Tensor], max_bytes: int) -> dict[str, Tensor | None]:
    """Choose rows of tensors as `rows_of`, the same share of each, in `max_bytes` if possible."""
    whole: dict[str, Tensor | None] = dict.fromkeys(parameters)
    if nbytes(parameters, whole) <= max_bytes:  # indices of rows may take more than what they omit
        return whole
    shares = range(2**20 + 1)
    too_many = bisect_right(
        shares, max_bytes, key=lambda share: nbytes(parameters, _shared(parameters, share))
    )
    return _shared(parameters, max(0, too_many - 1))


def nbytes(parameters: Mapping[str, Tensor], rows: Mapping[str, Tensor | None]) -> int:
    """Return the bytes of samples and of the indices of their rows."""
    total = 0
    for name, tensor in parameters.items():
        chosen = rows[name]
        if chosen is None:
            total += tensor.numel() * tensor.dtype.itemsize
        else:
            width = math.prod(tensor.shape[1:])
            total += len(chosen) * width * tensor.dtype.itemsize + chosen.nbytes
    return total


def _shared(parameters: Mapping[str, Tensor], share: int) -> dict[str, Tensor | None]:
    """Rows of a share of each tensor, in 2**-20."""
    return {
        name: rows_of(tensor.shape, share * tensor.numel() >> 20)
        for name, tensor in parameters.items()
    }


GRADIENT, ROWS = "gradient", "rows"


@dataclass(frozen=True)
class Gradients:
    """Options of a `StateRecorder` for recording gradients after each snapshot.

    Attributes:
        steps: number of consecutive steps after each snapshot; at least 2, as the progress of a
            step is measured on the next gradient.
        max_bytes: most bytes of the gradients of one such window. If all gradients do not fit, the
            same share of every parameter is recorded: whole rows spread evenly over it, in units
            that are whole blocks of 2048 elements where the parameter's width allows it. None
            records all.

    Raises:
        BadValueError: a value is no int, or too small.
    """

    steps: int = 100
    max_bytes: int | None = 2**30

    def __post_init__(self) -> None:
        integer("gradients: steps", self.steps, 2)
        if self.max_bytes is not None:
            integer("gradients: max_bytes", self.max_bytes, 1)

    @classmethod
    def of(cls, options: Gradients | int | None) -> Gradients | None:
        """Return an argument `gradients` as options; an int is the number of steps."""
        if options is None or isinstance(options, Gradients):
            return options
        if isinstance(options, bool) or not isinstance(options, int):
            raise BadTypeError(
                f"gradients={shown(options)} must be a number of steps or "
                "qmaps.capture.Gradients(steps, max_bytes)"
            )
        return cls(options)


KIND = "gradients"
"""In the names of the files, for `qmaps.capture.snapshot.path_of`."""


class GradientWriter:
    """Chooses the gradients to write in the steps after a snapshot."""

    def __init__(self, options: Gradients, parameters: Mapping[str, Tensor]) -> None:
        self._options = options
        self._rows = self._sampled(parameters)
        self.window: dict[str, Any] = {}  # the entry of that name in the files

    def begin(self, path: Path, step: int) -> None:
        """Record the steps after a snapshot from now on; remove files of an overwritten one."""
        for later in snapshot.steps_in(path.parent, KIND):
            if step < later <= step + self._options.steps:
                snapshot.path_of(path.parent, later, KIND).unlink(missing_ok=True)
        self.window = {"start": step, "states": snapshot.digest(path)}

    def due(self, step: int) -> bool:
        """Return True if the gradients of `step` are to be recorded."""
        return bool(self.window) and 0 < step - self.window["start"] <= self._options.steps

    def prepare(self, gradients: Mapping[str, Tensor | None]) -> tuple[dict[Key, Lazy], list[str]]:
        """Return the gradients to write, and ``parameter: gradient (type)`` of others."""
        tensors: dict[Key, Lazy] = {}
        skipped: list[str] = []
        for name, gradient in gradients.items():
            if gradient is None:
                continue
            if not _plain(gradient):
                skipped.append(f"{name}: {GRADIENT} ({type(gradient).__name__})")
                continue
            if name not in self._rows:
                skipped.append(f"{name}: {GRADIENT} (of a parameter that was added later)")
                continue
            rows = self._rows[name]
            tensors[name, GRADIENT] = _chosen(gradient, rows)
            if rows is not None:
                tensors[name, ROWS] = Lazy.of(rows)
        return tensors, skipped

    def _sampled(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
        """Return the indices of the rows to record of each parameter; None for all rows."""
        steps, max_bytes = self._options.steps, self._options.max_bytes
        if max_bytes is None:
            return dict.fromkeys(parameters)
        rows = samples(parameters, max_bytes // steps)
        if (needed := nbytes(parameters, rows)) > max_bytes // steps:
            raise BadValueError(
                f"gradients: max_bytes={max_bytes} is too small for steps={steps} of "
                f"{len(parameters)} parameters; at least {steps * needed} are needed"
            )
        return rows


def _plain(gradient: Tensor) -> bool:
    is_tensor = type(gradient) in (Tensor, torch.nn.Parameter) and gradient.dtype in DTYPES
    return is_tensor and not unsupported_reason(gradient)


def _chosen(gradient: Tensor, rows: Tensor | None) -> Lazy:
    """Return the recorded rows of a gradient, copied when they are read."""

    def read() -> Tensor:
        dense = gradient.detach()
        return dense if rows is None else dense.index_select(0, rows.to(dense.device))

    shape = tuple(gradient.shape) if rows is None else (len(rows), *gradient.shape[1:])
    return Lazy(shape, gradient.dtype, read)


class Window:
    """The gradients recorded in consecutive steps after a snapshot, read when needed."""

    def __init__(self, path: Path, info: snapshot.Info) -> None:
        self._path = path
        self._info = info

    def steps(self, parameter: str | None = None) -> list[int]:
        """Return the consecutive steps after the snapshot; those with a gradient of `parameter`."""
        return [
            step
            for step, file in self._files.items()
            if parameter is None or (parameter, GRADIENT) in file.tensors
        ]

    def rows(self, parameter: str) -> Tensor | None:
        """Return the indices of the recorded rows of `parameter`; None for all rows."""
        steps = self.steps(parameter)
        rows = self._files[steps[0]].tensors.get((parameter, ROWS)) if steps else None
        return None if rows is None else rows.read()

    def gradients(self, parameter: str) -> Iterator[tuple[int, Tensor]]:
        """Yield step and gradient, in its own dtype, of each step with a gradient."""
        for step in self.steps(parameter):
            yield step, self._files[step].tensors[parameter, GRADIENT].read()

    @cached_property
    def _files(self) -> dict[int, Snapshot]:
        folder = self._path.parent
        files: dict[int, Snapshot] = {}
        shapes: dict[str, list[int]] = {}
        digests: dict[int, str] = {}
        step = self._info.step + 1
        while (path := snapshot.path_of(folder, step, KIND)).exists():
            file = Snapshot(path)
            start = file.info.window.get("start")
            if not isinstance(start, int) or start < self._info.step:
                raise self._foreign(path)
            if start not in digests:
                last = snapshot.path_of(folder, start) if start > self._info.step else self._path
                if not last.exists():  # it was deleted: what it said is unknown
                    break
                digests[start] = snapshot.digest(last)
            if file.info.step != step or digests[start] != file.info.window.get("states"):
                raise self._foreign(path)
            gradients = [entry for entry in file.info.tensors if entry.state == GRADIENT]
            for entry in gradients:
                self._check_shape(entry, path, sampled=(entry.parameter, ROWS) in file.tensors)
            if any(shapes.setdefault(e.parameter, e.shape) != e.shape for e in gradients):
                break  # other rows, since parameters were added
            files[step] = file
            step += 1
        return files

    def _foreign(self, path: Path) -> CaptureError:
        return CaptureError(
            f"{path.name!r} was recorded in another run than the states in {str(self._path)!r}; "
            "delete the gradients or record both again"
        )

    def _check_shape(self, entry: Entry, path: Path, *, sampled: bool) -> None:
        expected = self._info.parameters.get(entry.parameter)
        shape = list(entry.shape)
        if expected and sampled:
            shape[:1] = expected[:1]
        if expected is not None and shape != expected:
            raise CaptureError(
                f"{str(path)!r} has a gradient of {entry.parameter!r} of shape "
                f"{tuple(entry.shape)}; the parameter has shape {tuple(expected)}"
            )
