"""Recording the states of an optimizer while it trains."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from qmaps.capture import gradients as recorded
from qmaps.capture import snapshot
from qmaps.capture.collect import collect, plain_options
from qmaps.capture.folder import KIND, claim, write_index
from qmaps.capture.gradients import Gradients, GradientWriter
from qmaps.capture.parameters import (
    Names,
    Parameters,
    integer,
    labelled,
    members,
    named,
    no_match,
    own_count,
    predicate,
)
from qmaps.errors import BadTypeError, shown
from qmaps.storage.locks import FolderLock


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
        self.every = integer("every", every, 1)
        self.max_bytes = None if max_bytes is None else integer("max_bytes", max_bytes, 1)
        self._due = _due(steps, self.every)
        self._wanted = predicate("parameters", parameters)
        self._wanted_state = predicate("states", states)
        self._names = named(names, optimizer)
        everything = {label: p for label, p, _ in labelled(optimizer, self._names)}
        chosen = {label: p for label, p in everything.items() if self._wanted(label)}
        self._shapes = {label: list(parameter.shape) for label, parameter in chosen.items()}
        if not chosen:
            raise no_match(parameters, list(everything))
        options = Gradients.of(gradients)
        self._writer: GradientWriter | None = None
        if options is not None:
            self._writer = GradientWriter(options, chosen)
        self._taken = 0 if start is None else integer("start", start, 0)
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
        for label, parameter, group in labelled(self.optimizer, self._names):
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
            for name, parameter, _ in labelled(self.optimizer, self._names)
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
        count = own_count(self.optimizer)
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


def _due(
    steps: Collection[int] | Callable[[int], bool] | None, every: int
) -> Callable[[int], bool]:
    """Whether a step is to be recorded."""
    if steps is None:
        return lambda step: step % every == 0
    if callable(steps):
        return steps
    found = members(steps)
    if found is None:
        raise BadTypeError(
            f"steps={shown(steps)} must be a collection of ints or a function of the step"
        )
    return frozenset(integer("steps", step, 0) for step in found).__contains__
