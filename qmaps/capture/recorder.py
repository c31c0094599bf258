"""Recording the states of an optimizer while it trains."""

from __future__ import annotations

import fnmatch
import operator
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from qmaps.capture import gradients as recorded
from qmaps.capture import snapshot
from qmaps.capture.collect import collect, plain_options
from qmaps.capture.folder import KIND, claim, write_index
from qmaps.capture.gradients import Gradients, GradientWriter
from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.normalize.block import MOST
from qmaps.storage.locks import FolderLock

Parameters = str | Iterable[str] | Callable[[str], bool] | None
Names = torch.nn.Module | Iterable[tuple[str, Tensor]] | None


class StateRecorder:
    """Writes the states of any ``torch.optim`` optimizer at chosen steps.

    The recorder adds a hook to ``optimizer.step()``. Each chosen step becomes one file,
    ``out/step-00000250.safetensors``, that appears only when it is whole; ``out/capture.json``
    lists the files. While it writes, the recorder holds one tensor at a time on the CPU (in two
    copies if it is not contiguous), and nothing between steps.

    Resuming: a new recorder goes on in the same folder, and a step that is taken again
    overwrites its file. Where the optimizer counts steps itself (``state["step"]``), its count
    numbers them. Where it does not, as SGD, numbering goes on after the newest snapshot if the
    optimizer has a state when the recorder is made; `start` says otherwise.

    In distributed training, record on one rank: a folder belongs to one recorder until it is
    closed, or the process ends.

    Args:
        optimizer: any optimizer; quantized states of qmaps are recorded as the float32 that
            they decode to.
        out: the folder, created if need be.
        every: record each step that this number divides; at least 1.
        steps: record these steps instead: a collection, or a function of the step.
        parameters: which parameters to record: names with wildcards (``"blocks.*.weight"``), or
            a function of the name; all if left out.
        states: which states to record, by name with wildcards (``"exp_avg*"``); all if left out.
        names: parameter names: a model, or pairs of name and parameter. If left out, those
            that the optimizer was given, else ``group0.param3``.
        max_bytes: stop recording, with one warning, before the snapshots and gradients in the
            folder exceed this many bytes. Training goes on: a full quota is no reason to lose a
            run.
        gradients: record also the gradients of this many steps after each snapshot, for
            `qmaps.replay`: a number of steps, or `qmaps.capture.Gradients`, which also has a number
            of bytes. They are taken after the step, as the optimizer got them, and each step
            becomes one file, ``out/gradients-00000251.safetensors``.
        start: number of steps taken so far, for an optimizer that does not count them.

    Raises:
        OutputError: `out` cannot be written, holds states of another optimizer or of other
            parameters, or is being written by another recorder; or, while training, the disk is
            full.
        BadValueError, BadTypeError: an argument is not allowed, or no parameter matches.

    >>> import tempfile, torch, qmaps
    >>> layer = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.AdamW(layer.parameters())
    >>> folder = tempfile.TemporaryDirectory()
    >>> with StateRecorder(optimizer, folder.name, every=2, names=layer):
    ...     for _ in range(4):
    ...         layer(torch.ones(1, 4)).sum().backward()
    ...         optimizer.step()
    >>> states = qmaps.capture.load(folder.name)
    >>> states.steps, states.states("weight")
    ([2, 4], ['exp_avg', 'exp_avg_sq'])
    >>> folder.cleanup()
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        out: str | os.PathLike[str],
        *,
        every: int = 1,
        steps: Collection[int] | Callable[[int], bool] | None = None,
        parameters: Parameters = None,
        states: str | Iterable[str] | None = None,
        names: Names = None,
        max_bytes: int | None = None,
        gradients: Gradients | int | None = None,
        start: int | None = None,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise BadTypeError(
                f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}"
            )
        self.optimizer = optimizer
        self.every = _integer("every", every, 1)
        self.max_bytes = None if max_bytes is None else _integer("max_bytes", max_bytes, 1)
        self._due = _due(steps, self.every)
        self._wanted = _predicate("parameters", parameters)
        self._wanted_state = _predicate("states", states)
        self._names = _names(names, optimizer)
        labels = [label for label, _, _ in self._parameters()]
        self._shapes = {
            label: list(parameter.shape)
            for label, parameter, _ in self._parameters()
            if self._wanted(label)
        }
        if not self._shapes:
            some = ", ".join(labels[:5]) + (", ..." if len(labels) > 5 else "")
            raise BadValueError(
                f"parameters={shown(parameters)} matches no parameter; the names are {some}"
            )
        options = Gradients.of(gradients)
        self._writer: GradientWriter | None = None
        if options is not None:
            chosen = {name: p for name, p, _ in self._parameters() if self._wanted(name)}
            self._writer = GradientWriter(options, chosen)
        self._taken = 0 if start is None else _integer("start", start, 0)
        self._lock = FolderLock(out, KIND)
        try:
            self.folder = claim(self._lock, self._about(step=0))
        except BaseException:
            self._lock.release()
            raise
        if start is None and optimizer.state:
            self._taken = max(snapshot.steps_in(self.folder), default=0)
        self._full = False
        self._told: set[str] = set()
        self._hook = optimizer.register_step_post_hook(lambda *_: self._after_step())

    def close(self) -> None:
        """Stop recording, and let another record in the folder; closing twice is allowed."""
        self._hook.remove()
        self._lock.release()

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
        """Write a snapshot of the states as they are now, whatever the step.

        Returns:
            The file, or None if nothing was written. Nothing is written, with a warning the first
            time, if there is no state to record, `max_bytes` would be exceeded, or this is a child
            process forked from the one that made the recorder.
        """
        if self._lock.inherited:
            self._tell(
                "forked",
                f"this process was forked from the one that records in {str(self.folder)!r}; "
                "nothing is recorded here",
            )
            return None
        entries: list[snapshot.Entry] = []
        sources: list[snapshot.Lazy] = []
        scalars: dict[str, dict[str, float]] = {}
        skipped: list[str] = []
        hyperparameters: dict[str, dict[str, Any]] = {}
        for label, parameter, group in self._parameters():
            # `get`: indexing a parameter without state would give it an empty one.
            state = self.optimizer.state.get(parameter)
            if not state or not self._wanted(label):
                continue
            hyperparameters[label] = plain_options(group)
            found = collect(state)
            scalars[label] = found.scalars
            skipped += [f"{label}: {name} ({kind})" for name, kind in found.skipped.items()]
            for name, lazy in found.tensors.items():
                if self._wanted_state(name):
                    entries.append(snapshot.Entry.of(label, name, lazy))
                    sources.append(lazy)
        step = self._step()
        if not entries:
            self._tell(
                "empty",
                f"{type(self.optimizer).__name__} has no chosen tensor state at step {step}; "
                "nothing was recorded",
            )
            return None
        about = self._about(step, entries, hyperparameters, scalars, skipped)
        path = snapshot.path_of(self.folder, step)
        if self._exceeds(path, snapshot.size_of(about, sources)):
            return None
        snapshot.write(path, about, sources)
        write_index(self.folder, about)
        if self._writer is not None:
            self._writer.begin(path, step)
        return path

    def _after_step(self) -> None:
        self._taken += 1
        if self._full:
            return
        step = self._step()
        if self._writer is not None and self._writer.due(step) and not self._lock.inherited:
            self._record_gradients(self._writer, step)
        if not self._full and self._due(step):
            self.record()

    def _record_gradients(self, writer: GradientWriter, step: int) -> None:
        """Write the gradients of the step that was just taken."""
        entries, sources, skipped = writer.prepare(
            (name, parameter.grad)
            for name, parameter, _ in self._parameters()
            if self._wanted(name)
        )
        if not entries:
            self._tell(
                "gradients",
                f"no chosen parameter has a dense gradient after step {step}; its gradients were "
                "not recorded",
            )
            return
        about = replace(self._about(step, entries, skipped=skipped), window=writer.window)
        path = recorded.path_of(self.folder, step)
        if not self._exceeds(path, snapshot.size_of(about, sources), "file of gradients"):
            snapshot.write(path, about, sources)

    def _step(self) -> int:
        """The optimizer's own count, or the number of steps seen."""
        count = _own_count(self.optimizer)
        return self._taken if count is None else count

    def _about(
        self,
        step: int,
        tensors: list[snapshot.Entry] | None = None,
        hyperparameters: dict[str, dict[str, Any]] | None = None,
        scalars: dict[str, dict[str, float]] | None = None,
        skipped: list[str] | None = None,
    ) -> snapshot.About:
        return snapshot.About(
            step=step,
            optimizer=type(self.optimizer).__name__,
            hyperparameters=hyperparameters or {},
            tensors=tensors or [],
            scalars=scalars or {},
            skipped=skipped or [],
            parameters=self._shapes,
        )

    def _parameters(self) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        """Name, parameter and group of each parameter, as the groups are now."""
        seen = set()
        for number, group in enumerate(self.optimizer.param_groups):
            own = group.get("param_names")
            for position, parameter in enumerate(group["params"]):
                label = self._names.get(id(parameter))
                if label is None:
                    label = own[position] if own else f"group{number}.param{position}"
                if label in seen:
                    raise BadValueError(
                        f"two parameters are named {label!r}; every name must be unique"
                    )
                seen.add(label)
                yield label, parameter, group

    def _exceeds(self, path: Path, size: int, kind: str = "snapshot") -> bool:
        if self.max_bytes is None:
            return False
        others = {
            module.path_of(self.folder, step)
            for module in (snapshot, recorded)
            for step in module.steps_in(self.folder)
        } - {path}
        total = size + sum(other.stat().st_size for other in others)
        if total <= self.max_bytes:
            return False
        if not self._full:
            self._full = True
            warnings.warn(
                f"recording stopped: another {kind} of {size} bytes would exceed "
                f"max_bytes={self.max_bytes} in {str(self.folder)!r}",
                stacklevel=3,
            )
        return True

    def _tell(self, topic: str, text: str) -> None:
        """Warn once about each topic."""
        if topic not in self._told:
            self._told.add(topic)
            warnings.warn(text, stacklevel=3)


def _own_count(optimizer: torch.optim.Optimizer) -> int | None:
    """The largest ``state["step"]``, or None if no parameter has one."""
    counts: list[float] = []
    tensors: dict[torch.device, list[Tensor]] = {}
    for state in optimizer.state.values():
        # Hooks may keep entries of another kind.
        step = state.get("step") if isinstance(state, Mapping) else None
        if isinstance(step, Tensor) and step.numel() == 1:
            tensors.setdefault(step.device, []).append(step.detach().reshape(()).double())
        elif isinstance(step, (int, float)):
            counts.append(step)
    # One synchronization per device, not per parameter.
    counts += [torch.stack(steps).max().item() for steps in tensors.values()]
    return int(max(counts)) if counts else None


def _integer(parameter: str, value: Any, least: int) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except (RuntimeError, TypeError, ValueError):
        number = None
    if number is None or number < least:
        raise BadValueError(f"{parameter}={shown(value)} must be an int of at least {least}")
    if number > MOST:
        raise BadValueError(f"{parameter}={shown(value)} must be at most 2**53")
    return number


def _members(given: Any) -> list[Any] | None:
    """Return the members of a collection, or None if the value is not a collection."""
    try:
        return list(given)
    except (RuntimeError, TypeError):
        return None


def _due(
    steps: Collection[int] | Callable[[int], bool] | None, every: int
) -> Callable[[int], bool]:
    """Whether a step is to be recorded."""
    if steps is None:
        return lambda step: step % every == 0
    if callable(steps):
        return steps
    members = _members(steps)
    if members is None:
        raise BadTypeError(
            f"steps={shown(steps)} must be a collection of ints or a function of the step"
        )
    return frozenset(_integer("steps", step, 0) for step in members).__contains__


def _predicate(argument: str, chosen: Parameters) -> Callable[[str], bool]:
    """Whether a name is chosen."""
    if chosen is None:
        return lambda _: True
    if callable(chosen):
        return chosen
    patterns = [chosen] if isinstance(chosen, str) else _members(chosen)
    if patterns is None:
        raise BadTypeError(
            f"{argument}={shown(chosen)} must be names or wildcards, or a function of a name"
        )
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise BadTypeError(
                f"{argument} must hold names or wildcards, got {shown(pattern)} among them"
            )
    # Equality first: a name may hold brackets, which are wildcards as well.
    return lambda name: name in patterns or any(fnmatch.fnmatchcase(name, p) for p in patterns)


def _names(names: Names, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    """Names by the identity of the parameter; the first of a shared parameter's names."""
    if names is None:
        return {}
    pairs = _members(names.named_parameters() if isinstance(names, torch.nn.Module) else names)
    if pairs is None:
        kind = type(names).__name__
        raise BadTypeError(f"names must be a model or pairs of a name and a parameter, got {kind}")
    found: dict[int, str] = {}
    for pair in pairs:
        fits = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not fits or not isinstance(pair[0], str) or not isinstance(pair[1], Tensor):
            raise BadTypeError(
                "names must be a model or pairs of a name and a parameter, got "
                f"{type(pair).__name__} among them"
            )
        found.setdefault(id(pair[1]), pair[0])
    if not any(id(p) in found for group in optimizer.param_groups for p in group["params"]):
        raise BadValueError(
            "names has none of the optimizer's parameters; pass the model that the optimizer trains"
        )
    return found
