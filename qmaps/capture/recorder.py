"""Recording the states of an optimizer while it trains."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from qmaps.capture import snapshot
from qmaps.capture.checkpoint import describe, plain_options, tensors_of
from qmaps.errors import BadTypeError, BadValueError, OutputError
from qmaps.files import output_folder

Parameters = str | Iterable[str] | Callable[[str], bool] | None


class StateRecorder:
    """Writes the states of any ``torch.optim`` optimizer at chosen steps.

    Hooks itself on ``optimizer.step()``. Each chosen step becomes one file,
    ``out/step-00000250.safetensors``, that appears only when it is whole. Memory: one snapshot
    of the chosen states on the CPU, nothing between steps. Where the optimizer counts steps
    itself (``state["step"]``) its count is used, so that a resumed training goes on numbering;
    a step that is taken again overwrites its file.

    Args:
        optimizer: any optimizer; quantized states of qmaps are recorded decoded.
        out: the folder, created if need be.
        every: record each step that this number divides; at least 1.
        steps: record these steps instead: a collection, or a function of the step.
        parameters: which parameters: names with wildcards (``"blocks.*.weight"``), or a
            function of the name; all if left out.
        states: which states by name, such as ``["exp_avg_sq"]``; all if left out.
        names: parameter names: a model, or pairs of name and parameter. If left out, those
            that the optimizer was given, else ``group0.param3``.
        max_bytes: stop recording, with a warning, before the folder's snapshots exceed this.

    Raises:
        OutputError: `out` cannot be written, or holds states of another optimizer class.
        BadValueError, BadTypeError: an argument is not allowed, or no parameter matches.

    >>> import tempfile, torch, qmaps
    >>> layer = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.AdamW(layer.parameters())
    >>> folder = tempfile.mkdtemp()
    >>> with StateRecorder(optimizer, folder, every=2, names=layer):
    ...     for _ in range(4):
    ...         layer(torch.ones(1, 4)).sum().backward()
    ...         optimizer.step()
    >>> states = qmaps.capture.load(folder)
    >>> states.steps, states.states("weight")
    ([2, 4], ['exp_avg', 'exp_avg_sq'])
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        out: str | os.PathLike[str],
        *,
        every: int = 1,
        steps: Collection[int] | Callable[[int], bool] | None = None,
        parameters: Parameters = None,
        states: Iterable[str] | None = None,
        names: torch.nn.Module | Iterable[tuple[str, Tensor]] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise BadTypeError(
                f"optimizer is a {type(optimizer).__name__}; a torch.optim.Optimizer is needed"
            )
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise BadValueError(f"every={every!r} must be an int of at least 1")
        if max_bytes is not None and max_bytes < 1:
            raise BadValueError(f"max_bytes={max_bytes} must be at least 1")
        self.optimizer = optimizer
        self.every = every
        self.max_bytes = max_bytes
        self._steps = steps
        self._states = (
            None if states is None else {states} if isinstance(states, str) else set(states)
        )
        self._wanted = _predicate(parameters)
        self._names = {} if names is None else _names(names)
        labels = [label for label, _, _ in self._parameters()]
        if not any(map(self._wanted, labels)):
            shown = ", ".join(labels[:5]) + (", ..." if len(labels) > 5 else "")
            raise BadValueError(f"parameters={parameters!r} matches none of {shown}")
        self.folder = output_folder(out)
        self._clean()
        self._taken = 0
        self._full = False
        self._hook = optimizer.register_step_post_hook(lambda *_: self._after_step())

    def close(self) -> None:
        """Stop recording."""
        self._hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def record(self) -> Path | None:
        """Write a snapshot of the states as they are now; None once `max_bytes` is reached."""
        tensors: dict[str, Tensor] = {}
        entries: list[dict[str, Any]] = []
        skipped: list[str] = []
        hyperparameters: dict[str, dict[str, Any]] = {}
        for label, parameter, group in self._parameters():
            state = self.optimizer.state.get(parameter, {})
            if not self._wanted(label) or not state:
                continue
            hyperparameters[label] = plain_options(group)
            found = tensors_of(state)
            held = {name.split(".")[0] for name in found}
            skipped += [f"{label}: {name}" for name in state if name not in held]
            for name, value in found.items():
                if name == "step" or (self._states is not None and name not in self._states):
                    continue
                entries.append(describe(label, name, value))
                # A copy: states may share storage, or change before the file is written.
                tensors[str(len(tensors))] = value.detach().to("cpu", copy=True).contiguous()
        step = self._step()
        path = snapshot.path_of(self.folder, step)
        if self._exceeds(path, sum(tensor.nbytes for tensor in tensors.values())):
            return None
        about = snapshot.About(
            step=step,
            optimizer=type(self.optimizer).__name__,
            hyperparameters=hyperparameters,
            tensors=entries,
            skipped=skipped,
        )
        snapshot.write(path, about, tensors)
        return path

    def _after_step(self) -> None:
        self._taken += 1
        step = self._step()
        if self._steps is None:
            due = step % self.every == 0
        else:
            due = self._steps(step) if callable(self._steps) else step in self._steps
        if due and not self._full:
            self.record()

    def _step(self) -> int:
        """The optimizer's own count, or the number of steps seen."""
        counts = [
            int(state["step"])
            for state in self.optimizer.state.values()
            if isinstance(state.get("step"), (int, float, Tensor))
        ]
        return max(counts, default=self._taken)

    def _parameters(self) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        """Name, parameter and group of each parameter, once."""
        for number, group in enumerate(self.optimizer.param_groups):
            own = group.get("param_names")
            for position, parameter in enumerate(group["params"]):
                label = self._names.get(id(parameter))
                if label is None:
                    label = own[position] if own else f"group{number}.param{position}"
                yield label, parameter, group

    def _clean(self) -> None:
        """Remove what an interrupted write left, and refuse a folder of another optimizer."""
        for leftover in self.folder.glob(".step-*.tmp"):
            leftover.unlink(missing_ok=True)
        for step in snapshot.steps_in(self.folder)[-1:]:
            recorded = snapshot.read_about(snapshot.path_of(self.folder, step)).optimizer
            own = type(self.optimizer).__name__
            if recorded != own:
                raise OutputError(
                    f"out={str(self.folder)!r} holds states of {recorded}; {own} needs another "
                    "folder"
                )

    def _exceeds(self, path: Path, size: int) -> bool:
        if self.max_bytes is None:
            return False
        steps = snapshot.steps_in(self.folder)
        files = {snapshot.path_of(self.folder, step) for step in steps} - {path}
        total = size + sum(file.stat().st_size for file in files)
        if total <= self.max_bytes:
            return False
        import warnings

        self._full = True
        warnings.warn(
            f"recording stopped: another snapshot of {size} bytes would exceed "
            f"max_bytes={self.max_bytes} in {str(self.folder)!r}",
            stacklevel=2,
        )
        return True


def _predicate(parameters: Parameters) -> Callable[[str], bool]:
    if parameters is None:
        return lambda _: True
    if callable(parameters):
        return parameters
    patterns = [parameters] if isinstance(parameters, str) else list(parameters)
    return lambda name: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _names(names: torch.nn.Module | Iterable[tuple[str, Tensor]]) -> dict[int, str]:
    pairs = names.named_parameters() if isinstance(names, torch.nn.Module) else names
    return {id(parameter): name for name, parameter in pairs}
