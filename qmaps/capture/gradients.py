"""Recorded gradients: one file for each step after a snapshot, and the window of these steps.

``gradients-00000251.safetensors`` has the layout of a snapshot (`qmaps.capture.snapshot`). Its
tensors are the state ``gradient`` of each parameter with a gradient in that step, and ``rows``, the
indices of the recorded rows, if the gradient was sampled. Its metadata has the step and the digest
of the last snapshot before it, to detect gradients of another run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qmaps.capture import snapshot
from qmaps.capture.snapshot import DTYPES, Entry, Lazy
from qmaps.engines.dense import unsupported_reason
from qmaps.errors import BadTypeError, BadValueError, CaptureError, shown
from qmaps.storage import checksums

BLOCK = 2048
"""Blocks of this size, and of every size that divides it, stay whole."""


def unit(shape: Sequence[int]) -> int:
    """Return the number of consecutive rows in a unit of a sample.

    A row is an index of the first dimension. If it starts at a multiple of it, a unit holds whole
    blocks of 2048 elements of the flattened tensor. Where that would take more than half of the
    rows, it holds as many whole rows as 2048 elements need, and blocks are cut at its ends.

    Args:
        shape: shape of the tensor, of at least one dimension.

    >>> unit([50257, 768]), unit([2048, 1000]), unit([10000])
    (8, 256, 2048)
    >>> unit([300, 1000])
    3
    """
    width = max(1, math.prod(shape[1:]))
    rows = math.lcm(width, BLOCK) // width
    if 2 * rows > shape[0]:
        rows = -(-BLOCK // width)
    return max(1, min(rows, shape[0]))


def rows_of(shape: Sequence[int], elements: int) -> Tensor | None:
    """Choose rows of a tensor, spread evenly over it.

    Args:
        shape: shape of the tensor.
        elements: about how many elements the sample should have. It has at least one unit; see
            `unit`.

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


def samples(
    shapes: Mapping[str, Sequence[int]], itemsizes: Mapping[str, int], max_bytes: int
) -> dict[str, Tensor | None] | None:
    """Choose rows of several tensors, the same share of each, within a number of bytes.

    Args:
        shapes: shape of each tensor.
        itemsizes: bytes per element of each tensor.
        max_bytes: largest number of bytes of the samples and the indices of their rows.

    Returns:
        As `rows_of` for each tensor; None if one unit of each is too much.
    """
    low, high = 0.0, 1.0
    best = _shared(shapes, 1.0)
    if nbytes(shapes, itemsizes, best) <= max_bytes:
        return best
    best = _shared(shapes, 0.0)
    if nbytes(shapes, itemsizes, best) > max_bytes:
        return None
    for _ in range(20):
        middle = (low + high) / 2
        chosen = _shared(shapes, middle)
        if nbytes(shapes, itemsizes, chosen) <= max_bytes:
            low, best = middle, chosen
        else:
            high = middle
    return best


def nbytes(
    shapes: Mapping[str, Sequence[int]],
    itemsizes: Mapping[str, int],
    rows: Mapping[str, Tensor | None],
) -> int:
    """Return the bytes of samples and of the indices of their rows."""
    total = 0
    for name, shape in shapes.items():
        chosen = rows[name]
        count = math.prod(shape)
        if chosen is not None:
            count = len(chosen) * math.prod(shape[1:])
            total += chosen.nbytes
        total += count * itemsizes[name]
    return total


def _shared(shapes: Mapping[str, Sequence[int]], share: float) -> dict[str, Tensor | None]:
    return {
        name: rows_of(shape, round(share * math.prod(shape))) if share < 1 else None
        for name, shape in shapes.items()
    }


GRADIENT, ROWS = "gradient", "rows"
_NAME = re.compile(r"gradients-(\d{8,})\.safetensors")


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
        BadValueError: a number is too small.
        BadTypeError: a value is no int.
    """

    steps: int = 100
    max_bytes: int | None = 2**30

    def __post_init__(self) -> None:
        for name, smallest in (("steps", 2), ("max_bytes", 1)):
            value = getattr(self, name)
            if value is None and name == "max_bytes":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise BadTypeError(f"gradients: {name}={shown(value)} must be an int")
            if value < smallest:
                raise BadValueError(f"gradients: {name}={value} must be at least {smallest}")

    @classmethod
    def of(cls, options: Gradients | int | None) -> Gradients | None:
        """Return an argument `gradients` as options; an int is the number of steps.

        Raises:
            BadTypeError: `options` has another type.
        """
        if options is None or isinstance(options, Gradients):
            return options
        if isinstance(options, bool) or not isinstance(options, int):
            raise BadTypeError(
                f"gradients={shown(options)} must be a number of steps or "
                "qmaps.capture.Gradients(steps, max_bytes)"
            )
        return cls(options)


def path_of(folder: Path, step: int) -> Path:
    """Return the path of the gradients of `step`."""
    return folder / f"gradients-{step:08d}.safetensors"


def steps_in(folder: Path) -> list[int]:
    """Return the steps with gradients in `folder`, ascending."""
    matches = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


class GradientWriter:
    """Writes the gradients of the steps after a snapshot.

    Args:
        options: numbers of steps and bytes.
        parameters: the parameters, by name.

    Raises:
        BadValueError: the smallest sample of every parameter takes more than `max_bytes`.
    """

    def __init__(self, options: Gradients, parameters: Mapping[str, Tensor]) -> None:
        self._options = options
        self._rows = self._sampled(parameters)
        self._start: tuple[int, str] | None = None

    def join(self, parameters: Mapping[str, Tensor]) -> None:
        """Record the gradients of these parameters from the next `begin` on.

        Raises:
            BadValueError: as the constructor; the parameters so far stay.
        """
        if parameters.keys() != self._rows.keys():
            self._rows = self._sampled(parameters)

    def begin(self, path: Path, step: int) -> None:
        """Record the steps after a snapshot from now on.

        Earlier files for these steps belong to a run with an overwritten snapshot; they are
        removed.
        """
        for later in steps_in(path.parent):
            if step < later <= step + self._options.steps:
                path_of(path.parent, later).unlink(missing_ok=True)
        self._start = step, snapshot.digest(path)

    def due(self, step: int) -> bool:
        """Return True if the gradients of `step` are to be recorded."""
        return self._start is not None and 0 < step - self._start[0] <= self._options.steps

    def prepare(
        self, gradients: Iterable[tuple[str, Tensor | None]]
    ) -> tuple[list[Entry], list[Lazy], list[str]]:
        """Select the gradients of a step for writing.

        Args:
            gradients: gradient of each parameter; None where it had none.

        Returns:
            Entries, tensors, and ``parameter: gradient (type)`` of those that cannot be recorded.
        """
        entries: list[Entry] = []
        sources: list[Lazy] = []
        skipped: list[str] = []
        for name, gradient in gradients:
            if gradient is None:
                continue
            if not _plain(gradient):
                skipped.append(f"{name}: {GRADIENT} ({type(gradient).__name__})")
                continue
            if name not in self._rows:
                skipped.append(f"{name}: {GRADIENT} (of a parameter that was added later)")
                continue
            rows = self._rows[name]
            parts = {GRADIENT: _chosen(gradient, rows)}
            if rows is not None:
                parts[ROWS] = Lazy.of(rows)
            for state, lazy in parts.items():
                entries.append(Entry.of(name, state, lazy))
                sources.append(lazy)
        return entries, sources, skipped

    def _sampled(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
        """Return the indices of the rows to record of each parameter; None for all rows."""
        steps, max_bytes = self._options.steps, self._options.max_bytes
        shapes = {name: list(parameter.shape) for name, parameter in parameters.items()}
        if max_bytes is None:
            return dict.fromkeys(shapes)
        sizes = {name: parameter.dtype.itemsize for name, parameter in parameters.items()}
        rows = samples(shapes, sizes, max_bytes // steps)
        if rows is None:
            smallest_rows = {name: rows_of(shape, 0) for name, shape in shapes.items()}
            needed = steps * nbytes(shapes, sizes, smallest_rows)
            raise BadValueError(
                f"gradients: max_bytes={max_bytes} is too small for steps={steps} of {len(shapes)} "
                f"parameters; at least {needed} are needed"
            )
        return rows

    @property
    def window(self) -> dict[str, Any]:
        """Entry `window` of the files of this window."""
        assert self._start is not None
        return {"start": self._start[0], "states": self._start[1]}


def _plain(gradient: Tensor) -> bool:
    if type(gradient) not in (Tensor, torch.nn.Parameter) or gradient.dtype not in DTYPES:
        return False
    return gradient.layout is torch.sparse_coo or not unsupported_reason(gradient)


def _chosen(gradient: Tensor, rows: Tensor | None) -> Lazy:
    """Return the recorded rows of a gradient, copied when they are read."""

    def read() -> Tensor:
        dense = gradient.detach()
        if dense.layout is torch.sparse_coo:
            dense = dense.to_dense()
        return dense if rows is None else dense.index_select(0, rows.to(dense.device))

    shape = tuple(gradient.shape) if rows is None else (len(rows), *gradient.shape[1:])
    return Lazy(shape, gradient.dtype, read)


class Window:
    """The gradients recorded in the consecutive steps after a snapshot.

    Files are looked for when a method first needs them, and stay open as long as this object.

    Args:
        path: the snapshot.
        info: contents of the snapshot.
    """

    def __init__(self, path: Path, info: snapshot.Info) -> None:
        self._path = path
        self._info = info
        self._digests: dict[int, str | None] = {}

    @property
    def steps(self) -> list[int]:
        """Consecutive steps after the snapshot; empty if nothing was recorded.

        Raises:
            CaptureError: a file cannot be read, or is of another run than the snapshot.
        """
        return list(self._files)

    def parameters(self) -> list[str]:
        """Return the names of parameters with a gradient in any step."""
        return list(
            dict.fromkeys(name for file in self._files.values() for name, _ in file.numbers)
        )

    def steps_of(self, parameter: str) -> list[int]:
        """Return the steps with a gradient of `parameter`."""
        return [n for n, file in self._files.items() if (parameter, GRADIENT) in file.numbers]

    def rows(self, parameter: str) -> Tensor | None:
        """Return the indices of the recorded rows of `parameter`; None for all rows."""
        for file in self._files.values():
            if (parameter, GRADIENT) in file.numbers:
                return file.read(parameter, ROWS)
        return None

    def gradients(self, parameter: str) -> Iterator[tuple[int, Tensor]]:
        """Yield step and gradient, in its own dtype, of each step with a gradient."""
        for step, file in self._files.items():
            gradient = file.read(parameter, GRADIENT)
            if gradient is not None:
                yield step, gradient

    @cached_property
    def _files(self) -> dict[int, _File]:
        files: dict[int, _File] = {}
        shapes: dict[str, list[int]] = {}
        step = self._info.step + 1
        while (path := path_of(self._path.parent, step)).exists():
            file = _File(path)
            start = file.info.window.get("start")
            if not isinstance(start, int) or start < self._info.step:
                raise self._foreign(path)
            digest = self._digest(start)
            if digest is None:  # the snapshot between was deleted: what it said is unknown
                break
            if file.info.step != step or digest != file.info.window.get("states"):
                raise self._foreign(path)
            self._check_shapes(file, path)
            gradients = [entry for entry in file.info.tensors if entry.state == GRADIENT]
            if any(shapes.setdefault(e.parameter, e.shape) != e.shape for e in gradients):
                break  # other rows, since parameters were added
            files[step] = file
            step += 1
        return files

    def _digest(self, step: int) -> str | None:
        """Return the digest of a snapshot; None if it was deleted."""
        if step not in self._digests:
            path = self._path
            if step != self._info.step:
                path = snapshot.path_of(path.parent, step)
            self._digests[step] = snapshot.digest(path) if path.exists() else None
        return self._digests[step]

    def _foreign(self, path: Path) -> CaptureError:
        return CaptureError(
            f"{path.name!r} was recorded in another run than the states in {str(self._path)!r}; "
            "delete the gradients or record both again"
        )

    def _check_shapes(self, file: _File, path: Path) -> None:
        for entry in file.info.tensors:
            if entry.state != GRADIENT:
                continue
            expected = self._info.parameters.get(entry.parameter)
            shape = list(entry.shape)
            number = file.numbers.get((entry.parameter, ROWS))
            if expected and number is not None:
                shape[:1] = expected[:1]
            if expected is not None and shape != expected:
                raise CaptureError(
                    f"{str(path)!r} has a gradient of {entry.parameter!r} of shape "
                    f"{tuple(entry.shape)}; the parameter has shape {tuple(expected)}"
                )


class _File:
    """The gradients of one step, open for reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = snapshot.read_info(path)
        self.numbers = {
            (entry.parameter, entry.state): number for number, entry in enumerate(self.info.tensors)
        }
        try:
            opened: Any = safe_open(path, framework="pt")
            self._open = opened.__enter__()
            self._sums = checksums.in_metadata(self._open.metadata() or {}, self._open.keys())
        except (OSError, SafetensorError) as error:
            raise snapshot.unreadable(path, error) from None

    def read(self, parameter: str, state: str) -> Tensor | None:
        number = self.numbers.get((parameter, state))
        if number is None:
            return None
        try:
            tensor: Tensor = self._open.get_tensor(str(number))
        except (OSError, SafetensorError) as error:
            raise snapshot.unreadable(self.path, error) from None
        if self._sums and checksums.of_tensor(tensor) != self._sums[str(number)]:
            raise CaptureError(
                f"{str(self.path)!r} is damaged: the checksum of tensor {number} is wrong"
            )
        return tensor
